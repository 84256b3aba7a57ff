"""Checks of the books that a scheduler and its block pool keep."""

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.inference.engine.core.blocks import BlockPool
from headrace.inference.engine.core.scheduler import Scheduler
from headrace.inference.engine.core.states import StatePool


def check_scheduler(scheduler: Scheduler) -> None:
    """Check that no block was lost or counted twice."""
    check_pool(scheduler.pool, [sequence.blocks for sequence in scheduler.running])
    assert not any(s.blocks or s.slot >= 0 for s in scheduler.waiting), "A waiting sequence holds blocks or a slot."
    if isinstance(scheduler.states, StatePool):
        check_states(scheduler, scheduler.states)


def check_states(scheduler: Scheduler, states: StatePool) -> None:
    """Check the slots between two steps: one for each running sequence, the rest blank or checkpoints with KV."""
    assert set(states._live) == set(scheduler.running)
    check_pool(states.slots, [[state.slot] for state in states._live.values()])
    for sequence, state in states._live.items():
        assert not state.snapshots, "A snapshot was neither kept nor dropped."
        assert state.read in (state.slot, -1) or state.num_stored_tokens, "A checkpoint is still read."
        assert sequence.num_computed_tokens - state.num_stored_tokens >= 0, "The state is ahead of the KV cache."
        assert all(border * scheduler._block_tokens > state.num_stored_tokens for border in state.borders)
    assert set(map(id, states._expected.values())) <= set(map(id, states._live.values()))
    if scheduler._limits.max_draft_tokens:
        return  # the KV of a block may be evicted before the draft tokens at its end are replayed
    lost = [block_hash for block_hash in states.slots._by_hash if scheduler.pool.find(block_hash) is None]
    assert not lost, "A checkpoint has no KV."


def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]] | None = None) -> None:
    """Check that a pool's state is consistent, and that its counts are those of `tables`, of all live sequences."""
    free = [*pool._blank, *pool._cached, *pool._kept]
    assert len(free) == pool.num_free == len(set(free)), "A block is free twice."
    assert not any(refs < 0 for refs in pool._num_refs), "A block was freed more often than it was taken."
    assert set(free) == {block for block, refs in enumerate(pool._num_refs) if refs == 0}, (
        "Free blocks and counts differ."
    )
    assert not any(pool._hashes[block] for block in pool._blank), "A blank block has a hash."
    assert all(pool._hashes[block] for block in (*pool._cached, *pool._kept)), "A cached block has no hash."
    assert not any(pool._hashes[block] in pool._num_keepers for block in pool._cached), "A kept block is not kept."
    assert all(pool._hashes[block] in pool._num_keepers for block in pool._kept), "A block is kept for nothing."
    assert {h: b for b, h in enumerate(pool._hashes) if h is not None} == pool._by_hash, "Hashes and index differ."
    if tables is not None:
        counted = Counter(block for table in tables for block in table)
        assert [counted[block] for block in range(pool.num_blocks)] == pool._num_refs, "References and tables differ."
