"""Helpers for handlers: streaming, micro-batching, time measurement, a tokenizer."""

import functools
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace_handler.submodules import add_submodules

from ..context import Context

_P = ParamSpec("_P")
_R = TypeVar("_R")


def timed(func: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Report the duration of a method as the metric `ts_handler_<name>` if the model's `handler.profile` is true."""

    @functools.wraps(func)
    def measure(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        config = self.context.model_yaml_config.get("handler") if self.context else None
        if not (isinstance(config, dict) and config.get("profile")):
            return func(self, *args, **kwargs)
        _finish_gpu_work()
        start = time.perf_counter()
        result = func(self, *args, **kwargs)
        _finish_gpu_work()
        self.context.metrics.add_time(f"ts_handler_{func.__name__}", (time.perf_counter() - start) * 1000)
        return result

    return measure


def _finish_gpu_work() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
        return dict(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: dict[str, int]) -> None:
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

        Raises `Exception`: the first one that a stage raised, after the other micro-batches have left their stages.
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


_SPACED = re.compile(r"([.,()!?'])")
_DROPPED = re.compile(r'"')
_BLANK = re.compile(r"<br />|[;:]|\s+")


def get_tokenizer(tokenizer: str | None, language: str = "en") -> Callable[[str], list[str]]:
    """
    Return a tokenizer by name: None splits at white space.

    `basic_english` also lowers the case, makes tokens of punctuation marks and drops quotes, colons and semicolons.
    """
    if tokenizer is None:
        return str.split
    if tokenizer != "basic_english":
        raise ValueError(f"The tokenizer is {tokenizer!r}; expected 'basic_english' or None.")
    if language != "en":
        raise ValueError(f"The language is {language!r}; 'basic_english' expects 'en'.")
    return lambda line: _SPACED.sub(r" \1 ", _DROPPED.sub("", _BLANK.sub(" ", line.lower()))).split()


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yield the tokens, then their pairs and so on up to `ngrams` tokens, joined by spaces."""
    for length in range(1, ngrams + 1):
        for start in range(len(token_list) - length + 1):
            yield " ".join(token_list[start : start + length])


def send_intermediate_predict_response(
    ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Context
) -> None:
    """
    Send a part of the response to each request of a batch, or of a part of the batch; wait for slow clients.

    Of a job of several processes, only the first one sends. The parts in `ret` have the keys of `req_id_map`, whose
    values are the requests' ids. A `code` other than 200 ends the requests with an error of that `message`.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        context.cl_socket.send_intermediate(ret, req_id_map, message, code)


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Import a class by its name with that of its module, relative to `module_prefix` if there is one."""
    if not class_name:
        raise ImportError("class name is not defined")
    module_name, _, name = class_name.rpartition(".")
    full_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not full_name:
        raise ImportError("module name is not defined.")
    found = getattr(importlib.import_module(full_name), name, None)
    if found is None:
        raise ImportError(f"class:{name} not found in module:{full_name}.")
    return found


add_submodules(
    __name__,
    {
        "micro_batching": "HANDLER_METHODS MicroBatching",
        "text_utils": "get_tokenizer ngrams_iterator",
        "timer": "timed",
        "utils": "send_intermediate_predict_response import_class",
    },
)
