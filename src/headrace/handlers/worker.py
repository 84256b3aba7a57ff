"""A slot for a child of a pool, the requests that only this child may run, and the pool's counters."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from headrace.core.metrics import SECONDS, Distribution
from headrace.core.telemetry import get_logger

if TYPE_CHECKING:
    from headrace.handlers.exchange import PendingResponse
    from headrace.handlers.process import ChildProcess

_worker_ids = count(9000)  # as TorchServe numbers them


class Worker:
    """A slot for a child, filled again when the child ends."""

    def __init__(self, gpu: int) -> None:
        self.worker_id = next(_worker_ids)
        self.gpu = gpu
        """Index of the GPU that its successive children use; 0 without a GPU."""
        self.started_s = time.time()
        self.child: ChildProcess | None = None
        self.max_calls = 0
        """Concurrent calls that the child takes; 0 until it has loaded the code."""
        self.own: deque[PendingResponse] = deque()
        """Requests for this child alone; it takes no others until they have finished."""
        self.stopping = asyncio.Event()
        self.idle_timer: asyncio.TimerHandle | None = None

    def stop_idle_timer(self) -> None:
        """Cancel the timer that retires an idle child."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()

    @property
    def is_ready(self) -> bool:
        """True while a child that has loaded the code runs and is not told to stop."""
        return self.max_calls > 0 and self.child is not None and self.child.is_alive and not self.stopping.is_set()

    @property
    def num_free(self) -> int:
        """Calls from the shared queue that the child could take now."""
        return 0 if self.own or self._runs_own else self._capacity

    @property
    def takes_own(self) -> bool:
        """True if the child could take the next of its own requests, which run one at a time."""
        return bool(self.own) and self._capacity > 0 and not self._runs_own

    @property
    def _capacity(self) -> int:
        return self.max_calls - len(self.child.calls) if self.is_ready and self.child is not None else 0

    @property
    def _runs_own(self) -> bool:
        calls = () if self.child is None else self.child.calls.values()
        return any(response.request.mode == "adapter" for call in calls for response in call.responses.values())


@dataclass(slots=True, eq=False)
class PoolCounts:
    """Counters of a pool since its start."""

    restarts: int = 0
    late_calls: int = 0
    call_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    queue_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))


async def log_failure(response: "PendingResponse") -> None:
    """Wait for a response that has no client; log an error."""
    try:
        head = await response.head()
        if head.status >= 300:
            get_logger().error("handler.setup_failed", status=head.status, request_id=response.request.request_id)
    finally:
        response.close()


async def first_of(future: "asyncio.Future[Any]", event: asyncio.Event) -> None:
    """Wait until the future is done or the event is set."""
    waiting = asyncio.create_task(event.wait())
    futures: set[asyncio.Future[Any]] = {future, waiting}
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
