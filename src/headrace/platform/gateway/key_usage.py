"""
The usage of access keys, which all processes of a platform count together.

The processes of a machine share a folder. For each limited key it has a file of one page, which all of them map: each
process counts in a slot of its own and reads the others' at once, without a lock and without the database. The file
outlives a process, so that neither a restart nor a crash gives a key a new minute. The processes of other machines
report their counts, which are a fraction of a second old.
See docs/decisions/0050-key-usage-in-mapped-files.md.
"""

import fcntl
import mmap
import os
import secrets
import struct
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.serving.wire.key_limits import MINUTE_S, MinuteCount

_SLOT: Final = struct.Struct("<8q")
"""Owner, minute, requests, tokens, requests and tokens of the minute before, requests in flight; one is unused."""
_FILE_BYTES: Final = 4096
_NUM_SLOTS: Final = _FILE_BYTES // _SLOT.size
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.001
_STALE_MINUTES: Final = 2
"""Minutes after which a slot counts no more, and another process may take it."""


@dataclass(slots=True)
class _Slot:
    owner: int = 0
    """The process that writes it; 0: none."""
    minute: int = 0
    requests: int = 0
    tokens: int = 0
    requests_before: int = 0
    tokens_before: int = 0
    in_flight: int = 0
    unused: int = 0

    def roll(self, minute: int) -> None:
        """Move the counts on to a minute of the clock."""
        passed = minute - self.minute
        if passed > 0:
            is_next = passed == 1
            self.requests_before = self.requests if is_next else 0
            self.tokens_before = self.tokens if is_next else 0
            self.requests = self.tokens = 0
            self.minute = minute


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a key by all processes, at a time."""

    requests: MinuteCount
    tokens: MinuteCount
    in_flight: int
    elapsed_s: float
    """Seconds of the minute that have passed."""


KeyCounts = Mapping[str, Sequence[int]]
"""Key → minute, requests, tokens, requests and tokens of the minute before, requests in flight."""


@dataclass(slots=True)
class KeyUsages:
    """The counters of this process, by key; without a folder, in memory only."""

    folder: Path | None = None
    owner: int = field(default_factory=lambda: secrets.randbits(62) + 1)
    """This process's number, by which the others know it."""
    live: Container[int] = frozenset()
    """The numbers of the other processes that run."""
    elsewhere: Sequence[KeyCounts] = ()
    """The counts of each process of another machine."""
    _counters: "dict[str, KeyCounter]" = field(default_factory=dict)

    def of(self, key: str) -> "KeyCounter":
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = KeyCounter(self, key)
        return counter

    def own(self) -> KeyCounts:
        """Return the counts of this process, of keys that it has counted for in the last minutes."""
        found = {key: counter.own_counts() for key, counter in self._counters.items()}
        before = int(time.time() // MINUTE_S) - _STALE_MINUTES
        return {key: counts for key, counts in found.items() if counts and (counts[0] > before or counts[-1])}

    def pages_of(self, key: str) -> "mmap.mmap | bytearray":
        """Return the page of a key; in memory only if the file cannot be written."""
        try:
            with self.locked(key) as descriptor:
                if descriptor is None:
                    return bytearray(_FILE_BYTES)
                # Written, not only extended: a write to a map of a full disk would end the process by a signal.
                if os.fstat(descriptor).st_size < _FILE_BYTES:
                    os.pwrite(descriptor, bytes(_FILE_BYTES), 0)
                return mmap.mmap(descriptor, _FILE_BYTES)
        except (OSError, ValueError) as error:
            get_logger().warning("key_usage.not_shared", access_key=key, reason=str(error))
            return bytearray(_FILE_BYTES)

    @contextmanager
    def locked(self, key: str) -> Iterator[int | None]:
        """
        Lock the file of a key, while a process takes a slot; None: there is no file.

        Others have the lock for microseconds. One that was stopped with it must not hold this one for long.
        """
        if self.folder is None:
            yield None
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_PAUSE_S)
            yield descriptor
        finally:
            os.close(descriptor)


