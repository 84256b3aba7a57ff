"""
The transformers backend: networks that transformers builds, in our engine.

Batching, KV cache, prefix cache, streaming, sampling, logprobs, grammars and adapters are those of the native backend;
only the network is another one (see `headrace.runner.transformers`).
"""

import time
from functools import partial

from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import Progress, no_progress
from headrace.engine.backend import Backend
from headrace.engine.config import EngineConfig, EngineLimits, ModelSource, fit_to_runner
from headrace.engine.core.observer import EngineObserver
from headrace.engine.loading.adapters import start_adapters
from headrace.engine.loading.assembly import recommended_sampling
from headrace.engine.loading.plan import (
    BLOCK_TOKENS,
    DEFAULT_MAX_MODEL_LEN,
    ContextLength,
    check_threads,
    limits_within,
)
from headrace.engine.loading.plan import num_cpus as allowed_cpus
from headrace.engine.service.async_engine import AsyncEngine, runner_engine
from headrace.engine.service.request_processor import TextParts
from headrace.models.loading import load_hf_model
from headrace.models.model import HfModel
from headrace.models.peft_adapter import read_peft_modules
from headrace.models.pooling import Pooler
from headrace.runner.cpu import default_threads
from headrace.runner.memory import MemoryBudget, available_memory_bytes
from headrace.runner.step import RunnerLimits
from headrace.runner.transformers.loading import NetworkSource, load_network, make_runner, read_source
from headrace.runner.transformers.runner import TransformersRunner

_MAX_STEP_ROWS = 1024
"""Logits computed at a time: more prompt logprobs take more steps, and the vocabulary may be large."""


def load_transformers(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> Backend:
    """
    Load a model with transformers and return its engine, which is not started.

    Raises:
        UserError: The model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    _check(source, config)
    model = load_hf_model(
        source.model,
        revision=source.revision,
        cache_dir=source.cache_dir,
        chat_template=source.chat_template,
        progress=progress,
    )
    _set_threads(config)
    network = read_source(
        model.path, dtype=config.dtype, device=config.device, trust_remote_code=source.trust_remote_code
    )
    return _causal_engine(model, network, source, config, observer)


def _causal_engine(
    model: HfModel,
    network: NetworkSource,
    source: ModelSource,
    config: EngineConfig,
    observer: EngineObserver | None,
) -> AsyncEngine:
    context = ContextLength(default=model.max_positions or DEFAULT_MAX_MODEL_LEN, longest=model.max_positions)
    limits = limits_within(config, context, max_model_len=source.max_model_len)
    budget = _budget(config)
    runner = make_runner(
        load_network(network, budget),
        network,
        RunnerLimits(
            num_blocks=1,
            block_tokens=BLOCK_TOKENS,
            max_step_tokens=limits.max_num_batched_tokens,
            max_step_sequences=limits.max_num_seqs,
            max_step_rows=max(limits.max_num_seqs, min(limits.max_num_batched_tokens, _MAX_STEP_ROWS)),
            max_context_tokens=limits.max_model_len,
            max_adapters=config.max_loras,
            max_adapter_rank=config.max_lora_rank,
        ),
        budget,
        vocab_size=model.vocab_size,
    )
    return runner_engine(
        runner,
        TextParts(
            tokenizer=model.tokenizer,
            chat_template=model.chat_template,
            eos_token_ids=model.defaults.eos_token_ids | model.tokenizer.eos_token_ids,
            pooler=Pooler(),
        ),
        limits,
        _model_info(source.served_model_name or model.name, model, limits, runner, config),
        observer=observer,
        read_adapter=partial(read_peft_modules, shapes=runner.adaptable, max_rank=config.max_lora_rank),
        start_adapters=start_adapters(source.adapter, model.path) if config.max_loras else {},
    )


def _check(source: ModelSource, config: EngineConfig) -> None:
    """Refuse the settings that another backend has."""
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

    check_threads(config.threads, allowed_cpus())
    torch.set_num_threads(config.threads or default_threads())


def _budget(config: EngineConfig) -> MemoryBudget:
    return MemoryBudget(
        available_bytes=_gpu_bytes(config.gpu_memory_utilization)
        if config.device == "cuda"
        else available_memory_bytes(),
        max_memory_bytes=None if config.device == "cuda" else config.max_memory_bytes,
        kv_cache_bytes=config.kv_cache_bytes,
        max_kv_cache_tokens=config.max_kv_cache_tokens,
    )


def _gpu_bytes(utilization: float) -> int:
    """Return the free memory of the GPU without the share that is not to be used."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return max(0, int(free - total * (1 - utilization)))


def _model_info(
    name: str, model: HfModel, limits: EngineLimits, runner: TransformersRunner, config: EngineConfig
) -> ModelInfo:
    fitted = fit_to_runner(limits, runner.limits)
    return ModelInfo(
        name=name,
        revision=model.revision,
        family=model.model_type,
        dtype=runner.info.dtype,
        kv_dtype=runner.info.kv_dtype,
        device=runner.info.device,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=limits.max_num_seqs,
        vocab_size=model.vocab_size,
        num_parameters=runner.num_parameters,
        has_chat_template=model.chat_template is not None,
        created_s=int(time.time()),
        format_reason=f"{runner.info.dtype} {'as requested' if config.dtype != 'auto' else 'as in the checkpoint'}",
        recommended=recommended_sampling(model.defaults),
        max_batch_tokens=fitted.max_num_batched_tokens,
        backend="transformers",
        backend_reason=config.backend_reason,
        is_batch_invariant=runner.info.is_batch_invariant,
    )
