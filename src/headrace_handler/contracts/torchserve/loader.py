"""Load a handler by its name, and find the functions that the model server calls."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

Handle = Callable[[Any, Any], Any]
"""Takes the requests of a batch and the context."""
Initialize = Callable[[Any], Any]

ENVELOPES: Final = ("body", "json", "kserve", "kservev2")


def load_handler(entry: str, model_dir: Path) -> tuple[Handle, Initialize]:
    """
    Import a handler.

    Args:
        entry: `file.py`, `module` or `folder/file.py`, with `:function` for another function than `handle`; or the name
            of a default handler, such as `image_classifier`.
        model_dir: the folder of the model.

    Raises `Exception`: the module or what it imports cannot be imported, or defines no handler.
    """
    file, _, function = entry.partition(":")
    module = _import_module(file, model_dir)
    name = function or "handle"
    if hasattr(module, name):
        handle = getattr(module, name)
        return handle, lambda context: handle(None, context)
    return _make_instance(module)


def add_envelope(handle: Handle, name: str) -> Handle:
    if name not in ENVELOPES:
        raise ValueError(f"The service envelope is {name!r}; expected one of {', '.join(ENVELOPES)}.")
    module = importlib.import_module(f"ts.torch_handler.request_envelope.{name}")
    wrapped: Handle = _own_classes(module)[0](handle).handle
    return wrapped


def _import_module(file: str, model_dir: Path) -> ModuleType:
    path = Path(file)
    name = path.name.removesuffix(".py")
    for folder in (model_dir, model_dir / path.parent):
        if str(folder) not in sys.path[:2]:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the handler exists, and something that it imports does not
            raise
    try:
        return importlib.import_module(f"ts.torch_handler.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"ts.torch_handler.{name}":
            raise
    raise ModuleNotFoundError(
        f"The handler is {file!r}, which is neither a file of the model nor a default handler.", name=name
    )


def _make_instance(module: ModuleType) -> tuple[Handle, Initialize]:
    classes = _own_classes(module)
    if len(classes) != 1:
        raise ValueError(f"Expected only one class in custom service code or a function entry point {classes}")
    service = classes[0]()
    if not hasattr(service, "handle"):
        raise ValueError(f"Expect handle method in class {classes[0]}")
    return service.handle, service.initialize


def _own_classes(module: ModuleType) -> list[Any]:
    """Return the classes that a module defines itself: those that it imports are not handlers."""
    values = (getattr(module, name) for name in sorted(dir(module)))
    return [value for value in values if isinstance(value, type) and value.__module__ == module.__name__]
