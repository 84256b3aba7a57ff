"""The queue of requests for one model, the batches made from it, and when a failed child is restarted."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace.serving.handlers.errors import WholeResponse
from headrace.serving.handlers.exchange import MemoryFile, PendingResponse
from headrace.serving.handlers.spec import RestartPolicy
from headrace_handler.frames import MAX_DESCRIPTORS

_BACKOFF_S: Final = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
_SINGLE_MODES: Final = frozenset({"adapter", "format", "describe"})
"""Modes whose requests do not wait for a batch."""


@dataclass(frozen=True, slots=True)
class Take:
    """Start a call with the first `num_items` of the queue."""

    num_items: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more items, at most `delay_s`."""

    delay_s: float


def next_batch(num_alike: int, waited_s: float, *, batch_size: int, max_delay_s: float, is_closed: bool) -> Take | Wait:
    """
    Decide whether a free child takes the items at the head of a queue now.

    One call can take `num_alike` of them, the first of which has waited `waited_s`; no more can join if `is_closed`.
    """
    remaining_s = max_delay_s - waited_s
    if num_alike >= batch_size or is_closed or remaining_s <= 0:
        return Take(min(num_alike, batch_size))
    return Wait(remaining_s)


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of a model's children since the last success."""

    count: int = 0
    first_s: float = 0.0
    """Time of the first failure."""

    def add(self, now_s: float) -> "Failures":
        return Failures(self.count + 1, self.first_s if self.count else now_s)

    def restart_delay_s(self) -> float:
        return _BACKOFF_S[min(self.count, len(_BACKOFF_S)) - 1] if self.count else 0.0

    def gives_up(self, policy: RestartPolicy, now_s: float) -> bool:
        if policy.max_failures is not None and self.count > policy.max_failures:
            return True
        return policy.max_retry_s is not None and self.count > 0 and now_s - self.first_s >= policy.max_retry_s


class RequestQueue:
    """Requests in the order of their arrival; the caller bounds their number."""

    def __init__(self, *, batch_size: int, max_delay_s: float) -> None:
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        self._requests: deque[PendingResponse] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, response: PendingResponse) -> None:
        self._requests.append(response)

    def discard(self, response: PendingResponse) -> bool:
        """Remove a request whose client has disconnected; return whether it was queued."""
        if response not in self._requests:
            return False
        self._requests.remove(response)
        return True

    def take(self, now_s: float) -> list[PendingResponse] | Wait:
        """Return the next batch for a child that is free, or how long to wait for more; the queue is not empty."""
        num_alike, is_closed = self._alike()
        decision = next_batch(
            num_alike,
            now_s - self._requests[0].arrived_s,
            batch_size=self._batch_size,
            max_delay_s=self._max_delay_s,
            is_closed=is_closed,
        )
        if isinstance(decision, Take):
            return [self._requests.popleft() for _ in range(decision.num_items)]
        return decision

    def refuse_all(self, response: WholeResponse) -> None:
        while self._requests:
            self._requests.popleft().fail(response, "The model is not served any more.")

    def _alike(self) -> tuple[int, bool]:
        """Return how many requests at the head fit into one call, and whether the next one does not."""
        mode, num_files = self._requests[0].request.mode, 0
        for index, response in enumerate(self._requests):
            if index == self._batch_size:
                return index, True
            num_files += sum(isinstance(part.content, MemoryFile) for part in response.request.parts)
            if index and (response.request.mode != mode or num_files > MAX_DESCRIPTORS):
                return index, True
        return len(self._requests), mode in _SINGLE_MODES
