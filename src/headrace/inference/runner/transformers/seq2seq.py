"""
Encoder-decoder networks of transformers as a `Runner`: the prompt is read by the encoder, the answer by the decoder.

A sequence of a step is the prompt first, in one piece, and then tokens of the answer. The state of a sequence (the
encoder's output as keys and values, and those of the answer) is not in paged blocks: it is held beside them, keyed by
the first block of the sequence, which no other sequence has at the same time.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from headrace.core.errors import EngineFailed, UnsupportedModel
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.checks import check_step
from headrace.inference.runner.step import RunnerInfo, RunnerLimits, StepInput, StepOutput
from headrace.inference.runner.torch.sampling import sample
from headrace.inference.runner.transformers.runner import computing
from headrace.inference.runner.transformers.support import cache_argument


@dataclass(slots=True)
class _State:
    """The encoder's output of one sequence, and the keys and values of its decoder."""

    encoded: BaseModelOutput
    cache: EncoderDecoderCache
    num_tokens: int
    """Tokens of the prompt and of the answer that the network has read."""


class SeqToSeqRunner:
    """A `Runner` on an encoder-decoder network. Not thread safe: only one thread may call it."""

    is_healthy = True
    is_causal = False
    """The encoder needs the whole prompt at once."""

    def __init__(self, model: Any, *, vocab_size: int, limits: RunnerLimits, info: RunnerInfo) -> None:
        self.vocab_size = vocab_size
        self.limits = limits
        self.info = info
        self.num_parameters: int = model.num_parameters()
        self._model: Any = model
        self._first_token, self._forced_token = first_tokens(model)
        self._states: OrderedDict[int, _State] = OrderedDict()

    def execute(self, step: StepInput) -> StepOutput:
        if self._model is None:
            raise EngineFailed("The runner is closed.")
        check_step(step, self.limits, vocab_size=self.vocab_size)
        if len(step.hidden_rows):
            raise EngineFailed("The step is invalid: an encoder-decoder returns no hidden states.")
        with computing():
            return sample(torch.cat(list(self._logits(step))), step)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:  # noqa: ARG002 - the protocol's
        raise UnsupportedModel("Adapters of encoder-decoder networks are not supported.")

    def close(self) -> None:
        self._model = None
        self._states.clear()

    def _logits(self, step: StepInput) -> Iterable[torch.Tensor]:
        for sequence, context_len in enumerate(step.context_lens.tolist()):
            start, end = step.query_starts[sequence : sequence + 2].tolist()
            rows = step.rows[(step.rows >= start) & (step.rows < end)] - start
            tokens = torch.as_tensor(step.token_ids[start:end], dtype=torch.long, device=self._model.device)[None]
            key = int(step.block_tables[sequence, 0])
            if context_len == 0:
                encoded = self._model.get_encoder()(input_ids=tokens, return_dict=True)
                self._keep(key, _State(encoded, EncoderDecoderCache(DynamicCache(), DynamicCache()), 0))
                if len(rows) and rows.tolist() != [end - start - 1]:
                    raise EngineFailed(
                        "The step is invalid: a prompt of an encoder-decoder has logits at its end only."
                    )
                logits = self._decode(self._states[key], tokens.new_full((1, 1), self._first_token))
                if self._forced_token is not None:
                    logits = torch.full_like(logits, -torch.inf).index_fill_(
                        1, tokens.new_tensor([self._forced_token]), 0
                    )
                yield logits[: len(rows)]
            else:
                state = self._states.get(key)
                if state is None or state.num_tokens != context_len:
                    raise EngineFailed("The step is invalid: the sequence does not follow what was computed before.")
                self._states.move_to_end(key)
                yield self._decode(state, tokens)[torch.as_tensor(rows, dtype=torch.long, device=tokens.device)]
            self._states[key].num_tokens = context_len + end - start

    def _decode(self, state: _State, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (T, V) after each token of an answer."""
        output = _run_decoder(self._model, state.encoded, tokens, state.cache)
        logits: torch.Tensor = output.logits[0, :, : self.vocab_size].float()
        return logits

    def _keep(self, key: int, state: _State) -> None:
        """Keep a state; evict the least recently used ones, which belong to sequences that have ended."""
        self._states[key] = state
        self._states.move_to_end(key)
        while len(self._states) > self.limits.max_step_sequences:
            self._states.popitem(last=False)


def first_tokens(model: Any) -> tuple[int, int | None]:
    """
    Return the token that the decoder starts with, and the one that every answer begins with, if any.

    Raises `UnsupportedModel` if the checkpoint names no first token.
    """
    generation, config = model.generation_config, model.config
    first = generation.decoder_start_token_id
    if first is None:
        first = getattr(config, "decoder_start_token_id", None)
    if first is None:
        raise UnsupportedModel(f"{type(model).__name__} names no decoder_start_token_id in its config.")
    return first, generation.forced_bos_token_id


def state_bytes(model: Any) -> int:
    """Return the bytes that a sequence keeps for each of its tokens, found by running one."""
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.inference_mode():
        encoded = model.get_encoder()(input_ids=token, return_dict=True)
        _run_decoder(model, encoded, token, cache)
    sizes = [_bytes_of(part) for part in (cache.self_attention_cache, cache.cross_attention_cache)]
    return max(sizes) + int(encoded.last_hidden_state.nbytes)


def _run_decoder(model: Any, encoded: Any, tokens: torch.Tensor, cache: Cache) -> Any:
    """Run the decoder over tokens (1, T), whose keys and values it adds to the cache."""
    given = {cache_argument(model): cache}
    return model(encoder_outputs=encoded, decoder_input_ids=tokens, use_cache=True, **given)


def _bytes_of(cache: Cache) -> int:
    tensors = (tensor for layer in cache.layers for tensor in (layer.keys, layer.values))  # type: ignore[union-attr]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
