"""
Assembly of an engine: model, weight formats, limits, memory plan, native runner.

Blocks while loading; the server calls it on a thread. `resolve_*` are pure functions of configuration and model.
"""

import os
import time

from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo, RecommendedSampling
from headrace.core.progress import Progress, no_progress
from headrace.engine.config import EngineConfig, EngineLimits
from headrace.engine.core.observer import EngineObserver
from headrace.engine.loading.formats import SMOOTHQUANT, Formats, Machine, choose_formats
from headrace.engine.loading.smoothquant import smoothed_model
from headrace.engine.service.async_engine import AsyncEngine
from headrace.engine.service.request_processor import TextParts
from headrace.models.loading import load_model
from headrace.models.model import GenerationDefaults, Model
from headrace.models.shapes import expected_shapes
from headrace.models.sources import home_folder
from headrace.models.spec import ModelSpec
from headrace.models.weights import dominant_bits
from headrace.runner.step import Runner, RunnerLimits

BLOCK_TOKENS = 32
DEFAULT_MAX_MODEL_LEN = 8192


def assemble(
    config: EngineConfig, progress: Progress = no_progress, *, observer: EngineObserver | None = None
) -> AsyncEngine:
    """
    Load a model and return its engine, which is not started.

    Raises:
        UserError: The model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    model = load_model(
        config.model,
        revision=config.revision,
        max_model_len=config.max_model_len,
        cache_dir=config.cache_dir,
        chat_template=config.chat_template,
        progress=progress,
    )
    limits = resolve_limits(config, model.spec)
    formats = _formats(config, model)
    runner = _load_runner(config, model, formats, limits, progress)
    eos_token_ids = model.defaults.eos_token_ids | model.tokenizer.eos_token_ids
    parts = TextParts(tokenizer=model.tokenizer, chat_template=model.chat_template, eos_token_ids=eos_token_ids)
    return AsyncEngine(runner, parts, limits, _model_info(config, model, runner, limits, formats), observer=observer)


def resolve_limits(config: EngineConfig, spec: ModelSpec) -> EngineLimits:
    """Return the engine's numbers for this model; raises `SettingsError` for those that cannot be."""
    max_model_len = _max_model_len(config, spec)
    max_prompt_tokens = config.max_prompt_tokens or max_model_len - 1
    for name, value, least in (
        ("max_model_len", max_model_len, 2),
        ("max_prompt_tokens", max_prompt_tokens, 1),
        ("max_num_seqs", config.max_num_seqs, 1),
        ("max_num_batched_tokens", config.max_num_batched_tokens, 1),
        ("max_waiting_seqs", config.max_waiting_seqs, 0),
        ("max_draft_tokens", config.max_draft_tokens, 0),
    ):
        if value < least:
            raise SettingsError(f"{name} is {value}; expected at least {least}.")
    return EngineLimits(
        request=config.request_limits,
        max_model_len=max_model_len,
        max_prompt_tokens=min(max_prompt_tokens, max_model_len - 1),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        max_waiting_seqs=config.max_waiting_seqs,
        max_draft_tokens=config.max_draft_tokens,
        max_step_s=config.max_itl_ms / 1000 or None,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def check_threads(threads: int | None, num_cpus: int) -> None:
    """Refuse more threads than CPUs: the threads of a step wait for each other, so that would be very slow."""
    if threads is not None and threads > num_cpus:
        raise SettingsError(
            f"threads is {threads}, but this process may use {num_cpus} CPUs. Set it to {num_cpus} at most."
        )


def _max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        bound = config.max_kv_cache_tokens or DEFAULT_MAX_MODEL_LEN
        return min(
            spec.max_positions, DEFAULT_MAX_MODEL_LEN, max(bound - bound % BLOCK_TOKENS, min(bound, BLOCK_TOKENS))
        )
    if config.max_model_len > spec.max_positions and spec.rope.kind != "dynamic":
        raise SettingsError(
            f"max_model_len is {config.max_model_len}, but the model was made for {spec.max_positions} positions. "
            f"Set it to {spec.max_positions} at most."
        )
    return config.max_model_len


def _formats(config: EngineConfig, model: Model) -> Formats:
    from headrace.runner.cpu import has_native_bf16
    from headrace.runner.memory import available_memory_bytes

    available_bytes = available_memory_bytes()
    available_bytes = min(available_bytes, config.max_memory_bytes or available_bytes)
    return choose_formats(
        config.dtype,
        config.kv_dtype,
        num_parameters=model.spec.num_parameters,
        stored_bits=dominant_bits(model.weights, expected_shapes(model.spec)),
        machine=Machine(available_bytes=available_bytes, has_native_bf16=has_native_bf16(config.isa)),
    )


def _load_runner(
    config: EngineConfig, model: Model, formats: Formats, limits: EngineLimits, progress: Progress
) -> Runner:
    # Here and not above: the native module is not needed to read this file's rules (or on machines without it).
    from headrace.runner.memory import available_memory_bytes, plan_memory
    from headrace.runner.native import load_native_runner
    from headrace.runner.packing import eight_bit_matrices

    check_threads(config.threads, _num_cpus())
    plan = plan_memory(
        model.spec,
        w8_matrices=eight_bit_matrices(model.spec, model.weights),
        dtype=formats.dtype,
        kv_dtype=formats.kv_dtype,
        block_tokens=BLOCK_TOKENS,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_cache_bytes=config.kv_cache_bytes,
        max_kv_cache_tokens=config.max_kv_cache_tokens,
        available_bytes=available_memory_bytes(),
        max_memory_bytes=config.max_memory_bytes,
    )
    cache_dir = config.cache_dir or home_folder(os.environ)
    if config.dtype == SMOOTHQUANT:
        model = smoothed_model(
            model,
            alpha=config.smoothquant_alpha,
            cache_dir=cache_dir,
            available_bytes=plan.available_bytes,
            progress=progress,
        )
    return load_native_runner(
        model.spec,
        model.weights,
        dtype=formats.dtype,
        kv_dtype=formats.kv_dtype,
        plan=plan,
        limits=RunnerLimits(
            num_blocks=plan.num_blocks,
            block_tokens=BLOCK_TOKENS,
            max_step_tokens=limits.max_num_batched_tokens,
            max_step_sequences=limits.max_num_seqs,
            max_step_rows=limits.max_num_batched_tokens,
            max_context_tokens=limits.max_model_len,
        ),
        threads=config.threads,
        isa=config.isa,
        cache_dir=cache_dir,
        progress=progress,
    )


def _num_cpus() -> int:
    """CPUs that this process may run on, hyperthreads too."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def recommended_sampling(defaults: GenerationDefaults) -> RecommendedSampling:
    """Return what the checkpoint recommends, with the usual values where it does not say."""
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    values = {name: getattr(defaults, name) for name in names}
    return RecommendedSampling(**{name: value for name, value in values.items() if value is not None})


def _model_info(
    config: EngineConfig, model: Model, runner: Runner, limits: EngineLimits, formats: Formats
) -> ModelInfo:
    return ModelInfo(
        name=config.served_model_name or model.name,
        revision=model.revision,
        family=model.spec.family,
        dtype=runner.info.dtype,
        kv_dtype=runner.info.kv_dtype,
        device=runner.info.device,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=limits.max_num_seqs,
        vocab_size=model.spec.vocab_size,
        num_parameters=model.spec.num_parameters,
        has_chat_template=model.chat_template is not None,
        created_s=int(time.time()),
        format_reason=formats.reason,
        recommended=recommended_sampling(model.defaults),
    )
