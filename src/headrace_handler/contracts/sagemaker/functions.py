"""The functions of a model: those of the user's module, and the image's for the rest."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

NUM_ARGUMENTS: Mapping[str, int] = {
    "pre_model_fn": 1,
    "model_fn": 1,
    "model_warmup_fn": 2,
    "input_fn": 2,
    "predict_fn": 2,
    "output_fn": 2,
    "transform_fn": 4,
}

Function = Callable[..., Any]
"""Called with the arguments of `NUM_ARGUMENTS` and then with the context."""


def find(
    module: ModuleType | None, defaults: Mapping[str, Function], *, with_context: bool, conflict: str
) -> dict[str, Function]:
    """
    Return the functions by name.

    Args:
        module: the user's.
        defaults: the image's, which take no context.
        with_context: whether the image passes the context to a function with one parameter more. Names do not count.
        conflict: the image's text for `transform_fn` beside the functions that it replaces.

    Raises:
        ValueError: `conflict`.
        TypeError: a function has another number of parameters.
    """
    own = {name: function for name in NUM_ARGUMENTS if callable(function := getattr(module, name, None))}
    if "transform_fn" in own and not own.keys().isdisjoint({"input_fn", "predict_fn", "output_fn"}):
        raise ValueError(conflict)
    adapt = _adapt if with_context else _without_context
    return {name: _drop_context(function) for name, function in defaults.items()} | {
        name: adapt(function, NUM_ARGUMENTS[name]) for name, function in own.items()
    }


def _adapt(function: Function, num_arguments: int) -> Function:
    num_parameters = len(inspect.signature(function).parameters)
    if num_parameters == num_arguments:
        return _drop_context(function)
    if num_parameters == num_arguments + 1:
        return function
    raise TypeError(f"{function.__name__} takes {num_parameters} arguments but {num_arguments} were given.")


def _without_context(function: Function, num_arguments: int) -> Function:
    inspect.signature(function).bind(*[None] * num_arguments)  # TypeError now and not at each request
    return _drop_context(function)


def _drop_context(function: Function) -> Function:
    return lambda *arguments: function(*arguments[:-1])
