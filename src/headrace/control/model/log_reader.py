"""
How the `logs` API and the reconciler read, and keep, what workers wrote.

`cluster.platform_logs` implements it; tests bring a list.

A position is a place in a worker's log (a number that only grows, also when the file behind it is cut). Reading goes on
at the position that the last event named, forwards or backwards.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.cluster.platform_logs import EndedLog


class LogEvent(Protocol):
    """One line of a worker."""

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    @property
    def message(self) -> str:
        """Without its line end."""
        ...

    @property
    def position(self) -> int:
        """Where it begins."""
        ...

    @property
    def next_position(self) -> int:
        """Where the one after it begins."""
        ...


class LogReader(Protocol):
    """All methods block for a moment (files); call them from a thread."""

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
        Read at most `limit` events, in the order in which they were written.

        Args:
            worker: the name of its record; one that has written nothing, or is unknown, has no events.
            start_ms: only events at or after this time.
            end_ms: only events before this time.
            position: forwards, the first event that may be read; backwards, the event before which it ends.
                None is the beginning, or the end.
            limit: at most so many.
            is_backward: the last ones before `position` instead of the first ones from it.
        """
        ...

    def size_bytes(self, worker: str) -> int:
        """What its log holds now."""
        ...

    def ended(self) -> Sequence[EndedLog]:
        """The logs of workers that are no more."""
        ...

    def drop(self, workers: Sequence[str]) -> None:
        """Remove the logs of such workers."""
        ...


class LogKeeper(LogReader, Protocol):
    """What the reconciler needs besides."""

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        """
        Let the log of a worker outlive it, before its folder goes; may be called again.

        Raises:
            OSError: it cannot be kept.
        """
        ...
