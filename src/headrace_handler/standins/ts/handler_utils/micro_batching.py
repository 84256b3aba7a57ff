"""Micro-batching: the three stages of a handler run at once, on different parts of a batch."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..context import Context

HANDLER_METHODS = ["preprocess", "inference", "postprocess"]


class MicroBatching:
    """
    A replacement for a handler's `handle` that splits batches: `self.handle = MicroBatching(self)`.

    An exception in a stage ends the call with that exception; TorchServe's own class waits forever.
    """

    def __init__(
        self, parent_handler: Any, micro_batch_size: int = 1, parallelism: dict[str, int] | None = None
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._parallelism: dict[str, int] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._local = threading.local()
        self.parallelism = dict.fromkeys(HANDLER_METHODS, 1) | (parallelism or {})

    @property
    def parallelism(self) -> dict[str, int]:
        """Return the number of threads of each stage."""
        return dict(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: dict[str, int]) -> None:
        """Change the number of threads of the given stages."""
        for stage, num_threads in parallelism.items():
            if stage not in HANDLER_METHODS:
                raise ValueError(f"micro_batching.parallelism has {stage!r}; expected {', '.join(HANDLER_METHODS)}.")
            if num_threads < 1:
                raise ValueError(f"micro_batching.parallelism.{stage} is {num_threads}; expected at least 1.")
        for stage, num_threads in parallelism.items():
            if self._parallelism.get(stage) != num_threads:
                previous = self._pools.pop(stage, None)
                self._pools[stage] = ThreadPoolExecutor(num_threads, thread_name_prefix=stage)
                self._parallelism[stage] = num_threads
                if previous is not None:
                    previous.shutdown()

    def shutdown(self) -> None:
        """End the threads; calls that run are completed."""
        for pool in self._pools.values():
            pool.shutdown()

    def get_micro_batch_idx(self) -> int | None:
        """Return the number of the micro-batch that the calling thread works on."""
        return getattr(self._local, "micro_batch_idx", None)

    def handle(self, data: Sequence[Any]) -> list[Any]:
        """
        Take a batch through the stages and return its results in order.

        Raises:
            Exception: the first one that a stage raised, after the other micro-batches have left their stages.
        """
        size = self.micro_batch_size
        failed = threading.Event()
        ends: list[Future[Any]] = []
        for number, start in enumerate(range(0, len(data), size)):
            end: Future[Any] = Future()
            ends.append(end)
            self._submit(HANDLER_METHODS, number, data[start : start + size], end, failed)
        wait(ends)
        for end in ends:
            if (error := end.exception()) is not None:
                raise error
        return [row for end in ends for row in end.result()]

    def __call__(self, data: Sequence[Any], context: Context) -> Any:
        """Do the work of `BaseHandler.handle` with the stages in parallel."""
        start = time.perf_counter()
        handler = self.handler
        handler.context = context
        output: Any
        if handler._is_describe():  # noqa: SLF001
            output = [handler.describe_handle()]
        elif handler._is_explain():  # noqa: SLF001
            output = handler.explain_handle(handler.preprocess(data), data)
        else:
            output = self.handle(data)
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - start) * 1000, 2), None, "ms")
        return output

    def _submit(self, stages: list[str], number: int, value: Any, end: "Future[Any]", failed: threading.Event) -> None:
        self._pools[stages[0]].submit(self._run, stages, number, value, end, failed)

    def _run(self, stages: list[str], number: int, value: Any, end: "Future[Any]", failed: threading.Event) -> None:
        """Run a stage on a micro-batch and pass the result on; once one failed, the others begin no further stage."""
        self._local.micro_batch_idx = number
        try:
            if failed.is_set():
                end.set_result([])  # no result is read, because another micro-batch has an exception
            else:
                result = getattr(self.handler, stages[0])(value)
                if stages[1:]:
                    self._submit(stages[1:], number, result, end, failed)
                else:
                    end.set_result(list(result))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            failed.set()
            end.set_exception(error)
