"""
Conversion of a step plan to the arrays that a runner reads.

Values that stay the same from step to step (block tables, sampling rows) are kept in persistent arrays, one row per
slot, written when a sequence is admitted or gets a block. A step only gathers rows, so 64 decoding sequences cost a few
numpy calls; while the same sequences decode one token per step, the gathered arrays are reused. A sequence may have any
number of logit rows in a step: none during prefill, many while its prompt is scored or draft tokens are verified.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from headrace.core.generation import SamplingParams
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.step_plan import StepPlan
from headrace.inference.engine.structured_output.constraint import Constraint, GrammarMasks
from headrace.inference.runner.step import SAMPLING_DTYPE, Bias, History, Mask, RunnerLimits, StepInput

Int32 = npt.NDArray[np.int32]
BiasArrays = tuple[Int32, npt.NDArray[np.float32]]
SamplingRows = npt.NDArray[np.void]

_SEED_MASK = 2**64 - 1
_SAMPLING_FIELDS = (
    "temperature", "top_p", "min_p", "typical_p", "top_k",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExtras:
    """
    The optional inputs of one sequence's logit rows: biases, banned end tokens, history for penalties, a grammar.

    Made once per sequence, kept through preemption and read in every step.
    """

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


@dataclass(slots=True)
class LogitRows:
    """The purpose of each logit row of a step (drawing or scoring) and of each hidden row (pooling)."""

    drawing: list[tuple[Sequence, int, int]] = field(default_factory=list)
    """
    Sequence, first row and number of rows that draw a token, decoding sequences first: one row, plus one per draft
    token, which assumes the drafts before it to be right.
    """
    scoring: list[tuple[Sequence, int, int]] = field(default_factory=list)
    """Sequence, first row and number of rows that score its prompt."""
    pooling: list[tuple[Sequence, int, int]] = field(default_factory=list)
    """Sequence, first hidden row and number of hidden rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStep:
    """A step of plain decoding, reused while the same sequences with the same blocks decode."""

    sequences: list[Sequence]
    step: StepInput
    logit_rows: LogitRows


