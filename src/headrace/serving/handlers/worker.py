"""
The queue of requests for one model, and the slots for its children.

A slot has a GPU and requests that only its child may run; the pool has counters of all slots.
"""

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
from headrace.serving.handlers.errors import WholeResponse
from headrace.serving.handlers.exchange import MemoryFile, PendingResponse
from headrace.serving.handlers.spec import HandlerSpec, RestartPolicy
from headrace_handler.frames import MAX_DESCRIPTORS

if TYPE_CHECKING:
    from headrace.serving.handlers.process import ChildProcess

_BACKOFF_S: Final = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
_SINGLE_MODES: Final = frozenset({"adapter", "format", "describe"})
"""Modes whose requests do not wait for a batch."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more items, at most `delay_s`."""

    delay_s: float


def next_batch(num_alike: int, waited_s: float, *, batch_size: int, max_delay_s: float, is_closed: bool) -> int | Wait:
    """
    Return how many items at the head of a queue a free child takes now, or that it waits for more.

    One call can take `num_alike` of them, the first of which has waited `waited_s`; no more can join if `is_closed`.
    """
    remaining_s = max_delay_s - waited_s
    if num_alike >= batch_size or is_closed or remaining_s <= 0:
        return min(num_alike, batch_size)
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
        num_taken = next_batch(
            num_alike,
            now_s - self._requests[0].arrived_s,
            batch_size=self._batch_size,
            max_delay_s=self._max_delay_s,
            is_closed=is_closed,
        )
        if isinstance(num_taken, Wait):
            return num_taken
        return [self._requests.popleft() for _ in range(num_taken)]

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
