"""
Assembly of an engine: load the model, plan limits, formats and memory, smooth the weights if asked, load the runner.

Blocks while loading; the server calls it on a thread.
"""

import os
import time
from functools import partial

from headrace.core.errors import SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import Progress, no_progress
from headrace.core.sampling_defaults import recommended_sampling
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource, fit_to_runner
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.plan import plan_engine
from headrace.inference.engine.loading.pooling import Use, pooling_info, resolve_use
from headrace.inference.engine.loading.prefix_store import open_prefix_store
from headrace.inference.engine.loading.smoothquant import smoothed_weights
from headrace.inference.engine.loading.source import read_model, start_adapters
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.engine.service.async_engine import AsyncEngine, runner_engine
from headrace.inference.engine.service.prompt_tokens import TextParts
from headrace.inference.models.infill import find_infill
from headrace.inference.models.model import HfModel, Model
from headrace.inference.models.peft_adapter import read_peft_adapter
from headrace.inference.models.pooling import Pooler
from headrace.inference.models.rope import describe_ropes
from headrace.inference.models.sources import home_folder
from headrace.inference.runner.step import Runner


def assemble(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> AsyncEngine:
    """
    Load a model and return its engine, not started yet.

    Raises:
        UserError: The model cannot be found, read or run, a setting is invalid or memory is insufficient.
    """
    from headrace.inference.runner.native import load_native_runner  # needs the native module

    model = read_model(source, progress)
    use = resolve_use(model, task=source.task, pooling=source.pooling)
    plan = plan_engine(config, model, max_model_len=source.max_model_len)
    cache_dir = source.cache_dir or home_folder(os.environ)
    weights = model.weights
    refuse_smoothed(model, config, is_smoothed_at_load=plan.formats.is_smoothed)
    if plan.formats.is_smoothed:
        weights = smoothed_weights(
            model,
            alpha=source.smoothquant_alpha,
            cache_dir=cache_dir,
            available_bytes=plan.runner.memory.available_bytes,
            progress=progress,
        )
    runner = load_native_runner(
        model.spec, weights, plan.runner, isa=config.isa, cache_dir=cache_dir, progress=progress
    )
    return engine_on(
        runner,
        source,
        config,
        model,
        use,
        plan.limits,
        format_reason=plan.formats.reason,
        observer=observer,
        store=open_prefix_store(config, runner),
    )


def engine_on(  # noqa: PLR0913 - the parts of an engine
    runner: Runner,
    source: ModelSource,
    config: EngineConfig,
    model: Model,
    use: Use,
    limits: EngineLimits,
    *,
    format_reason: str,
    observer: EngineObserver | None,
    store: FileStore | None = None,
) -> AsyncEngine:
    """Return an engine on a loaded runner, not started yet."""
    return runner_engine(
        runner,
        text_parts(model, use.pooler),
        limits,
        _model_info(source.served_model_name or model.name, model, limits, format_reason, runner, use, config),
        observer=observer,
        read_adapter=partial(read_peft_adapter, spec=model.spec, max_rank=config.max_lora_rank),
        start_adapters=start_adapters(source.adapter, model.path) if config.max_loras else {},
        store=store,
    )


def refuse_smoothed(model: Model, config: EngineConfig, *, is_smoothed_at_load: bool) -> None:
    """Refuse to serve adapters on rescaled inputs, which they were not trained on: answers would be wrong."""
    if not config.max_loras:
        return
    if is_smoothed_at_load:
        reason, fix = "dtype is smoothquant", "Choose another dtype, such as w8a8."
    elif model.is_smoothed:
        reason = f"{model.name} was smoothed by `headrace quantize`"
        fix = "Serve the original checkpoint with --dtype w8a8, or quantize it with --alpha 0."
    else:
        return
    raise SettingsError(
        f"{reason} and adapters are on, which were trained on inputs that are not smoothed. {fix}", name="enable_lora"
    )


def text_parts(model: Model | HfModel, pooler: Pooler | None = None) -> TextParts:
    """Return the tokenizer, chat template, end tokens and pooling of a model."""
    return TextParts(
        tokenizer=model.tokenizer,
        chat_template=model.chat_template,
        eos_token_ids=model.defaults.eos_token_ids | model.tokenizer.eos_token_ids,
        pooler=pooler or Pooler(),
    )


def _model_info(
    name: str, model: Model, limits: EngineLimits, format_reason: str, runner: Runner, use: Use, config: EngineConfig
) -> ModelInfo:
    fitted = fit_to_runner(limits, runner.limits)
    return ModelInfo(
        name=name,
        revision=model.revision,
        family=model.spec.family,
        dtype=runner.info.dtype,
        kv_dtype=runner.info.kv_dtype,
        device=runner.info.device,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_num_seqs=fitted.max_num_seqs,
        has_states=runner.limits.num_state_slots > 0,
        vocab_size=model.spec.vocab_size,
        num_parameters=model.spec.num_parameters,
        has_chat_template=model.chat_template is not None,
        answer_format=None if model.chat_template is None else model.chat_template.answer_format,
        has_effort_levels=model.chat_template is not None and model.chat_template.has_effort_levels,
        can_infill=find_infill(model.tokenizer) is not None,
        tool_support=None if model.chat_template is None else model.chat_template.tool_support,
        rope=describe_ropes(model.spec, limits.max_model_len),
        created_s=int(time.time()),
        format_reason=format_reason,
        sampling_defaults=model.defaults.sampling,
        recommended=recommended_sampling(model.defaults.sampling, num_parameters=model.spec.num_parameters),
        max_batch_tokens=fitted.max_num_batched_tokens,
        generates=use.generates,
        pooling=pooling_info(use, hidden_size=model.spec.hidden_size, max_tokens=fitted.max_pooled_tokens),
        backend="native" if config.backend == "auto" else config.backend,
        backend_reason=config.backend_reason,
        is_batch_invariant=runner.info.is_batch_invariant,
    )