class StepBuilder:
    """Builds the `StepInput` of each step. One per engine."""

    def __init__(self, limits: RunnerLimits, *, max_num_seqs: int, masks: GrammarMasks) -> None:
        max_blocks = -(-limits.max_context_tokens // limits.block_tokens)
        self._tables = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._table_lens = [0] * max_num_seqs
        self._sampling = np.zeros(max_num_seqs, SAMPLING_DTYPE)
        self._extras: dict[int, RowExtras] = {}
        """Extras by slot."""
        self._masks = masks
        self._cached: CachedStep | None = None
        """The last step, if the next one may reuse it."""

    def admit(self, sequence: Sequence, extras: RowExtras | None) -> None:
        """Write the persistent rows of a sequence that was given a slot."""
        slot = sequence.slot
        self._cached = None
        self._sampling[slot] = sampling_row(sequence.params, sequence.seed)
        self._table_lens[slot] = 0
        self._extras.pop(slot, None)
        if extras is not None:
            self._extras[slot] = extras

    def build(self, plan: StepPlan) -> tuple[StepInput, LogitRows]:
        """Gather the arrays of one step."""
        sequences = plan.sequences
        # Tables only grow while a sequence runs, so a changed length means new blocks.
        for sequence in sequences:
            slot, blocks = sequence.slot, sequence.blocks
            written = self._table_lens[slot]
            if len(blocks) != written:
                self._cached = None
                self._tables[slot, written : len(blocks)] = blocks[written:]
                self._table_lens[slot] = len(blocks)
        # Without chunks and drafts, only tokens, lengths and positions differ from step to step.
        is_plain = plan.num_tokens == len(sequences) == plan.num_decodes
        if is_plain and self._cached is not None and self._cached.sequences == sequences:
            return self._next_of(self._cached, plan), self._cached.logit_rows
        step, logit_rows = self._gather(plan)
        self._cached = CachedStep(sequences=sequences, step=step, logit_rows=logit_rows) if is_plain else None
        return step, logit_rows

    def _next_of(self, cached: CachedStep, plan: StepPlan) -> StepInput:
        step = cached.step
        sampling = step.sampling.copy()
        sampling["position"] = [s.num_tokens for s in cached.sequences]
        histories, biases, masks = self._extra_rows(cached.logit_rows)
        return StepInput(
            token_ids=_newest_tokens(cached.sequences),
            query_starts=step.query_starts,
            context_lens=_context_lens(cached.sequences),
            block_tables=step.block_tables,
            adapters=step.adapters,
            states=plan.states,
            rows=step.rows,
            sampling=sampling,
            histories=histories,
            biases=biases,
            masks=masks,
        )

    def _gather(self, plan: StepPlan) -> tuple[StepInput, LogitRows]:
        sequences = plan.sequences
        slots = np.array([s.slot for s in sequences], np.int64)
        starts = np.zeros(len(sequences) + 1, np.int32)
        np.cumsum(plan.counts, out=starts[1:])
        adapters = [s.adapter_slot for s in sequences]
        most_blocks = max(len(s.blocks) for s in sequences)
        rows, sampling, logit_rows = self._rows(plan, slots, starts)
        hidden_rows = _hidden_rows(plan, starts, logit_rows)
        histories, biases, masks = self._extra_rows(logit_rows)
        step = StepInput(
            token_ids=_token_ids(plan),
            query_starts=starts,
            context_lens=_context_lens(sequences),
            block_tables=np.ascontiguousarray(self._tables[slots, :most_blocks]),
            adapters=np.array(adapters, np.int32) if max(adapters) >= 0 else None,
            token_types=_token_types(sequences, starts),
            states=plan.states,
            rows=rows,
            hidden_rows=hidden_rows,
            sampling=sampling,
            histories=histories,
            biases=biases,
            masks=masks,
        )
        return step, logit_rows

    def _rows(
        self, plan: StepPlan, slots: npt.NDArray[np.int64], starts: Int32
    ) -> tuple[Int32, SamplingRows, LogitRows]:
        # Decoding sequences have a logit row for each of their tokens, which lie at the front of the step.
        num_decodes = plan.num_decodes
        decoding, counts = plan.sequences[:num_decodes], plan.counts[:num_decodes]
        logit_rows = LogitRows(drawing=list(zip(decoding, starts.tolist(), counts, strict=False)))
        num_rows = int(starts[num_decodes])
        rows = [np.arange(num_rows, dtype=np.int32)]
        sampling = self._sampling[np.repeat(slots[:num_decodes], counts)]
        # The position selects the random number: token `i` of a sequence is drawn with number `i`, drafted or not.
        first_positions = np.array([s.num_tokens for s in decoding], np.int64)
        sampling["position"] = np.repeat(first_positions - starts[:num_decodes], counts) + rows[0]
        samplings = [sampling]
        # A chunk has a row for each prompt token that it scores, and one that draws if it reaches the newest token
        # of a sequence that may get another one.
        for index in range(num_decodes, len(plan.sequences)):
            sequence, count, start = plan.sequences[index], plan.counts[index], int(starts[index])
            first, num_scored = _scored(sequence, count)
            if num_scored:
                logit_rows.scoring.append((sequence, num_rows, num_scored))
                offset = start + first - sequence.num_computed_tokens
                rows.append(np.arange(offset, offset + num_scored, dtype=np.int32))
                samplings.append(_scoring_rows(sequence, first, num_scored))
                num_rows += num_scored
            if sequence.num_computed_tokens + count == sequence.num_tokens < sequence.max_total_tokens:
                logit_rows.drawing.append((sequence, num_rows, 1))
                rows.append(np.array([start + count - 1], np.int32))
                drawn = self._sampling[slots[index : index + 1]]
                drawn["position"] = sequence.num_tokens
                samplings.append(drawn)
                num_rows += 1
        if len(rows) == 1:
            return rows[0], sampling, logit_rows
        return np.concatenate(rows), np.concatenate(samplings), logit_rows

    def _extra_rows(self, logit_rows: LogitRows) -> tuple[tuple[History, ...], tuple[Bias, ...], tuple[Mask, ...]]:
        if not self._extras:
            return (), (), ()
        histories, biases = [], []
        grammars: list[tuple[int, Constraint]] = []
        for sequence, first_row, count in logit_rows.drawing:
            extras = self._extras.get(sequence.slot)
            if extras is None:
                continue
            for drafted in range(count):
                row, num_tokens = first_row + drafted, sequence.num_tokens + drafted
                if (history := extras.history(sequence, row, num_tokens)) is not None:
                    histories.append(history)
                if (bias := extras.row_bias(sequence, row, num_tokens)) is not None:
                    biases.append(bias)
                if extras.grammar is not None:
                    grammars.append((row, extras.grammar))
        # All missing masks at once, on two threads.
        self._masks.prepare(grammar for _, grammar in grammars)
        masks = tuple(Mask(row=row, words=grammar.mask()) for row, grammar in grammars)
        return tuple(histories), tuple(biases), masks

    def release(self, slot: int) -> None:
        self._extras.pop(slot, None)


def make_extras(params: SamplingParams, end_ids: Collection[int], grammar: Constraint | None) -> RowExtras | None:
    """
    Return what a request needs beyond its `SAMPLING_DTYPE` row, or None.

    A grammar decides when the answer may end: `min_new_tokens` does not apply with one.
    """
    needs_history = any((params.repetition_penalty != 1.0, params.presence_penalty, params.frequency_penalty))
    banned = () if params.grammar is not None or params.min_new_tokens == 0 else end_ids
    bias, early_bias = _arrays(params.logit_bias, ()), _arrays(params.logit_bias, banned)
    if not needs_history and early_bias is None and grammar is None:
        return None
    return RowExtras(needs_history=needs_history, bias=bias, early_bias=early_bias, grammar=grammar)


def _arrays(bias: Mapping[int, float], banned: Collection[int]) -> BiasArrays | None:
    """Return the biases of tokens and of the banned ones, which may be the whole vocabulary."""
    kept = {token_id: value for token_id, value in bias.items() if token_id not in banned}
    values = np.full(len(kept) + len(banned), -math.inf, np.float32)
    values[: len(kept)] = [*kept.values()]
    return (np.fromiter(chain(kept, banned), np.int32, len(values)), values) if len(values) else None


def sampling_row(params: SamplingParams, seed: int) -> SamplingRows:
    """Return the (1,) row of `SAMPLING_DTYPE` for these parameters; `position` is set in each step."""
    row = np.zeros(1, SAMPLING_DTYPE)
    row["seed"] = np.uint64(seed & _SEED_MASK)
    for name in _SAMPLING_FIELDS:
        row[name] = getattr(params, name)
    row["num_top"] = -1 if params.logprobs is None else params.logprobs
    row["target"] = -1
    return row


def _context_lens(sequences: list[Sequence]) -> Int32:
    return np.array([s.num_computed_tokens for s in sequences], np.int32)


def _token_types(sequences: list[Sequence], starts: Int32) -> Int32 | None:
    """Return the type of each token of the step; None if all are of type 0."""
    if all(s.second_start < 0 for s in sequences):
        return None
    types = np.zeros(starts[-1], np.int32)
    for sequence, start, stop in zip(sequences, starts[:-1], starts[1:], strict=True):
        if sequence.second_start >= 0:
            types[start + max(0, sequence.second_start - sequence.num_computed_tokens) : stop] = 1
    return types


def _newest_tokens(decoding: list[Sequence]) -> Int32:
    return np.array([s.tokens[s.num_computed_tokens] for s in decoding], np.int32)


def _token_ids(plan: StepPlan) -> Int32:
    num_single = 0 if plan.num_drafted else plan.num_decodes
    single = _newest_tokens(plan.sequences[:num_single])
    if num_single == len(plan.sequences):
        return single
    chunks = [single]
    for sequence, count in zip(plan.sequences[num_single:], plan.counts[num_single:], strict=True):
        start = sequence.num_computed_tokens
        chunks.append(sequence.tokens[start : start + count])
    return np.concatenate(chunks)


def _hidden_rows(plan: StepPlan, starts: Int32, logit_rows: LogitRows) -> Int32:
    """Return the rows of the step that are pooled, and record the sequences that they belong to."""
    rows: list[Int32] = []
    num_rows = 0
    for index in range(plan.num_decodes, len(plan.sequences)):
        sequence = plan.sequences[index]
        if sequence.pool is None:
            continue
        needed = sequence.pool.needed(sequence.num_computed_tokens, plan.counts[index])
        if needed:
            offset = int(starts[index]) - sequence.num_computed_tokens
            rows.append(np.arange(needed.start + offset, needed.stop + offset, dtype=np.int32))
            logit_rows.pooling.append((sequence, num_rows, len(needed)))
            num_rows += len(needed)
    return np.concatenate(rows) if rows else np.empty(0, np.int32)


def _scored(sequence: Sequence, count: int) -> tuple[int, int]:
    """Return the first position of the chunk that scores the prompt token after it, and their number."""
    if not sequence.scores_prompt:
        return 0, 0
    first = max(sequence.num_computed_tokens, sequence.num_scored_tokens)
    last = min(sequence.num_computed_tokens + count, sequence.num_prompt_tokens - 1)
    return first, max(0, last - first)


def _scoring_rows(sequence: Sequence, first: int, count: int) -> SamplingRows:
    rows = np.zeros(count, SAMPLING_DTYPE)
    rows["position"] = np.arange(first + 1, first + 1 + count)
    rows["target"] = sequence.tokens[first + 1 : first + 1 + count]
    rows["num_top"] = sequence.params.prompt_logprobs
    for name in ("top_p", "typical_p", "repetition_penalty"):
        rows[name] = 1
    return rows
