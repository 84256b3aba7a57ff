"""
Paged attention for networks of transformers: their modeling code, with our blocks behind `AttentionInterface`.

All sequences of a step are one row of tokens (1, T). The attention function stores their keys and values and attends to
the blocks of each sequence, so the network needs no mask. Each module holds the context of its network, because not
every architecture passes unknown keywords down to its attention.
"""

from typing import Any, Final

import torch
from transformers import AttentionInterface

from headrace.core.errors import UnsupportedModel
from headrace.inference.runner.step import StepInput
from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import StepTensors, to_device
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape
from headrace.inference.runner.transformers.adapters import AdapterHooks
from headrace.inference.runner.transformers.runner import HeadCall

NAME: Final = "headrace"
"""The name of our attention function in transformers."""
_ATTRIBUTE: Final = "headrace_attention"


class AttentionContext:
    """The state that the attention of one network reads: the order of its layers, the blocks, the step that runs."""

    def __init__(self) -> None:
        self.cache: KvCache | None = None
        """None: shapes are being recorded."""
        self.batch: StepTensors | None = None
        self.slots: torch.Tensor | None = None
        """The slots of `batch` as an index."""
        self.shapes: list[KvShape] = []
        self.layers: dict[int, int] = {}
        """The number of each attention module in the order of the network, by its id."""

    def record(self, module: torch.nn.Module, shape: KvShape) -> None:
        if id(module) in self.layers:
            raise UnsupportedModel(
                "An attention module runs twice in a step, for two layers. Serve the model with --backend vllm."
            )
        self.layers[id(module)] = len(self.shapes)
        self.shapes.append(shape)


class PagedNetwork:
    """A network whose attention reads and writes our blocks."""

    def __init__(
        self, model: torch.nn.Module, context: AttentionContext, cache: KvCache, adapters: AdapterHooks
    ) -> None:
        context.cache = cache
        self._context = context
        self._cache = cache
        self._adapters = adapters
        self._head = HeadCall(model)

    def logits(self, step: StepInput) -> torch.Tensor:
        batch = to_device(step, block_tokens=self._cache.block_tokens, device=self._cache.device)
        if step.adapters is not None:
            lengths = step.query_starts[1:] - step.query_starts[:-1]
            self._adapters.select(step.adapters.repeat(lengths))
        self._context.batch, self._context.slots = batch, batch.slots.long()
        try:
            return self._head.run(step.token_ids, step.rows, position_ids=batch.positions[None].long(), use_cache=False)
        finally:
            self._context.batch = None


def attach(model: Any) -> AttentionContext:
    """
    Replace the attention of a network by ours, and find the shapes of its layers by running one token.

    Raises `UnsupportedModel` if the attention depends on something that ours does not compute.
    """
    AttentionInterface.register(NAME, _attention)
    context = AttentionContext()
    for module in model.modules():
        setattr(module, _ATTRIBUTE, context)
    model.set_attn_implementation(NAME)
    if model.config.get_text_config(decoder=True)._attn_implementation != NAME:  # noqa: SLF001 - it has no other name
        raise UnsupportedModel(f"{type(model).__name__} does not take another attention function.")
    token = torch.zeros((1, 1), dtype=torch.long, device=next(model.parameters()).device)
    with torch.inference_mode():
        model(input_ids=token, position_ids=token, use_cache=False)
    if not context.shapes:
        raise UnsupportedModel(f"{type(model).__name__} never called the attention function.")
    return context


def _attention(  # noqa: PLR0913 - transformers' interface
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_ignored: object,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' interface says: query (1, H, T, D), key and value (1, H_kv, T, D) → (1, T, H, D_v)."""
    if attention_mask is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__} has an attention bias of its own.")
    context: AttentionContext = getattr(module, _ATTRIBUTE)
    shape = KvShape(key.shape[1], key.shape[3], value.shape[3])
    if context.cache is None or context.batch is None or context.slots is None:
        context.record(module, shape)
        return value.new_zeros((1, query.shape[2], query.shape[1], shape.value_dim)), None
    index = context.layers[id(module)]
    context.cache.put(key[0].transpose(0, 1), value[0].transpose(0, 1), index, context.slots)
    output = attend(
        query[0].transpose(0, 1),
        *context.cache.layer(index),
        context.batch,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return output[None].to(query.dtype), None
