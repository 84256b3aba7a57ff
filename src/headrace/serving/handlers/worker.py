"""A slot for a child of a pool: its GPU, the requests that only this child may run, and the pool's counters."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from headrace.core.gpus import VISIBLE_VARIABLE
from headrace.core.metrics import SECONDS, Distribution
from headrace.core.telemetry import get_logger
from headrace.serving.handlers.spec import HandlerSpec

if TYPE_CHECKING:
    from headrace.serving.handlers.exchange import PendingResponse
    from headrace.serving.handlers.process import ChildProcess

_worker_ids = count(9000)  # as TorchServe numbers them
_CODE_TAKES_THE_FIRST: Final = frozenset({"sagemaker"})
"""Contracts whose code takes the first GPU that it sees: code for the toolkits says `cuda` and knows no index."""


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


def least_used(taken: Iterable[int], num_gpus: int) -> int:
    """Return the index of the GPU with the fewest children; the lowest one on a tie."""
    counts = Counter(taken)
    return min(range(num_gpus), key=lambda gpu: (counts[gpu], gpu), default=0)


def on_gpu(spec: HandlerSpec, gpu: int) -> HandlerSpec:
    """
    Return the spec of a child on the GPU with this index, of those that the model server sees.

    As in the original servers, code for TorchServe and DJL sees all GPUs and is told its index. Other code sees only
    its own GPU.
    """
    if spec.load.device is None or spec.num_gpus < 2:
        return spec
    if spec.contract not in _CODE_TAKES_THE_FIRST:
        return replace(spec, load=replace(spec.load, device=gpu))
    visible = spec.environment.get(VISIBLE_VARIABLE)
    names = visible.split(",") if visible else list(map(str, range(spec.num_gpus)))
    return replace(spec, environment={**spec.environment, VISIBLE_VARIABLE: names[gpu].strip()})
