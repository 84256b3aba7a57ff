"""How many requests each worker is answering for us now."""

from collections.abc import Callable, Iterator, Mapping


class LoadLease:
    """One request on one worker; released once, whatever happens."""

    __slots__ = ("_loads", "_worker")

    def __init__(self, loads: "Loads", worker: str) -> None:
        self._loads: Loads | None = loads
        self._worker = worker

    def release(self) -> None:
        """The request has ended. Idempotent."""
        loads, self._loads = self._loads, None
        if loads is not None:
            loads.leave(self._worker)


class Loads(Mapping[str, int]):
    """Worker → outstanding requests; only workers that have some are in it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._on_leave: Callable[[], None] = lambda: None

    def on_leave(self, listener: Callable[[], None]) -> None:
        """Call `listener` after a request has ended."""
        self._on_leave = listener

    def hold(self, worker: str) -> LoadLease:
        """Count one more request; give it back with `release`."""
        self._counts[worker] = self._counts.get(worker, 0) + 1
        return LoadLease(self, worker)

    def leave(self, worker: str) -> None:
        """Called by a hold."""
        count = self._counts[worker] - 1
        if count:
            self._counts[worker] = count
        else:
            del self._counts[worker]
        self._on_leave()

    def __getitem__(self, worker: str) -> int:
        return self._counts[worker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)
