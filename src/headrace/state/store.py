"""
Where records live: the seam between those who ask, those who act, and those who forward.

All methods block for a moment (SQL); call them from a thread (`asyncio.to_thread`) where an event loop runs.
Every method is one transaction: it has happened, durably, when it returns, or it has not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.state.records import Json, Kind, Record


class Store(Protocol):
    """Records by kind and name."""

    def create(
        self, kind: Kind, name: str, *, spec: Json, status: Json | None = None, tags: Mapping[str, str] = {}
    ) -> Record:
        """Add a record. Raises `AlreadyExists`."""
        ...

    def get(self, kind: Kind, name: str) -> Record | None:
        """The living record of that name."""
        ...

    def list(self, kind: Kind) -> Sequence[Record]:
        """All living records of a kind, by time of creation, then name."""
        ...

    def update(
        self,
        record: Record,
        *,
        spec: Json | None = None,
        status: Json | None = None,
        tags: Mapping[str, str] | None = None,
        is_deleting: bool = False,
    ) -> Record:
        """
        Write what is given, leave the rest; `is_deleting` sets `deleting_s` once and for all.

        Raises:
            Conflict: `record.revision` is not the newest, or it was removed.
        """
        ...

    def remove(self, record: Record) -> None:
        """Forget a record; nothing happens if its `uid` is gone already. Raises `Conflict` if it was written since."""
        ...

    def revision(self) -> int:
        """The newest revision of all: the same number means that nothing has changed."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """
        Call `listener` (from any thread, it must be quick) after writes through this object; returns how to end it.

        Writes of other processes to the same database are not told: poll `revision` too where there may be some.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
