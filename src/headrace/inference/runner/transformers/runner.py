"""
A network of transformers as a `Runner`: its modeling code, our blocks and our sampling rules.

A network's code may hide what our cache does not carry: an attention bias, a convolution over tokens, a state. The
facts in `support` cover the known cases; `check_logits` runs the network both ways on a few tokens.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch

from headrace.core.errors import EngineFailed, UnsupportedModel
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.checks import check_step
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import Float32, Int32, RunnerInfo, RunnerLimits, StepInput, StepOutput
from headrace.inference.runner.torch.sampling import sample
from headrace.inference.runner.transformers.adapters import AdapterHooks

_NUM_TOKENS: Final = 16
_NUM_OTHERS: Final = 5
_TOLERANCE: Final = 0.01
_ROUNDED_TOLERANCE: Final = 0.25
"""Relative to the spread of the logits. 16-bit rounding may move a token to another expert; a lost mask gives 0.7."""


@contextmanager
def computing() -> Iterator[None]:
    """Run a network without gradients; its errors become `EngineFailed`."""
    try:
        with torch.inference_mode():
            yield
    except (RuntimeError, ValueError, IndexError) as exc:
        reason = str(exc).partition("\n")[0]
        raise EngineFailed(f"The network failed in a step: {type(exc).__name__}: {reason}") from exc


class HeadCall:
    """Calls a network on one row of tokens; the LM head runs on the requested tokens only, if the network can."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._index = partial(torch.as_tensor, dtype=torch.long, device=next(model.parameters()).device)
        self._can_skip = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(self, token_ids: Int32, rows: Int32, **arguments: object) -> torch.Tensor:
        """Return the logits (R, V) of `rows`, in float32; the keywords go to the network."""
        kept = self._index(rows)
        if self._can_skip:
            arguments["logits_to_keep"] = kept
        output = self._model(input_ids=self._index(token_ids)[None], **arguments)
        logits: torch.Tensor = output.logits[0] if self._can_skip else output.logits[0, kept]
        return logits.float()


class Network(Protocol):
    """A network with its KV cache."""

    def logits(self, step: StepInput) -> torch.Tensor:
        """Run one step up to its logits (R, V)."""
        ...


class TransformersRunner:
    """A `Runner` on a network of transformers. Not thread safe: only one thread may call it."""

    is_causal = True
    is_healthy = True

    def __init__(
        self,
        network: Network,
        adapters: AdapterHooks,
        *,
        vocab_size: int,
        limits: RunnerLimits,
        info: RunnerInfo,
        num_parameters: int,
    ) -> None:
        self.vocab_size = vocab_size
        self.limits = limits
        self.info = info
        self.num_parameters = num_parameters
        self._network: Network | None = network
        self._adapters = adapters

    def execute(self, step: StepInput) -> StepOutput:
        return sample(self._logits(step), step)

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V): for tests and comparisons."""
        values: Float32 = self._logits(step).cpu().numpy()
        return values

    @property
    def adaptable(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each module that adapters can change, by its name."""
        return self._adapters.shapes

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        self._adapters.fill(slot, adapter)

    def close(self) -> None:
        self._network = None

    def _logits(self, step: StepInput) -> torch.Tensor:
        if self._network is None:
            raise EngineFailed("The runner is closed.")
        check_step(step, self.limits, vocab_size=self.vocab_size)
        if len(step.hidden_rows):
            raise EngineFailed("The step is invalid: the transformers backend returns no hidden states.")
        try:
            with computing():
                return self._network.logits(step)[:, : self.vocab_size]
        finally:
            self._adapters.clear()


def own_logits(model: torch.nn.Module, limits: RunnerLimits, vocab_size: int) -> torch.Tensor:
    """Return the logits of the test tokens by the network alone, without a cache."""
    tokens = _tokens(limits, vocab_size)
    with torch.inference_mode():
        return HeadCall(model).run(tokens, np.arange(len(tokens), dtype=np.int32), use_cache=False)


def check_logits(
    network: Network, expected: torch.Tensor, limits: RunnerLimits, vocab_size: int, *, is_rounded: bool
) -> None:
    """
    Compare the logits of the test tokens, computed in two chunks beside another sequence, with the network's own.

    `is_rounded`: the network computes in 16 bits, or rounds its inputs as LLM.int8 does. Raises `UnsupportedModel` if
    they differ.
    """
    tokens = _tokens(limits, vocab_size)
    cut = len(tokens) // 2
    has_other = limits.num_blocks > 1 and limits.max_step_sequences > 1
    other = tokens[:_NUM_OTHERS] if has_other else tokens[:0]
    steps = [_step([(tokens[:cut], 0, 0)]), _step([(tokens[cut:], cut, 0), (other, 0, 1)][: 1 + has_other])]
    with torch.inference_mode():
        actual = torch.cat([network.logits(step) for step in steps])
    wanted = torch.cat([expected, expected[: len(other)]])
    spread = (wanted - wanted.mean(dim=-1, keepdim=True)).norm()
    difference = ((actual - wanted).norm() / spread).item()
    if not difference < (_ROUNDED_TOLERANCE if is_rounded else _TOLERANCE):
        raise UnsupportedModel(f"its logits through the KV cache differ from its own by {difference:.0%}")


def _tokens(limits: RunnerLimits, vocab_size: int) -> Int32:
    count = min(_NUM_TOKENS, limits.block_tokens, limits.max_context_tokens, limits.max_step_tokens - _NUM_OTHERS)
    return ((np.arange(max(2, count)) * 7919 + 13) % vocab_size).astype(np.int32)


def _step(chunks: list[tuple[Int32, int, int]]) -> StepInput:
    """Return a step with all logits: tokens, context length and block of each sequence."""
    lengths = [len(tokens) for tokens, _, _ in chunks]
    num_tokens = sum(lengths)
    return StepInput(
        token_ids=np.concatenate([tokens for tokens, _, _ in chunks]),
        query_starts=np.cumsum([0, *lengths], dtype=np.int32),
        context_lens=np.array([context for _, context, _ in chunks], np.int32),
        block_tables=np.array([[block] for _, _, block in chunks], np.int32),
        rows=np.arange(num_tokens, dtype=np.int32),
        sampling=stack_sampling([{}] * num_tokens),
    )
