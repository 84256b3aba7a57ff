"""
Validate the shapes, limits and block tables of a step before a runner executes it.

The engine never builds a step that fails here. A failure is a bug, and must not read or write another sequence's KV
cache. Runners written in Python call this on every step.
"""

import numpy as np

from headrace.core.errors import EngineFailed
from headrace.inference.runner.step import Int32, RunnerLimits, StateStep, StepInput


def check_step(step: StepInput, limits: RunnerLimits, *, vocab_size: int, token_types: int = 0) -> None:
    """Raise `EngineFailed` for a step that the runner cannot execute; a token can have `token_types` types."""
    chunk_lens = np.diff(step.query_starts)
    num_tokens, num_sequences, num_rows = len(step.token_ids), len(step.context_lens), len(step.rows)
    _at_most("tokens", num_tokens, limits.max_step_tokens)
    _at_most("sequences", num_sequences, limits.max_step_sequences)
    _at_most("logit rows", num_rows, limits.max_step_rows)
    _require(len(step.query_starts) == num_sequences + 1, "query_starts must have one entry more than context_lens")
    _require(step.query_starts[0] == 0, "query_starts must begin at 0")
    _require(step.query_starts[-1] == num_tokens, "query_starts must end at the number of tokens")
    _require(bool((chunk_lens > 0).all()), "every sequence needs a token")
    _require(len(step.sampling) == num_rows, "every logit row needs its sampling")
    _require(bool((np.diff(step.rows) > 0).all()), "rows must be in ascending order")
    _require(_within(step.rows, num_tokens), "a logit row lies outside the step")
    _require(bool((np.diff(step.hidden_rows) > 0).all()), "hidden_rows must be in ascending order")
    _require(_within(step.hidden_rows, num_tokens), "a hidden row lies outside the step")
    both = np.intersect1d(step.rows, step.hidden_rows, assume_unique=True)
    _require(len(both) == 0, "a row cannot be both a logit row and a hidden row")
    _require(_within(step.token_ids, vocab_size), "a token id lies outside the vocabulary")
    if step.token_types is not None:
        _require(step.token_types.shape == (num_tokens,), "token_types must have one entry for each token")
        _require(_within(step.token_types, token_types), "a token has a type that does not exist")
    if step.adapters is not None:
        _require(step.adapters.shape == (num_sequences,), "adapters must have one entry for each of context_lens")
        _require(
            _within(step.adapters + 1, limits.max_adapters + 1), "a sequence names an adapter slot that is missing"
        )
    _at_most("tokens in a context", int((step.context_lens + chunk_lens).max()), limits.max_context_tokens)
    _check_blocks(step, limits)
    _require((step.states is not None) == (limits.num_state_slots > 0), "states are for models with state layers only")
    if step.states is not None:
        _check_states(step.states, step.context_lens, chunk_lens, limits)


def token_slots(block_table: Int32, num_tokens: int, block_tokens: int) -> Int32:
    """Return the cache slots of the first `num_tokens` tokens of a sequence: `block * block_tokens + offset`."""
    positions = np.arange(num_tokens, dtype=np.int32)
    return block_table[positions // block_tokens] * block_tokens + positions % block_tokens


def _check_blocks(step: StepInput, limits: RunnerLimits) -> None:
    """Check that blocks exist and that no slot is written twice."""
    written = []
    for sequence, (context, chunk) in enumerate(zip(step.context_lens, np.diff(step.query_starts), strict=True)):
        total = int(context + chunk)
        num_blocks = -(-total // limits.block_tokens)
        _require(num_blocks <= step.block_tables.shape[1], f"the block table of sequence {sequence} is too short")
        table = step.block_tables[sequence]
        _require(
            _within(table[:num_blocks], limits.num_blocks),
            f"the block table of sequence {sequence} has a block that does not exist",
        )
        written.append(token_slots(table, total, limits.block_tokens)[context:])
    slots = np.concatenate(written)
    _require(len(np.unique(slots)) == len(slots), "two tokens of the step share a slot of the KV cache")


def _check_states(states: StateStep, context_lens: Int32, chunk_lens: Int32, limits: RunnerLimits) -> None:
    """Check that state slots exist, that none is written twice, and that none is read by one and written by another."""
    by_sequence = (states.read, states.write, states.replayed, states.certain)
    _require(
        all(values.shape == context_lens.shape for values in by_sequence),
        "the entries of states must have one value for each of context_lens",
    )
    _require(_within(states.read + 1, limits.num_state_slots + 1), "a sequence reads a state slot that does not exist")
    _require(_within(states.write, limits.num_state_slots), "a sequence writes a state slot that does not exist")
    _require(bool(((states.read < 0) == (context_lens == 0)).all()), "only new sequences start without a state")
    _require(_within(states.certain - 1, limits.max_step_tokens), "every sequence needs a certain token")
    drafts = chunk_lens - states.certain
    _require(_within(drafts, limits.max_draft_tokens + 1), f"expected 0 to {limits.max_draft_tokens} draft tokens")
    _require(_within(states.replayed, limits.max_draft_tokens + 1), "more draft tokens are replayed than a slot keeps")
    _require(bool((states.replayed <= context_lens).all()), "more draft tokens are replayed than were computed")
    _check_snapshots(states, limits)


def _check_snapshots(states: StateStep, limits: RunnerLimits) -> None:
    _require(states.snapshots.ndim == 2 and states.snapshots.shape[1] == 3, "snapshots must have the shape (C, 3)")
    sequences, tokens, slots = states.snapshots.T
    _require(_within(sequences, len(states.read)), "a snapshot is of a sequence that does not exist")
    _require(_within(slots, limits.num_state_slots), "a snapshot has a state slot that does not exist")
    known = (states.replayed + states.certain)[sequences]
    _require(bool(((tokens > 0) & (tokens <= known)).all()), "a snapshot is not after a known token")
    places = sequences.astype(np.int64) << 32 | tokens
    _require(bool((np.diff(places) > 0).all()), "snapshots must be in ascending order")
    written = np.concatenate([states.write, slots])
    _require(len(np.unique(written)) == len(written), "a state slot is written twice")
    elsewhere = states.read[states.read != states.write]
    _require(not np.isin(elsewhere, written).any(), "a state slot is read by one sequence and written by another")


def _within(values: Int32, stop: int) -> bool:
    return bool(((values >= 0) & (values < stop)).all())


def _at_most(name: str, count: int, limit: int) -> None:
    _require(count <= limit, f"{count} {name}; expected at most {limit}")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise EngineFailed(f"The step is invalid: {problem}.")
