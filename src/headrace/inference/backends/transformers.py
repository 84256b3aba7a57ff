"""
The transformers backend: networks that transformers builds, in our engine.

Batching, KV cache, prefix cache, streaming, sampling, logprobs, grammars and adapters are those of the native backend;
only the network differs (see `headrace.inference.runner.transformers`).
"""

from functools import partial

from headrace.core.errors import SettingsError
from headrace.core.progress import Progress, no_progress
from headrace.core.threads import usable_cpus
from headrace.inference.backends.hf_parts import MAX_STEP_ROWS, device_budget, model_info
from headrace.inference.backends.seq2seq import load_seq_to_seq
from headrace.inference.engine.backend import Backend
from headrace.inference.engine.config import EngineConfig, ModelSource
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.assembly import text_parts
from headrace.inference.engine.loading.plan import (
    DEFAULT_MAX_MODEL_LEN,
    ContextLength,
    check_threads,
    limits_within,
    step_limits,
)
from headrace.inference.engine.loading.source import read_hf_model, start_adapters
from headrace.inference.engine.service.async_engine import AsyncEngine, runner_engine
from headrace.inference.models.model import HfModel
from headrace.inference.models.peft_adapter import read_peft_modules
from headrace.inference.runner.cpu import default_threads
from headrace.inference.runner.transformers.loading import NetworkSource, load_network, make_runner, read_source


def load_transformers(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> Backend:
    """
    Load a model with transformers and return its engine, not started yet.

    Raises:
        UserError: The model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    _check(source, config)
    model = read_hf_model(source, progress)
    _set_threads(config)
    network = read_source(
        model.path, dtype=config.dtype, device=config.device, trust_remote_code=source.trust_remote_code
    )
    if network.is_encoder_decoder:
        return load_seq_to_seq(model, network, source, config, observer)
    return _causal_engine(model, network, source, config, observer)


def _causal_engine(
    model: HfModel,
    network: NetworkSource,
    source: ModelSource,
    config: EngineConfig,
    observer: EngineObserver | None,
) -> AsyncEngine:
    context = ContextLength(
        default=model.max_positions or DEFAULT_MAX_MODEL_LEN, longest=model.max_positions, takes_rope=False
    )
    limits = limits_within(config, context, max_model_len=source.max_model_len)
    budget = device_budget(config)
    largest = step_limits(limits, config, max_rows=MAX_STEP_ROWS)
    runner = make_runner(load_network(network, budget), network, largest, budget, vocab_size=model.vocab_size)
    return runner_engine(
        runner,
        text_parts(model),
        limits,
        model_info(source, model, limits, runner, config),
        observer=observer,
        read_adapter=partial(read_peft_modules, shapes=runner.adaptable, max_rank=config.max_lora_rank),
        start_adapters=start_adapters(source.adapter, model.path) if config.max_loras else {},
    )


def _check(source: ModelSource, config: EngineConfig) -> None:
    """Refuse the settings that only other backends support."""
    if source.task not in {"auto", "generate"}:
        raise SettingsError(
            f"task is {source.task}, but the transformers backend only generates. Use --backend native.", name="task"
        )
    if source.rope is not None:
        raise SettingsError(
            "rope is set, but the transformers backend takes the context of the checkpoint. Edit rope_parameters in "
            "its config.json, or use --backend native.",
            name="rope",
        )
    if config.kv_dtype not in {"auto", config.dtype}:
        raise SettingsError(
            f"kv_dtype is {config.kv_dtype}; expected auto with the transformers backend, whose KV cache has the dtype "
            "of the network.",
            name="kv_dtype",
        )
    if (config.tensor_parallel_size or 1) > 1:
        raise SettingsError(
            f"tensor_parallel_size is {config.tensor_parallel_size}, but the transformers backend runs on one device. "
            "Use --backend vllm or --backend torch.",
            name="tensor_parallel_size",
        )
    if config.batch_invariant:
        raise SettingsError(
            "batch_invariant is on, but the transformers backend cannot promise it: torch chooses kernels by the size "
            "of the batch. Use --backend native or --backend torch.",
            name="batch_invariant",
        )


def _set_threads(config: EngineConfig) -> None:
    import torch

    check_threads(config.threads, len(usable_cpus()))
    torch.set_num_threads(config.threads or default_threads())
