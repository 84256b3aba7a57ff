"""The block pool never loses a block, never allocates one twice, and evicts the least recently used."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.session import Session
from headrace.inference.engine.core.blocks import BlockPool, SessionBlocks, chain_hash, root_hash
from tests.inference.engine.books import check_pool

NUM_BLOCKS = 12


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables are taken, shared, registered and freed at random; the pool's books are compared with our own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.sessions = SessionBlocks(self.pool)
        self.tables: list[list[int]] = []
        self.num_hashes = 0

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            return
        used = {block for table in self.tables for block in table}
        table = self.pool.allocate(count)
        assert len(set(table)) == count
        assert not used & set(table)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), is_new=st.booleans())
    def register(self, data: st.DataObject, is_new: bool) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        number = self.num_hashes if is_new else data.draw(st.integers(0, max(0, self.num_hashes - 1)))
        self.num_hashes += is_new
        self.pool.register(data.draw(st.sampled_from(table)), chain_hash(b"", b"%d" % number))

    @rule(data=st.data())
    def share_a_cached_block(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.num_hashes))
        block = self.pool.find(chain_hash(b"", b"%d" % number))
        if block is not None:
            self.pool.share(block)
            self.tables.append([block])

    @rule(data=st.data(), session=st.sampled_from("abc"), is_over=st.booleans())
    def keep(self, data: st.DataObject, session: str, is_over: bool) -> None:
        number = data.draw(st.integers(0, self.num_hashes))
        hashes = [chain_hash(b"", b"%d" % (number + more)) for more in range(4)]
        self.sessions.update(Session(session, expires_s=0.0 if is_over else math.inf), hashes)

    @rule(block_hash=st.integers(0, 40).map(lambda number: chain_hash(b"", b"%d" % number)), forgets=st.booleans())
    def touch(self, block_hash: bytes, forgets: bool) -> None:
        (self.pool.forget if forgets else self.pool.touch)(block_hash)

    @invariant()
    def books_balance(self) -> None:
        kept = [len(hashes) for _, hashes in self.sessions._kept.values()]
        assert self.sessions._num_kept == sum(kept) <= NUM_BLOCKS // 2
        check_pool(self.pool, self.tables)


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached = pool.allocate(2)
    for number, block in enumerate(cached):
        pool.register(block, chain_hash(b"", b"%d" % number))
    pool.free(cached)
    assert set(pool.allocate(2)).isdisjoint(cached)
    assert pool.num_cached == 2


def test_the_tail_of_the_least_recently_used_table_is_evicted_first() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for block in (*old, *new):
        pool.register(block, chain_hash(b"", b"%d" % block))
    pool.free(old)
    pool.free(new)
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]
    assert pool.num_cached == 0


def test_a_cached_block_is_found_by_its_hash() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    name = chain_hash(root_hash(""), b"tokens")
    pool.register(block, name)
    pool.free([block])
    assert pool.find(name) == block
    pool.share(block)
    assert pool.num_free == 1
    check_pool(pool, [[block]])


def test_salts_give_different_hashes() -> None:
    assert chain_hash(root_hash("a"), b"x") != chain_hash(root_hash("b"), b"x")


def test_a_double_free_is_detected() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    pool.free(blocks)
    with pytest.raises(AssertionError):
        check_pool(pool)


def test_a_lost_block_is_detected() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="tables differ"):
        check_pool(pool, [])


def test_blocks_of_a_session_are_evicted_last_until_it_ends() -> None:
    pool = BlockPool(8)
    sessions = SessionBlocks(pool)
    mine = Session("mine", expires_s=math.inf)
    blocks = pool.allocate(8)
    hashes = [chain_hash(b"", b"%d" % block) for block in blocks]
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.register(block, block_hash)
    sessions.update(mine, hashes[:3])
    pool.free(blocks)

    def evicted(count: int) -> list[int]:
        taken = pool.allocate(count)
        pool.free(taken)
        return [number for number, block_hash in enumerate(hashes) if pool.find(block_hash) is None]

    assert evicted(5) == [3, 4, 5, 6, 7], "the session's are the oldest"
    assert evicted(6) == [2, 3, 4, 5, 6, 7], "its tail goes first"
    mine.is_closed = True
    sessions.update(Session("other", expires_s=math.inf), [])
    assert not pool._kept
    assert evicted(7) == [1, 2, 3, 4, 5, 6, 7]


def test_sessions_keep_half_of_the_blocks_and_the_last_used_ones_win() -> None:
    sessions = SessionBlocks(BlockPool(8))
    for name, count in (("a", 2), ("b", 2), ("a", 2), ("c", 2), ("d", 0)):
        sessions.update(
            Session(name, expires_s=math.inf), [chain_hash(name.encode(), b"%d" % number) for number in range(count)]
        )
    assert list(sessions._kept) == ["a", "c"]
    sessions.update(Session("e", expires_s=math.inf), [chain_hash(b"e", b"%d" % number) for number in range(9)])
    assert (list(sessions._kept), sessions._num_kept) == (["e"], 4)
