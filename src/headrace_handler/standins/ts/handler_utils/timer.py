"""The decorator that measures the stages of a handler."""

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

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
