"""The block pool never loses a block, never allocates one twice, and evicts the least recently used."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.inference.engine.core.blocks import BlockPool, chain_hash, root_hash
from tests.inference.engine.books import check_pool

NUM_BLOCKS = 12


class BlockPoolMachine(RuleBasedStateMachine):
    """Tables are taken, shared, registered and freed at random; the pool's books are compared with our own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
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

    @invariant()
    def books_balance(self) -> None:
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
