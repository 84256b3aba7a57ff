"""Loading of the vLLM backend: arguments and environment from the settings, the start of its processes, our text."""

import logging
import os
import tempfile
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import HeadraceError, SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import Progress, no_progress
from headrace.core.sampling_defaults import recommended_sampling
from headrace.core.telemetry import log_options
from headrace.core.threads import usable_cpus
from headrace.inference.backends.vllm.adapters import read_adapter
from headrace.inference.backends.vllm.arguments import HostMemory, check_settings, engine_arguments, merge_arguments
from headrace.inference.backends.vllm.child import (
    FAILURES_FILE,
    FOLDER_VARIABLE,
    PLUGIN,
    PLUGIN_GROUP,
    cpus_of_ranks,
    library_level,
    variables_set,
    vllm_variables,
)
from headrace.inference.backends.vllm.engine import VllmEngine
from headrace.inference.backends.vllm.errors import MISSING, read_failures, start_error
from headrace.inference.backends.vllm.stats import StepStats
from headrace.inference.backends.vllm.watchdog import Watchdog
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.assembly import text_parts
from headrace.inference.engine.loading.plan import DEFAULT_MAX_MODEL_LEN, ContextLength, limits_within
from headrace.inference.engine.loading.source import read_hf_model, start_adapters
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.infill import find_infill
from headrace.inference.models.model import HfModel
from headrace.inference.models.sources import home_folder
from headrace_handler.stray_files import listed

if TYPE_CHECKING:
    from headrace.inference.backends.vllm.client import AsyncLLMClient

_OUR_DTYPES: Final = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def load_vllm(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> AsyncEngine:
    """
    Start vLLM with a model and return its backend, which is not started; see `load_backend`.

    Raises `EngineFailed`, too, if a process of vLLM failed for another reason than those of the user.
    """
    if find_spec("vllm") is None:
        raise SettingsError(MISSING, name="backend")
    if PLUGIN not in entry_points(group=PLUGIN_GROUP).names:
        raise SettingsError(
            f"Headrace's entry point in {PLUGIN_GROUP} is not installed, without which vLLM's processes could outlive "
            "the server. Install Headrace again (`pip install` or scripts/venv).",
            name="backend",
        )
    check_settings(source, config)
    model = read_hf_model(source, progress)
    context = ContextLength(
        default=model.max_positions or DEFAULT_MAX_MODEL_LEN, longest=None if source.rope else model.max_positions
    )
    limits = limits_within(config, context, max_model_len=source.max_model_len)
    arguments = engine_arguments(source, config, model, limits, _host_memory(config, model))
    stats = StepStats()
    client = _start(source, config, arguments, stats)
    parts = text_parts(model)
    table = TokenTable(parts.tokenizer)
    limits = _started_limits(limits, config, client)
    engine = VllmEngine(
        client,
        table,
        stats,
        num_adapter_slots=config.max_loras,
        read_adapter=partial(read_adapter, max_rank=config.max_lora_rank if config.max_loras else 0),
        step_timeout_s=config.step_timeout_s,
    )
    return AsyncEngine(
        engine,
        parts,
        table,
        limits,
        _model_info(source, config, model, limits, client),
        observer=observer,
        start_adapters=start_adapters(source.adapter, model.path) if config.max_loras else {},
    )


def _start(source: ModelSource, config: EngineConfig, arguments: dict[str, Any], stats: StepStats) -> "AsyncLLMClient":
    """Start vLLM's processes with its environment variables set; a failure of theirs is explained."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-vllm-"))
    variables = vllm_variables(
        os.environ,
        folder=folder,
        log=" ".join(log_options()),
        cache_dir=source.cache_dir or home_folder(os.environ),
        cpus=cpus_of_ranks(
            sorted(usable_cpus()), num_ranks=config.tensor_parallel_size or 1, num_threads=config.threads
        )
        if config.device == "cpu"
        else None,
        is_batch_invariant=bool(config.batch_invariant),
        step_timeout_s=config.step_timeout_s,
    )
    watchdog = Watchdog(FOLDER_VARIABLE, folder)
    # Without the variables, so that the watchdog spares it: it removes the shared memory of killed processes.
    resource_tracker.ensure_running()
    with variables_set(variables):
        logging.getLogger("vllm").setLevel(library_level(log_options()[1]))
        try:
            from headrace.inference.backends.vllm.client import AsyncLLMClient, argument_names

            merged = merge_arguments(arguments, config.vllm_args or {}, argument_names())
            return AsyncLLMClient(merged, stats, watchdog)
        except BaseException as error:
            failures = read_failures(folder / FAILURES_FILE)
            watchdog.close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise start_error(error, failures) from error


def _host_memory(config: EngineConfig, model: HfModel) -> HostMemory | None:
    if config.device != "cpu":
        return None
    from headrace.core.host_memory import available_memory_bytes

    files = listed(model.path, ("*.safetensors", "*.bin", "*.pt"))
    weights_bytes = sum(file.stat().st_size for file in files)
    return HostMemory(available_bytes=available_memory_bytes(), weights_bytes=weights_bytes)


def _started_limits(limits: EngineLimits, config: EngineConfig, client: "AsyncLLMClient") -> EngineLimits:
    """Return the limits that vLLM started with: `vllm_args` may have changed them, or its KV cache the context."""
    scheduler = client.config.scheduler_config
    max_model_len = int(client.config.model_config.max_model_len)
    return replace(
        limits,
        max_model_len=max_model_len,
        max_prompt_tokens=min(config.max_prompt_tokens or max_model_len - 1, max_model_len - 1),
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        enable_prefix_caching=bool(client.config.cache_config.enable_prefix_caching),
    )


def _model_info(
    source: ModelSource, config: EngineConfig, model: HfModel, limits: EngineLimits, client: "AsyncLLMClient"
) -> ModelInfo:
    started = client.config
    dtype = _OUR_DTYPES.get(str(started.model_config.dtype), str(started.model_config.dtype))
    kv_dtype = str(started.cache_config.cache_dtype)
    quantization = started.model_config.quantization
    return ModelInfo(
        name=source.served_model_name or model.name,
        revision=model.revision,
        family=model.model_type,
        dtype=dtype if quantization is None else f"{quantization} ({dtype})",
        kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
        device=config.device,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=limits.max_num_seqs,
        vocab_size=client.vocab_size,
        num_parameters=0,
        has_chat_template=model.chat_template is not None,
        answer_format=None if model.chat_template is None else model.chat_template.answer_format,
        has_effort_levels=model.chat_template is not None and model.chat_template.has_effort_levels,
        can_infill=find_infill(model.tokenizer) is not None,
        tool_support=None if model.chat_template is None else model.chat_template.tool_support,
        created_s=int(time.time()),
        format_reason=f"{config.dtype} as requested" if config.dtype != "auto" else "as vLLM chooses",
        sampling_defaults=model.defaults.sampling,
        recommended=recommended_sampling(model.defaults.sampling, num_parameters=0),
        max_batch_tokens=limits.max_num_batched_tokens,
        backend="vllm",
        backend_reason=config.backend_reason,
        is_batch_invariant=bool(config.batch_invariant),
    )
