"""
The protocols through which the `logs` API and the reconciler read and retain the logs of workers.

`cluster.platform_logs` implements them; tests use a fake in memory.

A position is an offset in a worker's log that only grows, even when the file behind it is truncated. Reading continues
at the position of the last event, forwards or backwards.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.cluster.platform_logs import EndedLog


class LogEvent(Protocol):
    """A line of a worker's log."""

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    @property
    def message(self) -> str:
        """The text without its line ending."""
        ...

    @property
    def position(self) -> int:
        """The position of the line."""
        ...

    @property
    def next_position(self) -> int:
        """The position of the next line."""
        ...


class LogReader(Protocol):
    """Read access to the logs of workers. All methods do file I/O: call them from a thread."""

    def read(
        self,
        worker: str,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        position: int | None = None,
        limit: int = 1000,
        is_backward: bool = False,
    ) -> Sequence[LogEvent]:
        """
        Read at most `limit` events in the order in which they were written.

        Args:
            worker: the name of its record; an unknown worker, or one that has written nothing, has no events.
            start_ms: only events at or after this time.
            end_ms: only events before this time.
            position: forwards, the position of the first event; backwards, the position that the events end before.
                None is the start, or the end, of the log.
            limit: the maximum number of events.
            is_backward: return the last events before `position` instead of the first ones from it.
        """
        ...

    def size_bytes(self, worker: str) -> int:
        """Return the current size of a worker's log."""
        ...

    def ended(self) -> Sequence[EndedLog]:
        """Return the retained logs of workers that have ended."""
        ...

    def drop(self, workers: Sequence[str]) -> None:
        """Delete the logs of ended workers."""
        ...


class LogKeeper(LogReader, Protocol):
    """A log reader that can also retain the logs of workers, for the reconciler."""

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        """
        Retain the log of a worker before its folder is deleted. Idempotent.

        Raises:
            OSError: the log cannot be retained.
        """
        ...
