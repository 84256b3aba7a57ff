"""
Optional inputs of logit rows: biases, banned end tokens, history for penalties, a grammar.

Made once per sequence, kept through preemption and read by `step_input` in every step.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.structured_output.state import Constraint
from headrace.inference.runner.step import Bias, History

BiasArrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExtras:
    """The optional inputs of one sequence's logit rows."""

    needs_history: bool
    bias: BiasArrays | None
    """The request's own bias."""
    early_bias: BiasArrays | None
    """The request's bias with end tokens forbidden, used before `min_new_tokens`."""
    grammar: Constraint | None

    def history(self, sequence: Sequence, row: int, num_tokens: int) -> History | None:
        """Return the tokens that penalties count, if any is set, for a row that draws token number `num_tokens`."""
        if not self.needs_history:
            return None
        return History(row=row, tokens=sequence.tokens[:num_tokens], num_prompt_tokens=sequence.num_prompt_tokens)

    def row_bias(self, sequence: Sequence, row: int, num_tokens: int) -> Bias | None:
        """Return the bias of a row that draws token number `num_tokens`, if any."""
        is_early = num_tokens - sequence.num_prompt_tokens < sequence.params.min_new_tokens
        arrays = self.early_bias if is_early else self.bias
        return None if arrays is None else Bias(row=row, ids=arrays[0], values=arrays[1])


def make_extras(params: SamplingParams, *, end_ids: Iterable[int], grammar: Constraint | None) -> RowExtras | None:
    """
    Return what a request needs beyond its `SAMPLING_DTYPE` row, or None.

    A grammar decides when the answer may end: `min_new_tokens` does not apply with one.
    """
    needs_history = (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )
    banned = () if grammar is not None or params.min_new_tokens == 0 else tuple(end_ids)
    bias = _arrays(dict(params.logit_bias))
    early_bias = _arrays({**params.logit_bias, **dict.fromkeys(banned, -math.inf)})
    if not needs_history and early_bias is None and grammar is None:
        return None
    return RowExtras(needs_history=needs_history, bias=bias, early_bias=early_bias, grammar=grammar)


def _arrays(bias: dict[int, float]) -> BiasArrays | None:
    if not bias:
        return None
    return np.fromiter(bias.keys(), np.int32, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))
