"""
The children of one model: how many run, which requests they get, and what happens when they end.

Requests wait in one queue, which survives the end of any child. A request that a child has received is never sent to
another one. All methods run on the event loop.
"""

import asyncio
import time
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

from headrace.core.telemetry import get_logger, log_options
from headrace.serving.handlers.channel import new_tail
from headrace.serving.handlers.code_metrics import CodeMetrics
from headrace.serving.handlers.errors import LoadError, Refusal, Refused, refusal
from headrace.serving.handlers.exchange import ChildCall, HandlerRequest, PendingResponse
from headrace.serving.handlers.process import ChildLost, ChildProcess, LoadRefused, exit_text
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.worker import (
    Failures,
    PoolCounts,
    RequestQueue,
    Wait,
    Worker,
    first_of,
    least_used,
    log_failure,
    on_gpu,
)


class PoolPhase(StrEnum):
    """The phase of a model with its children."""

    LOADING = "loading"
    """No child has loaded the code yet."""
    SERVING = "serving"
    """Requests are accepted; a child that fails is restarted."""
    FAILED = "failed"
    """The restart policy has given up."""
    CLOSED = "closed"


class HandlerPool:
    """The children of a model and their request queue."""

    def __init__(self, spec: HandlerSpec) -> None:
        self.spec = spec
        self.phase = PoolPhase.LOADING
        self.counts = PoolCounts()
        self.workers: list[Worker] = []
        self.min_workers = spec.min_workers
        self.max_workers = max(spec.min_workers, spec.max_workers)
        self.tail = new_tail()
        """The last lines that the code printed."""
        self.code_metrics = CodeMetrics()
        self._queue = RequestQueue(batch_size=spec.batch_size, max_delay_s=spec.max_batch_delay_ms / 1e3)
        self._failures = Failures()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None
        """Resolved when the first load ends; `start` waits for it."""
        self.for_every_child: dict[str, HandlerRequest] = {}
        """Requests that each child runs once it has loaded the code, by the name of what they set up."""
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """
        Start the children and wait for the first to load the code.

        Raises:
            LoadError: the code could not be loaded; the pool is closed.
        """
        self._first = asyncio.get_running_loop().create_future()
        try:
            self._fill()
            if self.min_workers:
                await self._first
            else:
                self.phase = PoolPhase.SERVING
            self._first = None
        except BaseException:
            await self.close(deadline_s=0)
            raise

    def submit(self, request: HandlerRequest) -> PendingResponse:
        """Queue a request. Raises `Refused`: the queue is full, or no child will take it."""
        if self.phase is not PoolPhase.SERVING or not self.max_workers:
            raise self._refused(Refusal.NOT_READY)
        if len(self._queue) >= self.spec.queue_size and not any(worker.num_free for worker in self.workers):
            raise self._refused(Refusal.QUEUE_FULL)
        response = PendingResponse(request, self._on_close)
        response.arrived_s = time.monotonic()
        self._queue.add(response)
        self._dispatch()
        return response

    def submit_to_all(self, request: HandlerRequest) -> list[PendingResponse]:
        """
        Submit a request to each child that has loaded the code, ahead of the queue.

        Raises:
            Refused: no child has loaded the code.
        """
        workers = [worker for worker in self.workers if worker.is_ready]
        if not workers:
            raise self._refused(Refusal.NOT_READY)
        responses = [self._submit_own(worker, request) for worker in workers]
        self._dispatch()
        return responses

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return sum(worker.child.num_running for worker in self.workers if worker.child is not None)

    @property
    def num_ready(self) -> int:
        return sum(worker.is_ready for worker in self.workers)

    def scale(self, min_workers: int, max_workers: int) -> None:
        """Change the number of children; surplus children finish their calls first."""
        self.min_workers, self.max_workers = min_workers, max(min_workers, max_workers)
        for worker in self._staying[self.max_workers :]:
            worker.stopping.set()
        if not self.max_workers:
            self._refuse_queue()
        self._fill()
        self._dispatch()
        for worker in self.workers:
            self._start_idle_timer(worker)

    async def close(self, *, deadline_s: float) -> None:
        """Stop accepting requests, let accepted ones finish within `deadline_s`, and stop all children."""
        self.phase = PoolPhase.CLOSED
        if deadline_s > 0 and (self._queue or self.num_running):
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await asyncio.wait({idle}, timeout=deadline_s)
        self._refuse_queue()
        for worker in self.workers:
            worker.stopping.set()
        if self._batch_timer is not None:
            self._batch_timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # Children.

    @property
    def _staying(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.stopping.is_set()]

    def _fill(self) -> None:
        while len(self._staying) < self.min_workers:
            self._add_worker()

    def _add_worker(self) -> None:
        worker = Worker(least_used((worker.gpu for worker in self.workers), self.spec.num_gpus))
        self.workers.append(worker)
        self._run_task(self._run_worker(worker), name=f"handler-{worker.worker_id}")

    def _run_task(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> "asyncio.Task[None]":
        """Run a task that `close` waits for."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_worker(self, worker: Worker) -> None:
        """Run children in this slot, one after another, until the slot is stopped or the pool gives up."""
        try:
            while not worker.stopping.is_set() and self.phase is not PoolPhase.FAILED:
                await self._run_child(worker)
        except Exception as error:  # noqa: BLE001 -- a bug here must not leave `start` waiting
            get_logger().exception("handler.supervision_failed", model=self.spec.model_name)
            self._settle_first(error)
        finally:
            self.workers.remove(worker)
            if not self._staying:
                self._end_loading()
            self._check_idle()
            self._dispatch()  # a request may have waited for the slot

    async def _run_child(self, worker: Worker) -> None:
        """Run one child from start to exit; after a failure, wait for the backoff."""
        try:
            worker.child = child = ChildProcess(on_gpu(self.spec, worker.gpu), self.tail, self.code_metrics)
        except (OSError, ValueError) as error:
            await self._note_failure(worker, f"The interpreter {self.spec.python} cannot be started: {error}.")
            return
        reason = ""
        try:
            is_async = await self._load(worker, child)
            if is_async is not None:
                worker.max_calls = self.spec.max_calls_per_worker if is_async else 1
                # A restarted child lacks what earlier requests set up, such as adapters: it runs them before others.
                for request in self.for_every_child.values():
                    self._run_task(log_failure(self._submit_own(worker, request)))
                get_logger().info("handler.ready", model=self.spec.model_name, pid=child.pid)
                if self.phase is PoolPhase.LOADING:
                    self.phase = PoolPhase.SERVING
                self._settle_first(None)
                reason = await self._serve(worker, child)
        except (ChildLost, LoadRefused) as error:
            reason = str(error)
        finally:
            # No call is dispatched from here on. Only a healthy child is asked to stop; any other is killed.
            is_loaded, worker.max_calls = worker.max_calls > 0, 0
            await (child.stop() if is_loaded and not reason else child.kill())
            while worker.own:
                worker.own.popleft().fail(self._refused(Refusal.LOST).response, "The process has ended.")
            self._check_idle()
        if reason:
            # A child that answered proves that the code works: it begins a new series of failures.
            if child.num_answered:
                self._failures = Failures()
            await self._note_failure(worker, reason)

    async def _load(self, worker: Worker, child: ChildProcess) -> bool | None:
        """Return whether the code is asynchronous; None if the worker is stopped before it is loaded."""
        loading = asyncio.create_task(child.load())
        await first_of(loading, worker.stopping)
        if not loading.done():
            loading.cancel()
            return None
        return loading.result()

    async def _serve(self, worker: Worker, child: ChildProcess) -> str:
        """Wait until a serving child ends; return why it failed, or an empty string if it was stopped."""
        self._make_free(worker)
        await first_of(child.exited, worker.stopping)
        while child.calls and child.is_alive and self.phase is not PoolPhase.CLOSED:
            await asyncio.wait({child.exited}, timeout=0.05)  # stopped during a call, which may finish
        return "" if child.is_alive else f"The process ended with {exit_text(child.exited.result())}."

    async def _note_failure(self, worker: Worker, reason: str) -> None:
        now_s = time.monotonic()
        self._failures = self._failures.add(now_s)
        get_logger().error("handler.failed", model=self.spec.model_name, reason=reason, failures=self._failures.count)
        self._settle_first(self._load_error(reason))
        if self._failures.gives_up(self.spec.restart, now_s):
            get_logger().error("handler.given_up", model=self.spec.model_name, failures=self._failures.count)
            self.phase = PoolPhase.FAILED
            for other in self.workers:
                other.stopping.set()
            self._refuse_queue()
        # `start` reports a failure before the first success to its caller, which decides; nothing is retried.
        if self.phase in {PoolPhase.LOADING, PoolPhase.FAILED, PoolPhase.CLOSED} or worker.stopping.is_set():
            worker.stopping.set()
            return
        self.counts.restarts += 1
        # Wait for the backoff, unless the pool is closed or scaled in meanwhile.
        stopping = asyncio.create_task(worker.stopping.wait())
        await asyncio.wait({stopping}, timeout=self._failures.restart_delay_s())
        stopping.cancel()

    def _load_error(self, reason: str) -> LoadError:
        form, level = log_options()
        is_on_screen = form == "console" and level in {"debug", "info"}
        lines = "" if is_on_screen else "\n".join(self.tail)
        reason = " ".join(reason.split())  # a FailureReason has the first line of an error
        return LoadError(f"{reason}\nThe last lines of its output:\n{lines}" if lines else reason)

    def _end_loading(self) -> None:
        """Let `start` return if the last child was stopped before it had loaded the code."""
        if self.phase is PoolPhase.LOADING and not self.min_workers:
            self.phase = PoolPhase.SERVING
            self._settle_first(None)
        else:
            self._settle_first(LoadError("The model was stopped before its code was loaded."))

    def _settle_first(self, error: Exception | None) -> None:
        if self._first is None or self._first.done():
            return
        if error is None:
            self._first.set_result(None)
        else:
            self._first.set_exception(error)

    # Requests.

    def _submit_own(self, worker: Worker, request: HandlerRequest) -> PendingResponse:
        response = PendingResponse(request, self._on_close)
        response.arrived_s = time.monotonic()
        worker.own.append(response)
        return response

    def _dispatch(self) -> None:
        """Dispatch queued requests to free children; start another child if none is free."""
        for owner in self.workers:
            if owner.takes_own:
                self._call(owner, [owner.own.popleft()], time.monotonic())
        while self._queue:
            worker = next((worker for worker in self.workers if worker.num_free), None)
            if worker is None:
                self._grow()
                return
            now_s = time.monotonic()
            batch = self._queue.take(now_s)
            if isinstance(batch, Wait):
                if self._batch_timer is not None:
                    self._batch_timer.cancel()
                self._batch_timer = asyncio.get_running_loop().call_later(batch.delay_s, self._dispatch)
                return
            self._call(worker, batch, now_s)

    def _call(self, worker: Worker, responses: list[PendingResponse], now_s: float) -> None:
        assert worker.child is not None, "a free worker has a child"
        worker.stop_idle_timer()
        for response in responses:
            self.counts.queue_s.observe(now_s - response.arrived_s)
        worker.child.call(responses, lambda call: self._on_done(worker, call))

    def _on_done(self, worker: Worker, call: ChildCall) -> None:
        self.counts.call_s.observe(time.monotonic() - call.started_s)
        self.counts.late_calls += call.is_late
        self._failures = Failures()
        self._make_free(worker)

    def _make_free(self, worker: Worker) -> None:
        self._dispatch()
        self._check_idle()
        self._start_idle_timer(worker)

    def _start_idle_timer(self, worker: Worker) -> None:
        if self._can_retire(worker):
            worker.stop_idle_timer()
            loop = asyncio.get_running_loop()
            worker.idle_timer = loop.call_later(self.spec.max_idle_s, self._retire, worker)

    def _retire(self, worker: Worker) -> None:
        if self._can_retire(worker):
            get_logger().info("handler.retired", model=self.spec.model_name, pid=worker.child and worker.child.pid)
            worker.stopping.set()

    def _can_retire(self, worker: Worker) -> bool:
        is_idle = worker.is_ready and worker.child is not None and not worker.child.calls
        return is_idle and len(self._staying) > self.min_workers

    def _grow(self) -> None:
        """Start a child above the minimum, one at a time, while requests wait and all others are busy."""
        is_starting = any(not worker.is_ready for worker in self._staying)
        if not is_starting and len(self.workers) < self.max_workers and self.phase is PoolPhase.SERVING:
            self._add_worker()

    def _on_close(self, response: PendingResponse) -> None:
        if self._queue.discard(response):
            self._check_idle()
            return
        for worker in self.workers:
            if response in worker.own:
                worker.own.remove(response)
                return
            if worker.child is not None and worker.child.runs(response):
                worker.child.cancel(response)
                return

    def _refuse_queue(self) -> None:
        self._queue.refuse_all(self._refused(Refusal.NOT_READY).response)

    def _check_idle(self) -> None:
        if self._idle and not self._queue and not self.num_running:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    def _refused(self, reason: Refusal) -> Refused:
        return Refused(refusal(self.spec, reason))
