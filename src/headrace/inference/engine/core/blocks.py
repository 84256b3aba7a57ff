"""
The bookkeeping of the paged KV cache: reference counts, the prefix cache and eviction.

Used by the scheduler only. This module knows block numbers and hashes, but no tensors or sequences.

A block is in one of three states:

    used      num_refs > 0: one or more sequences have it in their table
    cached    num_refs == 0 and it has a hash: its KV is valid for a prompt with the same prefix
    blank     num_refs == 0 and no hash

Cached and blank blocks are both free: blank ones are a stack, cached ones are kept from least to most recently used. So
every operation is O(1) per block and eviction is LRU. Blocks that stateful sessions keep are evicted after all others.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

from headrace.core.session import Session

HASH_BYTES = 16


def root_hash(salt: str) -> bytes:
    """Return the parent hash of first blocks under this salt; different salts never share blocks."""
    return blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"headrace.root").digest()


def chain_hash(parent: bytes, token_bytes: bytes) -> bytes:
    """Return the hash of a full block, which depends on the salt and all tokens up to its end."""
    return blake2b(parent + token_bytes, digest_size=HASH_BYTES).digest()


class BlockPool:
    """Allocates blocks `0..num_blocks - 1`, counts references and finds cached blocks by hash."""

    def __init__(self, num_blocks: int, *, on_evict: Callable[[bytes], None] | None = None) -> None:
        """Create a pool of blank blocks; `on_evict` is called with the hashes of cached blocks that are evicted."""
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._blank = list(range(num_blocks - 1, -1, -1))
        # Not a dict, which would skip the entries of evicted blocks at its front, one by one.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Cached blocks whose hash has a keeper."""
        self._num_keepers: Counter[bytes] = Counter()
        self._num_refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self.versions = [0] * num_blocks
        """Times that each block was allocated: while it does not change, a full block keeps its contents."""

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached) + len(self._kept)

    @property
    def num_cached(self) -> int:
        """The number of blocks registered by hash, used ones included."""
        return len(self._by_hash)

    def is_free(self, block: int) -> bool:
        """Return whether the block has no references (it may be cached)."""
        return self._num_refs[block] == 0

    def allocate(self, count: int) -> list[int]:
        """Allocate blank blocks, then evict the least recently used cached ones; `count` blocks must be free."""
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        blocks = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = (self._cached or self._kept).popitem(last=False)
                evicted, self._hashes[block] = self._hashes[block], None
                if evicted is not None:
                    del self._by_hash[evicted]
                    if self._on_evict is not None:
                        self._on_evict(evicted)
            self._num_refs[block] = 1
            self.versions[block] += 1
            blocks.append(block)
        return blocks

    def find(self, block_hash: bytes) -> int | None:
        """Return the block with this hash, if any."""
        return self._by_hash.get(block_hash)

    def share(self, block: int) -> None:
        """Add a reference to a block returned by `find`."""
        if self._num_refs[block] == 0:
            del self._queue(self._hashes[block])[block]
        self._num_refs[block] += 1

    def register(self, block: int, block_hash: bytes) -> None:
        """
        Register a full, computed block under its hash.

        A second block with the same contents stays private: tables are append-only, so duplicates are not merged.
        """
        if block_hash not in self._by_hash and self._hashes[block] is None:
            self._by_hash[block_hash] = block
            self._hashes[block] = block_hash

    def touch(self, block_hash: bytes) -> None:
        """Evict the block with this hash, if any, after all that are cached now."""
        block, queue = self._by_hash.get(block_hash), self._queue(block_hash)
        if block is not None and block in queue:
            queue.move_to_end(block)

    def forget(self, block_hash: bytes) -> None:
        """Drop this hash, if a block has it; the block becomes blank unless it is used."""
        block = self._by_hash.pop(block_hash, None)
        if block is None:
            return
        self._hashes[block] = None
        queue = self._queue(block_hash)
        if block in queue:
            del queue[block]
            self._blank.append(block)

    def keep(self, block_hash: bytes) -> None:
        """Evict the block with this hash, now or later registered, only after those without a keeper."""
        self._move(block_hash, 1)

    def unkeep(self, block_hash: bytes) -> None:
        """Undo one `keep`."""
        self._move(block_hash, -1)

    def free(self, blocks: Sequence[int], *, is_cold: bool = False) -> None:
        """Drop one reference to each block of a table; the tail is evicted before the head, `is_cold` before all."""
        for block in reversed(blocks):
            self._num_refs[block] -= 1
            if self._num_refs[block] == 0:
                if self._hashes[block] is None:
                    self._blank.append(block)
                else:
                    queue = self._queue(self._hashes[block])
                    queue[block] = None
                    if is_cold:
                        queue.move_to_end(block, last=False)

    def _queue(self, block_hash: bytes | None) -> OrderedDict[int, None]:
        return self._kept if block_hash in self._num_keepers else self._cached

    def _move(self, block_hash: bytes, num_keepers: int) -> None:
        """Add or remove keepers of a hash; its block, if it is cached, goes to the end of its queue."""
        block, queue = self._by_hash.get(block_hash), self._queue(block_hash)
        self._num_keepers[block_hash] += num_keepers
        if not self._num_keepers[block_hash]:
            del self._num_keepers[block_hash]
        if block is not None and block in queue:
            del queue[block]
            self._queue(block_hash)[block] = None


class SessionBlocks:
    """
    The blocks of a pool that stateful sessions keep: those of the last prompt and answer of each.

    Together at most half of the pool, the most recently used sessions first.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._max_blocks = pool.num_blocks // 2
        self._kept: OrderedDict[str, tuple[Session, list[bytes]]] = OrderedDict()
        self._num_kept = 0

    def update(self, session: Session, hashes: Sequence[bytes]) -> None:
        """Keep these blocks for a session, instead of those before; let go those of sessions that have ended."""
        for kept_session, _ in [*self._kept.values()]:
            if kept_session.has_ended:
                self._let_go(kept_session.id)
        kept = [] if session.has_ended else list(hashes[: self._max_blocks])
        for block_hash in reversed(kept):  # before those of the last turn, most of which are the same, are let go
            self._pool.keep(block_hash)
        self._let_go(session.id)
        if kept:
            self._kept[session.id] = session, kept
            self._num_kept += len(kept)
        while self._num_kept > self._max_blocks:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, session_id: str) -> None:
        _, hashes = self._kept.pop(session_id, (None, []))
        self._num_kept -= len(hashes)
        for block_hash in reversed(hashes):  # so that the tail is evicted before the head
            self._pool.unkeep(block_hash)
