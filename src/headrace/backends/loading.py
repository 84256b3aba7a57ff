"""Loading of the chosen backend, whose module is imported only then."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headrace.core.errors import SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.engine.backend import Backend
from headrace.engine.config import EngineConfig, ModelSource
from headrace.engine.core.observer import EngineObserver

Load = Callable[..., Backend]
"""Takes what `load_backend` takes."""

_LOADERS = {
    "native": ("headrace.engine.loading.assembly", "assemble"),
    "torch": ("headrace.backends.torch", "load_torch"),
    "transformers": ("headrace.backends.transformers", "load_transformers"),
    "vllm": ("headrace.backends.vllm", "load_vllm"),
}
"""The module and the function that load each backend."""


def load_backend(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> Backend:
    """
    Choose a backend, load the model into it and return it, not started.

    Raises:
        UserError: the model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    name = "native" if config.backend == "auto" else config.backend
    load = _loader(name)
    device = "cpu" if config.device == "auto" else config.device
    chosen = replace(config, backend=name, device=device, tensor_parallel_size=config.tensor_parallel_size or 1)
    return load(source, chosen, progress, observer=observer)


def _loader(name: str) -> Load:
    module, function = _LOADERS[name]
    if find_spec(module) is None:
        raise SettingsError(f"backend is {name!r}, which is not part of this version.", name="backend")
    loader: Any = getattr(import_module(module), function, None)
    if loader is None:
        raise SettingsError(f"backend is {name!r}, which is not part of this version.", name="backend")
    load: Load = loader
    return load
