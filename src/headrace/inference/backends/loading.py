"""Loading of the chosen backend, whose module is imported only then."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.inference.backends.choice import BackendChoice, HostFacts, Request, choose_backend
from headrace.inference.backends.facts import host_facts, model_facts
from headrace.inference.engine.backend import Backend
from headrace.inference.engine.config import EngineConfig, ModelSource
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.models.sources import Located, home_folder, locate

LOADERS: Final = {
    "native": ("headrace.inference.engine.loading.assembly", "assemble"),
    "torch": ("headrace.inference.backends.torch", "load_torch"),
    "transformers": ("headrace.inference.backends.transformers", "load_transformers"),
    "vllm": ("headrace.inference.backends.vllm.loading", "load_vllm"),
}
"""The module and the function that load each backend; the function takes what `load_backend` takes."""


def load_backend(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
    on_choice: Callable[[BackendChoice], None] | None = None,
) -> Backend:
    """
    Choose a backend, load the model into it and return it, not started; `on_choice` is called before the model loads.

    Raises:
        UserError: The model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    located, choice, host = choose(source, config, progress)
    if on_choice is not None:
        on_choice(choice)
    module, function = LOADERS[choice.name]
    load: Callable[..., Backend] = getattr(import_module(module), function)
    return load(replace(source, model=located), chosen_config(config, choice, host), progress, observer=observer)


def choose(
    source: ModelSource, config: EngineConfig, progress: Progress = no_progress
) -> tuple[Located, BackendChoice, HostFacts]:
    """Find the model, download it if necessary, and choose its backend on this host; raise as `load_backend` does."""
    home = source.cache_dir or home_folder(os.environ)
    located = locate(source.model, revision=source.revision, home=home, progress=progress)
    host = host_facts(os.environ)
    request = Request(
        backend=config.backend,
        engine=config.rolling_batch,
        device=config.device,
        is_strict=config.strict_backend,
        trust_remote_code=source.trust_remote_code,
    )
    choice = choose_backend(request, model_facts(located.path, task=source.task), host)
    return located, replace(choice, adjustments=adjustments(config, choice, host)), host


def adjustments(config: EngineConfig, choice: BackendChoice, host: HostFacts) -> dict[str, str]:
    """Return a sentence for each setting that was made for a GPU and that the chosen backend replaces."""
    found = {}
    if _replaces_fp16(config, choice, host):
        found["dtype"] = "dtype is fp16, which the native backend does not compute in: it runs as bf16 on the CPU."
    is_on_one = choice.name == "transformers" and choice.device == "cuda"
    if is_on_one and config.tensor_parallel_size == 0 and host.num_gpus > 1:
        found["tensor_parallel_size"] = (
            f"tensor_parallel_size is max, but the transformers backend uses one of the {host.num_gpus} GPUs."
        )
    return found


def _replaces_fp16(config: EngineConfig, choice: BackendChoice, host: HostFacts) -> bool:
    """Return whether `auto` ended at the native backend on a host with GPUs, for which fp16 was set."""
    return config.dtype == "fp16" and choice.name == "native" and config.backend == "auto" and host.num_gpus > 0


def chosen_config(config: EngineConfig, choice: BackendChoice, host: HostFacts) -> EngineConfig:
    """Return the configuration for the chosen backend; raises `SettingsError` for what the backend cannot do."""
    if config.prefix_cache_dir is not None and choice.name != "native":
        raise SettingsError(
            f"prefix_cache_dir is {config.prefix_cache_dir}, but the backend is {choice.name}, which keeps no prefixes "
            "on disk. Remove it, or choose --backend native.",
            name="prefix_cache_dir",
        )
    vllm_args = config.vllm_args or {}
    stronger = set(vllm_args if choice.name == "vllm" else ())
    dtype = "bf16" if _replaces_fp16(config, choice, host) else config.dtype
    stages = vllm_args.get("pipeline_parallel_size")
    num_stages = stages if isinstance(stages, int) and stages > 0 else 1  # vLLM itself refuses what is no count
    return replace(
        config,
        backend=choice.name,
        backend_reason=choice.reason,
        device=choice.device,
        tensor_parallel_size=num_devices(config.tensor_parallel_size, choice, host, num_stages=num_stages),
        dtype="auto" if stronger & {"dtype", "quantization"} else dtype,
        kv_dtype="auto" if "kv_cache_dtype" in stronger else config.kv_dtype,
    )


def num_devices(requested: int | None, choice: BackendChoice, host: HostFacts, *, num_stages: int = 1) -> int:
    """
    Return the number of devices that the network, or each stage of vLLM's pipeline, is split over.

    `requested` is the setting `tensor_parallel_size`: None for 1, 0 for all GPUs that the backend can use, which the
    stages of vLLM's pipeline share. Raises `SettingsError` if there are fewer GPUs.
    """
    is_cuda = choice.device == "cuda"
    if requested == 0:
        splits = is_cuda and choice.name != "transformers"
        return max(host.num_gpus // (num_stages if choice.name == "vllm" else 1), 1) if splits else 1
    wanted = requested or 1
    if is_cuda and wanted > host.num_gpus:
        raise SettingsError(
            f"tensor_parallel_size is {wanted}; expected at most {host.num_gpus}, the GPUs that this process sees. "
            "Lower it, or use max.",
            name="tensor_parallel_size",
        )
    if choice.name == "native" and wanted > 1:
        raise SettingsError(
            f"tensor_parallel_size is {wanted}; expected 1, as the native backend does not split a network. "
            "Remove it, or choose --backend torch or vllm.",
            name="tensor_parallel_size",
        )
    return wanted
