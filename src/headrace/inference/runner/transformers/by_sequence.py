"""
Networks that make their own masks: one call a sequence, with a cache that is a view of our blocks.

For architectures that do not use transformers' attention interface (Bloom, Falcon, GPT-J, MPT), or whose masks hold
more than causality (chunks). Slower than paged attention, and exact: ALiBi and masks come from the network's own code.
"""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from headrace.core.errors import UnsupportedModel
from headrace.inference.runner.checks import token_slots
from headrace.inference.runner.step import StepInput
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape
from headrace.inference.runner.transformers.adapters import AdapterHooks
from headrace.inference.runner.transformers.runner import HeadCall
from headrace.inference.runner.transformers.support import cache_argument


class _SequenceLayer(CacheLayerMixin):
    """One layer of one sequence: `context_len` tokens are in the blocks, and one `update` adds the others."""

    is_sliding = False
    """All keys are kept; the network's mask cuts windows and chunks."""

    def __init__(self, kv: KvCache, index: int, slots: torch.Tensor, context_len: int) -> None:
        super().__init__()
        self.is_initialized = True
        self._kv = kv
        self._index = index
        self._slots = slots
        self._num_tokens = context_len

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the blocks exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values (1, heads, T, size); return those of the whole sequence."""
        start, self._num_tokens = self._num_tokens, self._num_tokens + key_states.shape[-2]
        new = self._slots[start : self._num_tokens]
        self._kv.put(key_states[0].transpose(0, 1), value_states[0].transpose(0, 1), self._index, new)
        keys, values = self._kv.gather(self._index, self._slots[: self._num_tokens])
        return keys.transpose(0, 1)[None].to(key_states.dtype), values.transpose(0, 1)[None].to(value_states.dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a mask for `query_length` new tokens covers, and the first key."""
        return self._num_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self._num_tokens

    def get_max_length(self) -> int:
        return -1


class SequenceNetwork:
    """A network that is called once for each sequence of a step."""

    def __init__(self, model: torch.nn.Module, kv: KvCache, adapters: AdapterHooks) -> None:
        self._kv = kv
        self._adapters = adapters
        self._head = HeadCall(model)
        self._cache_argument = cache_argument(model)

    def logits(self, step: StepInput) -> torch.Tensor:
        parts = []
        for sequence, context_len in enumerate(step.context_lens.tolist()):
            start, end = step.query_starts[sequence : sequence + 2].tolist()
            rows = step.rows[(step.rows >= start) & (step.rows < end)] - start
            slots = token_slots(step.block_tables[sequence], context_len + end - start, self._kv.block_tokens)
            on_device = torch.as_tensor(slots, dtype=torch.long, device=self._kv.device)
            cache = Cache(
                layers=[_SequenceLayer(self._kv, index, on_device, context_len) for index in range(len(self._kv))]
            )
            if step.adapters is not None:
                self._adapters.select(step.adapters[sequence : sequence + 1].repeat(end - start))
            given = {self._cache_argument: cache}
            parts.append(self._head.run(step.token_ids[start:end], rows, use_cache=True, **given))
        return torch.cat(parts)


def cached_shapes(model: torch.nn.Module) -> Sequence[KvShape]:
    """Run a token to find each layer's keys and values; raises `UnsupportedModel` if they are not in a `Cache`."""
    cache = DynamicCache()
    token = torch.zeros((1, 1), dtype=torch.long, device=next(model.parameters()).device)
    with torch.inference_mode():
        model(input_ids=token, use_cache=True, **{cache_argument(model): cache})
    shapes = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if type(layer) is not DynamicLayer or keys is None or values is None or keys.dim() != 4:
            raise _no_cache(model)
        shapes.append(KvShape(keys.shape[1], keys.shape[3], values.shape[3]))
    if not shapes:
        raise _no_cache(model)
    return shapes


def _no_cache(model: torch.nn.Module) -> UnsupportedModel:
    name = type(model).__name__
    return UnsupportedModel(
        f"{name} does not keep keys and values of every layer in transformers' cache. Serve it with --backend vllm.",
        architecture=name,
    )
