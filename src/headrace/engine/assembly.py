"""
Puts an engine together: model, formats, limits, memory plan, native runner.

Blocks for as long as loading takes; the server calls it on a thread. `resolve_*` are pure: what is asked for plus what
the model is gives what will be.
"""

import os
import time

from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import Progress, no_progress
from headrace.engine.async_engine import AsyncEngine, TextParts
from headrace.engine.config import EngineConfig, EngineLimits
from headrace.engine.observer import EngineObserver
from headrace.models.loading import load_model
from headrace.models.model import Model
from headrace.models.sources import home_folder
from headrace.models.spec import ModelSpec
from headrace.models.weights import Encoding
from headrace.runner.step import Runner, RunnerLimits

DTYPES = ("bf16", "w8a8", "w4a8")
KV_DTYPES = ("bf16", "int8")
BLOCK_TOKENS = 32
DEFAULT_MAX_MODEL_LEN = 8192

_DTYPE_OF = {Encoding.Q4_0: "w4a8", Encoding.Q4_1: "w4a8", Encoding.Q8_0: "w8a8", Encoding.I8: "w8a8"}


def assemble(
    config: EngineConfig, progress: Progress = no_progress, *, observer: EngineObserver | None = None
) -> AsyncEngine:
    """
    Load a model and return its engine, not yet started.

    Raises:
        UserError: The model cannot be found, read or run, a setting is wrong, or memory does not suffice; says which.
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
    runner = _load_runner(config, model, limits, progress)
    eos_token_ids = model.defaults.eos_token_ids | model.tokenizer.eos_token_ids
    parts = TextParts(tokenizer=model.tokenizer, chat_template=model.chat_template, eos_token_ids=eos_token_ids)
    return AsyncEngine(runner, parts, limits, _model_info(config, model, runner, limits), observer=observer)


def resolve_limits(config: EngineConfig, spec: ModelSpec) -> EngineLimits:
    """Return the engine's numbers for this model; raises `SettingsError` for those that cannot be."""
    max_model_len = _max_model_len(config, spec)
    max_prompt_tokens = config.max_prompt_tokens or max_model_len - 1
    for name, value, least in (
        ("max_model_len", max_model_len, 2),
        ("max_prompt_tokens", max_prompt_tokens, 1),
        ("max_num_seqs", config.max_num_seqs, 1),
        ("max_num_batched_tokens", config.max_num_batched_tokens, 1),
        ("max_queued_requests", config.max_queued_requests, 0),
        ("max_draft_tokens", config.max_draft_tokens, 0),
    ):
        if value < least:
            raise SettingsError(f"{name} is {value}, wanted: at least {least}.")
    return EngineLimits(
        max_model_len=max_model_len,
        max_prompt_tokens=min(max_prompt_tokens, max_model_len - 1),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        max_queued_requests=config.max_queued_requests,
        max_best_of=config.max_best_of,
        max_logprobs=config.max_logprobs,
        max_stop_strings=config.max_stop_strings,
        enable_prefix_caching=config.enable_prefix_caching,
        max_draft_tokens=config.max_draft_tokens,
        max_step_s=None if config.max_itl_ms is None else config.max_itl_ms / 1000,
    )


def check_threads(threads: int | None, num_cpus: int) -> None:
    """Refuse more threads than CPUs: the threads of a step wait for each other, so that would be very slow."""
    if threads is not None and threads > num_cpus:
        raise SettingsError(
            f"threads is {threads}, but this process may use {num_cpus} CPUs. Set it to {num_cpus} at most."
        )


def resolve_dtype(asked: str, dominant: Encoding) -> str:
    """Return the weight format: as asked, or the one that is nearest to how the checkpoint stores its weights."""
    if asked == "auto":
        return _DTYPE_OF.get(dominant, "bf16")
    return _one_of("dtype", asked, DTYPES)


def resolve_kv_dtype(asked: str, dtype: str) -> str:
    """Return the format of the KV cache: as asked, or int8 with 8- and 4-bit weights."""
    if asked == "auto":
        return "bf16" if dtype == "bf16" else "int8"
    return _one_of("kv_dtype", asked, KV_DTYPES)


def _one_of(name: str, asked: str, known: tuple[str, ...]) -> str:
    if asked not in known:
        raise SettingsError(f"{name} is {asked!r}, wanted one of: auto, {', '.join(known)}.")
    return asked


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


def _load_runner(config: EngineConfig, model: Model, limits: EngineLimits, progress: Progress) -> Runner:
    # Here and not above: the native module is not needed to read this file's rules (or on machines without it).
    from headrace.runner.memory import available_memory_bytes, plan_memory
    from headrace.runner.native import load_native_runner

    check_threads(config.threads, _num_cpus())
    dtype = resolve_dtype(config.dtype, model.weights.dominant_encoding)
    kv_dtype = resolve_kv_dtype(config.kv_dtype, dtype)
    plan = plan_memory(
        model.spec,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_tokens=BLOCK_TOKENS,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_cache_bytes=config.kv_cache_bytes,
        max_kv_cache_tokens=config.max_kv_cache_tokens,
        available_bytes=available_memory_bytes(),
        max_memory_bytes=config.max_memory_bytes,
    )
    return load_native_runner(
        model.spec,
        model.weights,
        dtype=dtype,
        kv_dtype=kv_dtype,
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
        cache_dir=config.cache_dir or home_folder(os.environ),
        progress=progress,
    )


def _num_cpus() -> int:
    """CPUs that this process may run on, hyperthreads too."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _model_info(config: EngineConfig, model: Model, runner: Runner, limits: EngineLimits) -> ModelInfo:
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
    )
