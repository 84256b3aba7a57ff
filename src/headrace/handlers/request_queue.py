"""The queue of requests for one model, and the batches made from it."""

from collections import deque
from typing import Final

from headrace.handlers.batching import Take, Wait, next_batch
from headrace.handlers.errors import WholeResponse
from headrace.handlers.exchange import MemoryFile, PendingResponse
from headrace_handler.frames import MAX_DESCRIPTORS

_SINGLE_MODES: Final = frozenset({"adapter", "format", "describe"})
"""Modes whose requests do not wait for a batch."""


class RequestQueue:
    """Requests in the order of their arrival; the caller bounds their number."""

    def __init__(self, *, batch_size: int, max_delay_s: float) -> None:
        """
        Create an empty queue.

        Args:
            batch_size: largest number of requests in one call.
            max_delay_s: longest time that the first request waits for others.
        """
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        self._requests: deque[PendingResponse] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, response: PendingResponse) -> None:
        """Add a request whose `arrived_s` is set."""
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
        """Answer all requests with an error."""
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
