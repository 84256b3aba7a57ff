"""
The interface of the store: the seam between API handlers, the reconciler and the gateway.

All methods block on SQL: code on an event loop calls them in a thread (`asyncio.to_thread`).
Every method is one transaction, which is durable when the method returns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, overload

from headrace.state.records import AnyKind, Kind, Record, StoredRecord, Unreadable
from headrace.state.selection import ALL, Entry, Selection

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")


class Store(Protocol):
    """Records by kind and name; see `state.records` for how a kind is declared."""

    def create(
        self,
        kind: Kind[SpecT, StatusT],
        name: str,
        *,
        spec: SpecT,
        status: StatusT | None = None,
        tags: Mapping[str, str] = {},
    ) -> Record[SpecT, StatusT]:
        """Add a record. Raises `AlreadyExists`."""
        ...

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable | None:
        """Return the record with a name, or None."""
        ...

    def list(self, kind: Kind[SpecT, StatusT]) -> Sequence[Record[SpecT, StatusT] | Unreadable]:
        """
        Return all records of a kind, ordered by time of creation, then by name.

        For loops that need all of them. An API call uses `each` or `entries`, so that its memory has a bound.
        """
        ...

    def find(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable | None:
        """Return the record with a name, ignoring case where no record has the name itself."""
        ...

    def count(self, kind: AnyKind) -> int:
        """Return the number of records of a kind."""
        ...

    def entries(self, kind: AnyKind, selection: Selection = ALL) -> Iterator[Entry]:
        """Yield the selected records without their contents, a batch at a time."""
        ...

    def each(
        self, kind: Kind[SpecT, StatusT], selection: Selection = ALL
    ) -> Iterator[Record[SpecT, StatusT] | Unreadable]:
        """Yield the selected records, a batch at a time; each batch is a transaction of its own."""
        ...

    @overload
    def update(
        self,
        record: Record[SpecT, StatusT],
        *,
        spec: SpecT | None = None,
        status: StatusT | None = None,
        tags: Mapping[str, str] | None = None,
        is_deleting: bool = False,
    ) -> Record[SpecT, StatusT]: ...
    @overload
    def update(
        self, record: Unreadable, *, tags: Mapping[str, str] | None = None, is_deleting: bool = False
    ) -> Unreadable: ...
    def update(
        self,
        record: Record[SpecT, StatusT] | Unreadable,
        *,
        spec: SpecT | None = None,
        status: StatusT | None = None,
        tags: Mapping[str, str] | None = None,
        is_deleting: bool = False,
    ) -> Record[SpecT, StatusT] | Unreadable:
        """
        Write the given parts and keep the others; `is_deleting` sets `deleting_s`, permanently.

        Raises:
            Conflict: `record.revision` is not the newest, or the record was removed.
        """
        ...

    def remove(self, record: StoredRecord, *, keep_last: bool = False) -> None:
        """
        Remove a record; do nothing if its `uid` does not exist.

        Args:
            record: the record as it was read.
            keep_last: refuse to remove the only record of its kind, also if others are being removed.

        Raises:
            Conflict: the record was written since.
            LastRecord: it is the only one of its kind, and `keep_last` is set.
        """
        ...

    def revision(self) -> int:
        """Return the newest revision of the store: the same number means that nothing has changed."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """
        Call `listener` after writes through this object, from any thread; return a function that unsubscribes.

        The listener must return quickly.

        Writes of other processes to the same database are not reported: poll `revision` if there are such processes.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
