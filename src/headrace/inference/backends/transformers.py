"""
The transformers backend: networks that transformers builds, in our engine.

Batching, KV cache, prefix cache, streaming, sampling, logprobs, grammars and adapters are those of the native backend;
only the network differs (see `headrace.inference.runner.transformers`). Prefix cache, draft tokens, adapters and
logprobs of the prompt are not available for encoder-decoders (T5, BART): the prompt goes to the encoder, and each step
adds a token to the answers of the running requests.
"""

import time
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from headrace.core.errors import InvalidRequest, SettingsError
from headrace.core.generation import ModelInfo
from headrace.core.progress import Progress, no_progress
from headrace.core.sampling_defaults import recommended_sampling
from headrace.core.threads import usable_cpus
from headrace.inference.engine.backend import Backend
from headrace.inference.engine.config import EngineConfig, EngineLimits, ModelSource, fit_to_runner
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.loading.assembly import text_parts
from headrace.inference.engine.loading.plan import (
    DEFAULT_MAX_MODEL_LEN,
    ContextLength,
    check_threads,
    host_budget,
    limits_within,
    step_limits,
)
from headrace.inference.engine.loading.source import read_hf_model, start_adapters
from headrace.inference.engine.service.async_engine import AsyncEngine, runner_engine
from headrace.inference.engine.service.thread import EngineThread
from headrace.inference.engine.text.detokenizer import TokenTable
from headrace.inference.models.infill import find_infill
from headrace.inference.models.model import HfModel
from headrace.inference.models.peft_adapter import read_peft_modules
from headrace.inference.runner.cpu import default_threads
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.transformers.loading import (
    NetworkSource,
    load_network,
    make_runner,
    make_seq_to_seq_runner,
    read_source,
)
from headrace.inference.runner.transformers.runner import TransformersRunner
from headrace.inference.runner.transformers.seq2seq import SeqToSeqRunner

_MAX_STEP_ROWS: Final = 1024
"""Logits computed at a time: more prompt logprobs take more steps, and the vocabulary may be large."""
_ENCODER_DECODER_POSITIONS: Final = 1024
"""Prompt and answer of an encoder-decoder whose config names no length."""


def load_transformers(
    source: ModelSource,
    config: EngineConfig,
    progress: Progress = no_progress,
    *,
    observer: EngineObserver | None = None,
) -> Backend:
    """Load a model with transformers and return its engine, not started yet; see `load_backend`."""
    _check(source, config)
    model = read_hf_model(source, progress)
    check_threads(config.threads, len(usable_cpus()))
    torch.set_num_threads(config.threads or default_threads())
    network = read_source(
        model.path, dtype=config.dtype, device=config.device, trust_remote_code=source.trust_remote_code
    )
    if network.is_encoder_decoder:
        return _encoder_decoder_engine(model, network, source, config, observer)
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
    budget = _device_budget(config)
    largest = step_limits(limits, config, max_rows=_MAX_STEP_ROWS)
    runner = make_runner(load_network(network, budget), network, largest, budget, vocab_size=model.vocab_size)
    return runner_engine(
        runner,
        text_parts(model),
        limits,
        _model_info(source, model, limits, runner, config),
        observer=observer,
        read_adapter=partial(read_peft_modules, shapes=runner.adaptable, max_rank=config.max_lora_rank),
        start_adapters=start_adapters(source.adapter, model.path) if config.max_loras else {},
    )


class _EncoderDecoderThread(EngineThread):
    """An engine that shares no prefixes, and refuses what an encoder-decoder cannot compute before it is queued."""

    def add(self, choices: list[Choice]) -> None:
        if any(choice.sequence.params.prompt_logprobs is not None for choice in choices):
            raise InvalidRequest(
                "Logprobs of the prompt are requested, but the encoder of this model computes none.",
                param="prompt_logprobs",
            )
        for choice in choices:
            choice.sequence.shares_blocks = False  # an encoder's output for a token depends on the whole prompt
        super().add(choices)


def _encoder_decoder_engine(
    model: HfModel,
    network: NetworkSource,
    source: ModelSource,
    config: EngineConfig,
    observer: EngineObserver | None,
) -> AsyncEngine:
    if config.max_loras:
        raise SettingsError(
            "enable_lora is on, but encoder-decoder networks have no adapters with the transformers backend. "
            "Turn it off.",
            name="enable_lora",
        )
    is_relative = hasattr(network.config, "relative_attention_num_buckets")
    context = ContextLength(
        default=model.max_positions or _ENCODER_DECODER_POSITIONS,
        longest=None if is_relative else model.max_positions,
        takes_rope=False,
    )
    limits = replace(
        limits_within(config, context, max_model_len=source.max_model_len, is_causal=False),
        enable_prefix_caching=False,
        max_draft_tokens=0,
        max_step_s=None,  # a prompt cannot be cut into smaller chunks
    )
    budget = _device_budget(config)
    largest = step_limits(limits, config, max_rows=_MAX_STEP_ROWS)
    runner = make_seq_to_seq_runner(
        load_network(network, budget), network, largest, budget, vocab_size=model.vocab_size
    )
    limits = fit_to_runner(limits, runner.limits)
    parts = text_parts(model)
    table = TokenTable(parts.tokenizer)
    return AsyncEngine(
        _EncoderDecoderThread(runner, table, limits),
        parts,
        table,
        limits,
        _model_info(source, model, limits, runner, config),
        observer=observer,
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


def _device_budget(config: EngineConfig) -> MemoryBudget:
    """Return the memory of the device to plan with; the platform's share of host memory does not bound a GPU."""
    budget = host_budget(config)
    if config.device != "cuda":
        return budget
    free, total = torch.cuda.mem_get_info()
    available_bytes = max(0, int(free - total * (1 - config.gpu_memory_utilization)))
    return replace(budget, available_bytes=available_bytes, max_memory_bytes=None)


def _model_info(
    source: ModelSource,
    model: HfModel,
    limits: EngineLimits,
    runner: TransformersRunner | SeqToSeqRunner,
    config: EngineConfig,
) -> ModelInfo:
    fitted = fit_to_runner(limits, runner.limits)
    return ModelInfo(
        name=source.served_model_name or model.name,
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
        answer_format=None if model.chat_template is None else model.chat_template.answer_format,
        has_effort_levels=model.chat_template is not None and model.chat_template.has_effort_levels,
        can_infill=find_infill(model.tokenizer) is not None,
        tool_support=None if model.chat_template is None else model.chat_template.tool_support,
        created_s=int(time.time()),
        format_reason=f"{runner.info.dtype} {'as requested' if config.dtype != 'auto' else 'as in the checkpoint'}",
        sampling_defaults=model.defaults.sampling,
        recommended=recommended_sampling(model.defaults.sampling, num_parameters=runner.num_parameters),
        max_batch_tokens=fitted.max_num_batched_tokens,
        is_encoder_decoder=isinstance(runner, SeqToSeqRunner),
        backend="transformers",
        backend_reason=config.backend_reason,
        is_batch_invariant=runner.info.is_batch_invariant,
    )
