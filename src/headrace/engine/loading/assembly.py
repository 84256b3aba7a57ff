"""
Assembly of an engine: load the model, plan, load the native runner.

Blocks while loading; the server calls it on a thread.
"""

import os
import time
from pathlib import Path

from headrace.core.generation import ModelInfo, RecommendedSampling
from headrace.core.progress import Progress, no_progress
from headrace.engine.config import EngineConfig
from headrace.engine.core.observer import EngineObserver
from headrace.engine.loading.formats import SMOOTHQUANT
from headrace.engine.loading.plan import BLOCK_TOKENS, EnginePlan, plan_engine
from headrace.engine.loading.smoothquant import smoothed_model
from headrace.engine.service.async_engine import AsyncEngine
from headrace.engine.service.request_processor import TextParts
from headrace.models.loading import load_model
from headrace.models.model import GenerationDefaults, Model
from headrace.models.sources import home_folder
from headrace.runner.step import Runner, RunnerLimits


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
    plan = plan_engine(config, model)
    cache_dir = config.cache_dir or home_folder(os.environ)
    if config.dtype == SMOOTHQUANT:
        model = smoothed_model(
            model,
            alpha=config.smoothquant_alpha,
            cache_dir=cache_dir,
            available_bytes=plan.memory.available_bytes,
            progress=progress,
        )
    runner = _load_runner(config, model, plan, cache_dir, progress)
    eos_token_ids = model.defaults.eos_token_ids | model.tokenizer.eos_token_ids
    parts = TextParts(tokenizer=model.tokenizer, chat_template=model.chat_template, eos_token_ids=eos_token_ids)
    return AsyncEngine(runner, parts, plan.limits, _model_info(config, model, runner, plan), observer=observer)


def _load_runner(config: EngineConfig, model: Model, plan: EnginePlan, cache_dir: Path, progress: Progress) -> Runner:
    from headrace.runner.native import load_native_runner

    limits = plan.limits
    return load_native_runner(
        model.spec,
        model.weights,
        dtype=plan.formats.dtype,
        kv_dtype=plan.formats.kv_dtype,
        plan=plan.memory,
        limits=RunnerLimits(
            num_blocks=plan.memory.num_blocks,
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


def recommended_sampling(defaults: GenerationDefaults) -> RecommendedSampling:
    """Return the checkpoint's recommendations, and the usual values for the rest."""
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    values = {name: getattr(defaults, name) for name in names}
    return RecommendedSampling(**{name: value for name, value in values.items() if value is not None})


def _model_info(config: EngineConfig, model: Model, runner: Runner, plan: EnginePlan) -> ModelInfo:
    return ModelInfo(
        name=config.served_model_name or model.name,
        revision=model.revision,
        family=model.spec.family,
        dtype=runner.info.dtype,
        kv_dtype=runner.info.kv_dtype,
        device=runner.info.device,
        max_model_len=plan.limits.max_model_len,
        max_prompt_tokens=plan.limits.max_prompt_tokens,
        max_num_seqs=plan.limits.max_num_seqs,
        vocab_size=model.spec.vocab_size,
        num_parameters=model.spec.num_parameters,
        has_chat_template=model.chat_template is not None,
        created_s=int(time.time()),
        format_reason=plan.formats.reason,
        recommended=recommended_sampling(model.defaults),
    )