class KeyCounter:
    """The counts of one key, in a slot of this process beside those of others."""

    def __init__(self, usages: KeyUsages, key: str) -> None:
        self._usages, self._key = usages, key
        self._pages = usages.pages_of(key)
        self._number = -1
        self._in_flight = 0

    def read(self, now_s: float) -> Usage:
        minute = int(now_s // MINUTE_S)
        requests = tokens = requests_before = tokens_before = in_flight = 0
        for then, *counts, flying in self._all_counts():
            if then >= minute:
                requests, tokens = requests + counts[0], tokens + counts[1]
                requests_before, tokens_before = requests_before + counts[2], tokens_before + counts[3]
            elif then == minute - 1:
                requests_before, tokens_before = requests_before + counts[0], tokens_before + counts[1]
            in_flight += flying
        return Usage(
            requests=MinuteCount(requests, requests_before),
            tokens=MinuteCount(tokens, tokens_before),
            in_flight=in_flight,
            elapsed_s=now_s - minute * MINUTE_S,
        )

    def own_counts(self) -> Sequence[int]:
        """Return the counts of this process, as `KeyCounts` has them; none if it has not counted."""
        slot = self._own()
        if slot is None:
            return ()
        return slot.minute, slot.requests, slot.tokens, slot.requests_before, slot.tokens_before, slot.in_flight

    def _all_counts(self) -> Iterator[Sequence[int]]:
        """Yield the counts of each process, without the requests in flight of those that have ended."""
        for begin in range(0, _FILE_BYTES, _SLOT.size):
            owner, *counts, flying, _ = _SLOT.unpack_from(self._pages, begin)
            if not owner:
                break
            yield *counts, flying if owner == self._usages.owner or owner in self._usages.live else 0
        for counts_elsewhere in self._usages.elsewhere:
            if self._key in counts_elsewhere:
                yield counts_elsewhere[self._key]

    def add(self, now_s: float, *, requests: int = 0, tokens: int = 0, in_flight: int = 0) -> None:
        """Count amounts, which may be negative: an estimate is corrected."""
        minute = int(now_s // MINUTE_S)
        self._in_flight += in_flight
        slot = self._own()
        if slot is None:
            slot = self._take(minute)
        slot.roll(minute)
        slot.requests += requests
        slot.tokens += tokens
        slot.in_flight = self._in_flight
        self._write(slot)

    def _slots(self) -> Iterator[_Slot]:
        """Yield the slots up to the last one that was ever taken."""
        for begin in range(0, _FILE_BYTES, _SLOT.size):
            slot = _Slot(*_SLOT.unpack_from(self._pages, begin))
            if not slot.owner:
                return
            yield slot

    def _own(self) -> _Slot | None:
        """Return this process's slot; None if it has none, or another process has taken it as stale."""
        if self._number < 0:
            return None
        slot = _Slot(*_SLOT.unpack_from(self._pages, self._number * _SLOT.size))
        return slot if slot.owner == self._usages.owner else None

    def _take(self, minute: int) -> _Slot:
        """Take a free slot, or one of a process that has ended and whose counts are too old to matter."""
        with suppress(OSError), self._usages.locked(self._key):
            slots = list(self._slots())
            stale = (
                number
                for number, slot in enumerate(slots)
                if slot.minute <= minute - _STALE_MINUTES and slot.owner not in self._usages.live
            )
            self._number = next(stale, len(slots))
            if self._number == _NUM_SLOTS:  # more processes than ever run within two minutes
                self._number = min(range(_NUM_SLOTS), key=lambda number: slots[number].minute)
            self._write(taken := _Slot(owner=self._usages.owner, minute=minute))
            return taken
        self._pages, self._number = bytearray(_FILE_BYTES), 0  # no file can be opened: count in memory
        return _Slot(owner=self._usages.owner, minute=minute)

    def _write(self, slot: _Slot) -> None:
        _SLOT.pack_into(
            self._pages,
            self._number * _SLOT.size,
            *(slot.owner, slot.minute, slot.requests, slot.tokens, slot.requests_before, slot.tokens_before),
            *(slot.in_flight, slot.unused),
        )
