"""The user's code and its surroundings: variables and the log, the program, its functions, and their context."""

import copy
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace_handler.contract import Headers, Item, Load, LoadFailed

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
SERVER_VERSION = "1.1.11"
"""The version of Multi Model Server that the images have."""


def prepare_process(load: Load) -> None:
    """Set up what the containers set up before they import user code: variables and the level of the log."""
    os.environ["SM_MODEL_DIR"] = str(load.model_dir)
    if load.options.get("profile") == "xgboost":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when xgboost is imported
    level = os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "")
    if level.isascii() and level.isdigit():
        logging.getLogger().setLevel(int(level))


def import_program(load: Load) -> ModuleType | None:
    """
    Import the program once, under its own name, as pickles of its classes expect.

    Its folder, `code/` and the model's folder come first on `sys.path`.

    Returns:
        None for a model without a program, which its image's functions serve.

    Raises `LoadFailed`: the named program does not exist, or has the name of a module that is already imported.
    """
    folders = [load.model_dir / "code", load.model_dir]
    if not load.entry:
        _put_first(folders)
        return None
    path = _find(load.entry, folders)
    _put_first(dict.fromkeys([path.parent, *folders]))
    imported = sys.modules.get(path.stem)
    if imported is not None and Path(getattr(imported, "__file__", None) or "").resolve() != path.resolve():
        raise LoadFailed(500, f"The program {path.name} has the name of a module in use. Rename it.")
    return importlib.import_module(path.stem)


def _find(entry: str, folders: list[Path]) -> Path:
    name = entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"
    for folder in folders:
        path = folder / name  # an absolute name stays what it is
        if path.is_file():
            return path
    searched = " and ".join(str(folder) for folder in folders)
    raise LoadFailed(500, f"The program {entry} (SAGEMAKER_PROGRAM) does not exist; expected it in {searched}.")


def _put_first(folders: dict[Path, None] | list[Path]) -> None:
    names = [str(folder) for folder in folders if folder.is_dir()]
    sys.path[:] = [*names, *(name for name in sys.path if name not in names)]
    importlib.invalidate_caches()


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


def context_of_model(load: Load) -> Any:
    from ts.context import Context

    return Context(
        load.model_name,
        str(load.model_dir),
        dict(load.manifest),
        load.batch_size,
        load.device,
        SERVER_VERSION,
        model_yaml_config=dict(load.model_config),
    )


def context_of_item(model: Any, item: Item) -> Any:
    """Return the context of a request, whose index is always 0, with attributes that user code set on the model's."""
    from ts.context import RequestProcessor
    from ts.metrics.metrics_store import MetricsStore

    context = copy.copy(model)
    context.request_ids = {0: item.request_id}
    context.request_processor = [RequestProcessor(dict(item.headers))]
    context.metrics = MetricsStore(context.request_ids, context.model_name)
    return context


def report_metrics(context: Any) -> None:
    """Print the metrics of user code in the format of the model servers, which is parsed from the output."""
    for metric in context.metrics.store:
        print(f"[METRICS]{metric}", flush=True)


def header(headers: Headers, *names: str) -> str | None:
    """Return the first header of one of the names, in any case."""
    return next((value for name, value in headers if name.lower() in names), None)
