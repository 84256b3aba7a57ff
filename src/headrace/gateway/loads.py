"""In-flight requests of each worker."""

from collections.abc import Callable, Iterator, Mapping


class LoadLease:
    """A lease on a worker's load counter: one request, counted until `release`."""

    __slots__ = ("_loads", "_worker")

    def __init__(self, loads: "Loads", worker: str) -> None:
        self._loads: Loads | None = loads
        self._worker = worker

    def release(self) -> None:
        """Stop counting the request. Idempotent."""
        loads, self._loads = self._loads, None
        if loads is not None:
            loads.release(self._worker)


class Loads(Mapping[str, int]):
    """In-flight requests by worker, including those of other gateways; a worker without any is absent."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._others: Mapping[str, int] = {}
        self._on_release: Callable[[], None] = lambda: None

    def on_release(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each request that has ended, and after each report of the other gateways."""
        self._on_release = listener

    def acquire(self, worker: str) -> LoadLease:
        """Count one more request of `worker`, until its lease is released."""
        self._counts[worker] = self._counts.get(worker, 0) + 1
        return LoadLease(self, worker)

    def release(self, worker: str) -> None:
        """Count one request less; called by a lease."""
        count = self._counts[worker] - 1
        if count:
            self._counts[worker] = count
        else:
            del self._counts[worker]
        self._on_release()

    def own(self) -> dict[str, int]:
        """Return the in-flight requests of this gateway."""
        return dict(self._counts)

    def set_others(self, counts: Mapping[str, int]) -> None:
        """Set the in-flight requests of the other gateways, as they reported last."""
        self._others = counts
        self._on_release()

    def __getitem__(self, worker: str) -> int:
        count = self._counts.get(worker, 0) + self._others.get(worker, 0)
        if not count:
            raise KeyError(worker)
        return count

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts.keys() | self._others.keys())

    def __len__(self) -> int:
        return len(self._counts.keys() | self._others.keys())
