"""Find and import the user's code: the module that holds the handler, and its formatters."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_handler.contract import Load, LoadFailed

logger = logging.getLogger(__name__)

MODULE = "model"
"""The name of the user's module, which files next to it import and pickles refer to (djl-serving up to 0.26)."""

_DEFAULT_HANDLER = "handle"
_SKLEARN = "djl_python.sklearn_handler"
_SKLEARN_SUFFIXES = (".skops", ".joblib", ".pkl", ".pickle", ".cloudpkl")
_ENGINES = ("huggingface", "deepspeed", "fastertransformer", "transformers_neuronx", "tensorrt_llm", "lmi_")
_UNAVAILABLE = (
    "No available memory for the cache blocks",
    "CUDA error: out of memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    module: Any
    handler: str
    """The name of the function that answers; the module may lack it if it has formatters."""
    input_formatter: Callable[..., Any] | None = None
    output_formatter: Callable[..., Any] | None = None

    @property
    def has_handler(self) -> bool:
        return callable(getattr(self.module, self.handler, None))

    @property
    def is_async(self) -> bool:
        """True if the handler is an `async def`."""
        function = getattr(self.module, self.handler, None)
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def load_code(load: Load) -> UserCode:
    """
    Import the code of a model.

    Raises `LoadFailed`: it is not there, cannot be imported, or has neither a handler nor formatters.
    """
    if str(load.model_dir) not in sys.path:
        sys.path.insert(0, str(load.model_dir))
    handler = load.options.get("handler") or _DEFAULT_HANDLER
    entry = load.entry or _default_entry(load)
    code = _read_module(_import(entry, load), handler)
    if code.has_handler:
        return code
    recommended = None if load.entry else _recommended(load)
    if recommended:
        logger.info("%s has no function %s: %s serves.", entry, handler, recommended)
        return _read_module(_import(recommended, load), handler)
    if code.input_formatter is None and code.output_formatter is None:
        raise LoadFailed(
            500, f"{entry} has no function {handler}; expected `def {handler}(inputs)`, see option.handler."
        )
    return code


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception is reported as a lack of memory (507)."""
    named = type(error).__name__ in {"OutOfMemoryError", "MemoryError"}
    return named or any(text in str(error) for text in _UNAVAILABLE)


def _read_module(module: Any, handler: str) -> UserCode:
    return UserCode(
        module=module,
        handler=handler,
        input_formatter=_marked(module, "is_input_formatter"),
        output_formatter=_marked(module, "is_output_formatter"),
    )


def _marked(module: Any, mark: str) -> Callable[..., Any] | None:
    return next((value for value in vars(module).values() if callable(value) and getattr(value, mark, False)), None)


def _default_entry(load: Load) -> str:
    for name in (f"{load.model_name}.py", "model.py"):
        if (load.model_dir / name).is_file():
            return name
    recommended = _recommended(load)
    if recommended is None:
        raise LoadFailed(500, f".py file not found in: {load.model_dir}")
    return recommended


def _recommended(load: Load) -> str | None:
    names = [f"{stem}{suffix}" for stem in (load.model_name, "model") for suffix in _SKLEARN_SUFFIXES]
    return _SKLEARN if any((load.model_dir / name).is_file() for name in names) else None


def _import(entry: str, load: Load) -> Any:
    if entry.startswith(("http://", "https://")):
        raise LoadFailed(
            500, f"option.entryPoint is {entry}; expected a file or module. Download it into the model's folder."
        )
    try:
        if entry.endswith(".py") or Path(entry).is_absolute() or (load.model_dir / entry).is_file():
            return _import_file(load.model_dir / entry)
        return _import_module(entry)
    except LoadFailed:
        raise
    except (Exception, SystemExit) as error:
        status = 507 if is_out_of_memory(error) else 500
        trace = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in trace if frame.filename.startswith(str(load.model_dir))]
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise LoadFailed(status, f"{entry} cannot be imported: {describe(error)}{where}") from error


def describe(error: BaseException) -> str:
    """Return an exception in one line, with its type."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _import_file(file: Path) -> Any:
    if not file.is_file():
        raise LoadFailed(500, f"entry-point file not found {file}.")
    spec = importlib.util.spec_from_loader(MODULE, importlib.machinery.SourceFileLoader(MODULE, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[MODULE]
        raise
    sys.modules.setdefault(file.stem, module)  # `import handler` in another file must not run handler.py again
    return module


def _import_module(name: str) -> Any:
    package, _, rest = name.partition(".")
    if package == "djl_python" and rest.startswith(_ENGINES):
        raise LoadFailed(
            500,
            f"option.entryPoint is {name}, which the server's engine stands for; expected user code such as model.py."
            " Serve the model without a handler.",
        )
    return importlib.import_module(name)
