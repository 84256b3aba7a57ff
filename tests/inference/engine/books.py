"""Checks of the books that a scheduler and its block pool keep."""

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.inference.engine.core.blocks import BlockPool
from headrace.inference.engine.core.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Check that no block was lost or counted twice."""
    check_pool(scheduler.pool, [sequence.blocks for sequence in scheduler.running])
    assert not any(s.blocks or s.slot >= 0 for s in scheduler.waiting), "A waiting sequence holds blocks or a slot."


def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]] | None = None) -> None:
    """Check that a pool's state is consistent, and that its counts are those of `tables`, of all live sequences."""
    ring = free_ring(pool)
    assert len(ring) == pool.num_free == len(set(ring)), (
        f"{len(ring)} free blocks in the ring, {pool.num_free} counted."
    )
    assert not any(refs < 0 for refs in pool._num_refs), "A block was freed more often than it was taken."
    assert set(ring) == {block for block, refs in enumerate(pool._num_refs) if refs == 0}, (
        "Used blocks are in the ring."
    )
    assert {h: b for b, h in enumerate(pool._hashes) if h is not None} == pool._by_hash, "Hashes and index differ."
    if tables is not None:
        counted = Counter(block for table in tables for block in table)
        assert [counted[block] for block in range(pool.num_blocks)] == pool._num_refs, "References and tables differ."


def free_ring(pool: BlockPool) -> list[int]:
    ring: list[int] = []
    block = pool._next[pool._end]
    while block != pool._end and len(ring) <= pool.num_blocks:
        assert pool._prev[pool._next[block]] == block, f"The free ring is torn at block {block}."
        ring.append(block)
        block = pool._next[block]
    return ring
