"""
The store below the prefix cache: an index of the files in memory, a thread that reads and a thread that writes.

The scheduler asks the index and never waits. Reads go straight into the rows of the KV cache. The writer takes the
bytes from there, too, as long as the block is not allocated again: what it cannot write in time is dropped, not copied.
While the engine is busy it rests between two files, so that the steps keep the cores.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Final

import structlog

from headrace.inference.engine.core.stored_blocks import BlockRead, Kind, Offer, StoreKey
from headrace.inference.engine.prefix_store.block_file import HEADER_BYTES, BlockFolder, DamagedFile, Row
from headrace.inference.engine.prefix_store.folder_limit import remove_oldest

_log = structlog.get_logger("headrace.engine")

_MAX_QUEUED: Final = 8192
"""Rows that may wait to be written; a queued row takes no copy, only a few words."""
_BUSY_SHARE: Final = 0.01
"""Share of the time that the writer works while the engine does."""
_MAX_REST_S: Final = 1.0
_TOUCHED_S: Final = 60.0
"""Time after which the use of a file is recorded again."""
_PAUSE_S: Final = 30.0
"""Pause after a failed write: a full disk stays full for a while."""
_RESCAN_S: Final = 1.0
"""Least time between two looks for the files of other servers."""
_CLOSE_S: Final = 5.0
"""Time at the end for rows that are still queued."""


class FileStore:
    """A `BlockStore` on the files of a folder. `close` ends its threads, which must come before the memory goes."""

    def __init__(self, folder: BlockFolder, rows: Mapping[Kind, Row], *, max_bytes: int) -> None:
        """Index a folder that exists; `rows` is the memory of each kind, one row for each block or slot."""
        self._folder = folder
        self._rows = rows
        self._max_bytes = max_bytes
        self._totals = {
            "stored_bytes": 0,
            "store_read_bytes_total": 0,
            "store_written_bytes_total": 0,
            "store_dropped_rows_total": 0,
            "store_damaged_files_total": 0,
        }
        self._used_s: dict[StoreKey, float] = {}
        """When the use of each file was last recorded: the index."""
        self._next_scan_s = self._pauses_until_s = -inf
        self._scan()
        self._num_offered = self._num_taken = 0
        self._offers: queue.SimpleQueue[list[Offer] | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[BlockRead | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._is_busy: Callable[[], bool] = lambda: False
        self._on_read: Callable[[BlockRead], None] = lambda _: None
        self._threads = (
            threading.Thread(target=self._run_writer, name="headrace-prefix-writer", daemon=True),
            threading.Thread(target=self._run_reader, name="headrace-prefix-reader", daemon=True),
        )

    def start(self, *, on_read: Callable[[BlockRead], None], is_busy: Callable[[], bool]) -> None:
        """Start the threads; `on_read` is called with each read when it has ended, on the reader's thread."""
        self._on_read, self._is_busy = on_read, is_busy
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Write what is queued, for a few seconds at most, and end the threads. Idempotent."""
        self._is_closing.set()
        self._offers.put(None)
        self._reads.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._rows = {}  # the memory of a runner that is about to be closed

    @property
    def num_files(self) -> int:
        return len(self._used_s)

    def stats(self) -> dict[str, int]:
        """Return fields of `EngineStats`."""
        return dict(self._totals)

    # Called by the scheduler.

    def has(self, key: StoreKey) -> bool:
        if key in self._used_s:
            return True
        if time.monotonic() > self._next_scan_s:  # another server may have written it meanwhile
            self._next_scan_s = inf
            self._offers.put([])
        return False

    def offer(self, offers: list[Offer]) -> None:
        due_s = time.monotonic() - _TOUCHED_S
        offers = [offer for offer in offers if self._used_s.get(offer.key, -inf) < due_s]
        if self._num_offered - self._num_taken + len(offers) > _MAX_QUEUED:
            self._totals["store_dropped_rows_total"] += len(offers)
        elif offers:
            self._num_offered += len(offers)
            self._offers.put(offers)

    def begin_read(self, read: BlockRead) -> None:
        self._reads.put(read)

    # The reader.

    def _run_reader(self) -> None:
        while (read := self._reads.get()) is not None:
            for key, row in read.rows:
                if not self._is_closing.is_set() and self._read(key, self._rows[key.kind][row]):
                    read.intact.add(key)
            self._on_read(read)

    def _read(self, key: StoreKey, row: Row) -> bool:
        path = self._folder.file(key)
        try:
            self._folder.read(key, row)
        except FileNotFoundError:  # another server has removed it
            pass
        except DamagedFile as error:
            self._totals["store_damaged_files_total"] += 1
            _log.warning("prefix_store.damaged", file=str(path), reason=str(error))
            with suppress(OSError):
                path.unlink()
        except OSError as error:
            _log.warning("prefix_store.unreadable", file=str(path), reason=str(error))
        else:
            self._totals["store_read_bytes_total"] += row.nbytes
            return True
        self._used_s.pop(key, None)
        return False

    # The writer.

    def _run_writer(self) -> None:
        self._totals["stored_bytes"] = remove_oldest(self._folder.path.parent, self._max_bytes)
        deadline_s = inf
        while (offers := self._offers.get()) is not None:
            if not offers:
                self._scan()
            for offer in offers:
                if self._is_closing.is_set():
                    deadline_s = min(deadline_s, time.monotonic() + _CLOSE_S)
                began_s = time.monotonic()
                if began_s > deadline_s or not self._keep(offer):
                    self._totals["store_dropped_rows_total"] += 1
                self._num_taken += 1
                if self._is_busy():
                    self._is_closing.wait(min((time.monotonic() - began_s) / _BUSY_SHARE, _MAX_REST_S))

    def _keep(self, offer: Offer) -> bool:
        """Write a row, or record the use of its file; return False if it is lost."""
        now_s = time.monotonic()
        if offer.key in self._used_s:
            try:
                self._folder.touch(offer.key, depth=offer.depth)
            except OSError:  # another server has removed it
                self._used_s.pop(offer.key, None)
            else:
                self._used_s[offer.key] = now_s
                return True
        if now_s < self._pauses_until_s or not offer.is_valid:
            return False
        try:
            return self._write(offer, now_s)
        except OSError as error:
            self._pauses_until_s = now_s + _PAUSE_S
            reason = f"{error.strerror or error}; no prefix is stored for {_PAUSE_S:.0f} s"
            _log.warning("prefix_store.not_written", folder=str(self._folder.path), reason=reason)
            with suppress(OSError):  # the folder was removed
                self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return False

    def _write(self, offer: Offer, now_s: float) -> bool:
        row = self._rows[offer.key.kind][offer.row]
        if not self._folder.write(offer.key, row, depth=offer.depth, is_valid=lambda: offer.is_valid):
            return False
        self._used_s[offer.key] = now_s
        self._totals["store_written_bytes_total"] += row.nbytes
        self._totals["stored_bytes"] += HEADER_BYTES + row.nbytes
        if self._totals["stored_bytes"] > self._max_bytes:
            self._totals["stored_bytes"] = remove_oldest(self._folder.path.parent, self._max_bytes)
            self._scan()
        return True

    def _scan(self) -> None:
        """Index the files of the folder, those of other servers included."""
        began_s = time.monotonic()
        self._used_s = {key: self._used_s.get(key, -inf) for key in self._folder.list_keys()}
        now_s = time.monotonic()
        self._next_scan_s = now_s + max(_RESCAN_S, (now_s - began_s) / _BUSY_SHARE)
