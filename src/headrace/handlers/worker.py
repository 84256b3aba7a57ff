"""A place for a child of a pool, the requests that only this child may run, and what the pool counts."""

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
    """A place for a child, which is filled again when the child ends."""

    def __init__(self, gpu: int) -> None:
        self.worker_id = next(_worker_ids)
        self.gpu = gpu
        """Number of the GPU, for its children one after the other; 0 also without one."""
        self.started_s = time.time()
        self.child: ChildProcess | None = None
        self.max_calls = 0
        """Calls that it takes at once; 0 until it has loaded the code."""
        self.own: deque[PendingResponse] = deque()
        """Requests for this child alone; it takes no other one before they have ended."""
        self.stopping = asyncio.Event()
        self.idle_timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def stop_idle_timer(self) -> None:
        """Keep the child, which was to end if it stayed idle."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()

    @property
    def is_ready(self) -> bool:
        """True while a child that has loaded the code lives."""
        return self.max_calls > 0 and self.child is not None and self.child.is_alive and not self.stopping.is_set()

    @property
    def num_free(self) -> int:
        """Calls of any request that it could take now."""
        return 0 if self.own or self._runs_own else self._capacity

    @property
    def takes_own(self) -> bool:
        """True if it could take the next of its own requests, which run one after the other."""
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
    """Wait for a response that no client gets; log an error."""
    try:
        head = await response.head()
        if head.status >= 300:
            get_logger().error("handler.setup_failed", status=head.status, request_id=response.request.request_id)
    finally:
        response.close()


async def first_of(future: "asyncio.Future[Any]", event: asyncio.Event) -> None:
    """Wait for one of the two."""
    waiting = asyncio.create_task(event.wait())
    futures: set[asyncio.Future[Any]] = {future, waiting}
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
