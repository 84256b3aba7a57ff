"""
Prefixes in a store below the prefix cache, which outlives the engine: read back at admission, offered as they fill.

A sequence whose next blocks are in the store waits while a thread of the store reads them into blocks of the pool, and
other sequences run. It is then admitted as if the blocks had been cached all along. A model with state layers also
needs the state after the last of them, which is read into a slot.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from headrace.inference.engine.core.blocks import BlockPool
from headrace.inference.engine.core.sequence import Sequence
from headrace.inference.engine.core.states import NoStates

Kind = Literal["kv", "state"]


class StoreKey(NamedTuple):
    """The KV of a block, or the state after it."""

    kind: Kind
    block_hash: bytes


class Offer(NamedTuple):
    """A row of memory that the store may keep, for as long as the pool does not allocate it again."""

    key: StoreKey
    row: int
    depth: int
    """Blocks before it in its prompt."""
    pool: BlockPool
    version: int

    @property
    def is_valid(self) -> bool:
        """True while the row holds what was offered; may be read on any thread."""
        return self.pool.versions[self.row] == self.version


@dataclass(slots=True, eq=False)
class BlockRead:
    """Rows that the store fills, the state after the blocks last."""

    rows: list[tuple[StoreKey, int]] = field(default_factory=list)
    intact: set[StoreKey] = field(default_factory=set)
    """Those that it had."""
    held: list[int] = field(default_factory=list)
    """The blocks of the whole prefix, none of which is evicted meanwhile."""


class BlockStore(Protocol):
    """Keeps rows of memory by key. Its methods are called by the scheduler and return at once."""

    def has(self, key: StoreKey) -> bool: ...

    def offer(self, offers: list[Offer]) -> None:
        """Keep these rows later, unless there are too many of them."""
        ...

    def begin_read(self, read: BlockRead) -> None:
        """Fill rows on another thread, which then reports the read as finished."""
        ...


class StoredBlocks:
    """The reads from a store that are under way, and what is offered to it; without a store it does nothing."""

    def __init__(self, pool: BlockPool, states: NoStates) -> None:
        self.store: BlockStore | None = None
        self.num_read_blocks = 0
        """KV blocks that were read intact."""
        self._pool = pool
        self._states = states
        self._reading: dict[bytes, BlockRead] = {}
        self._reads: set[BlockRead] = set()

    def attach(self, store: BlockStore) -> None:
        """Read from this store and offer to it from now on."""
        self.store = store
        self._states.on_checkpoint = self._offer_state

    @property
    def num_reads(self) -> int:
        return len(self._reads)

    def is_reading(self, block_hash: bytes) -> bool:
        return block_hash in self._reading

    def begin_read(self, sequence: Sequence, *, num_reused: int, most: int) -> bool:
        """
        Read the blocks of a waiting sequence that are stored; return False if there are none.

        `num_reused` blocks are in the pool, at most `most` can be shared, and the sequence fits into the pool.
        """
        count = 0 if self.store is None else self._num_available(self.store, sequence, num_reused, most)
        if self.store is None or count <= num_reused:
            return False
        read, missing = BlockRead(), []
        for block_hash in sequence.hashes[:count]:
            block = self._pool.find(block_hash)
            if block is None:
                missing.append(block_hash)
            else:
                self._pool.share(block)
            read.held.append(-1 if block is None else block)
        for block_hash, block in zip(missing, self._pool.allocate(len(missing)), strict=True):
            read.held[read.held.index(-1)] = block
            read.rows.append((StoreKey("kv", block_hash), block))
            self._reading[block_hash] = read
        last = sequence.hashes[count - 1]
        if self._states.lacks(last):
            read.rows.append((StoreKey("state", last), self._states.take_slot()))
        self._reads.add(read)
        self.store.begin_read(read)
        return True

    def finish_read(self, read: BlockRead) -> None:
        """Move what was read into the prefix cache."""
        self._reads.remove(read)
        for key, row in read.rows:
            if key.kind == "state":
                is_usable = key in read.intact and self._pool.find(key.block_hash) is not None
                self._states.give_slot(row, key.block_hash if is_usable else None)
                continue
            del self._reading[key.block_hash]
            if key in read.intact:
                self._pool.register(row, key.block_hash)
                self.num_read_blocks += 1
        self._pool.free(read.held)

    def offer(self, sequence: Sequence, first: int, last: int) -> None:
        """Offer the full blocks `first..last - 1` of a sequence."""
        if self.store is not None and first < last:
            versions = self._pool.versions
            self.store.offer(
                [
                    Offer(StoreKey("kv", sequence.hashes[index]), block, index, self._pool, versions[block])
                    for index, block in enumerate(sequence.blocks[first:last], first)
                ]
            )

    def _offer_state(self, slots: BlockPool, slot: int, block_hash: bytes, num_blocks: int) -> None:
        if self.store is not None:
            self.store.offer([Offer(StoreKey("state", block_hash), slot, num_blocks, slots, slots.versions[slot])])

    def _num_available(self, store: BlockStore, sequence: Sequence, num_reused: int, most: int) -> int:
        """Return how many leading blocks could be reused after a read, up to the last one with a state."""
        hashes = sequence.hashes
        count = max(num_reused, sequence.num_found_blocks)
        while count < most and (store.has(StoreKey("kv", hashes[count])) or self._pool.find(hashes[count]) is not None):
            count += 1
        while count > num_reused and not self._can_continue(store, hashes[count - 1]):
            count -= 1
        return count

    def _can_continue(self, store: BlockStore, block_hash: bytes) -> bool:
        """Return whether a sequence can go on after this block once it has been read."""
        if not self._states.lacks(block_hash):
            return True
        return self._states.has_spare_slot and store.has(StoreKey("state", block_hash))
