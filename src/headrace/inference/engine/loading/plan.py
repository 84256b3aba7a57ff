"""
The plan of an engine: limits, formats and memory, resolved before anything is allocated.

`resolve_limits` and `check_threads` are pure; `plan_engine` also reads the memory and the CPUs of this machine.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import SettingsError
from headrace.core.threads import usable_cpus
from headrace.inference.engine.config import EngineConfig, EngineLimits
from headrace.inference.engine.loading.formats import Formats, Machine, choose_formats
from headrace.inference.models.model import Model
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import dominant_bits
from headrace.inference.runner.step import RunnerLimits

if TYPE_CHECKING:
    from headrace.inference.runner.memory import MemoryBudget
    from headrace.inference.runner.plan import RunnerPlan

BLOCK_TOKENS = 32
DEFAULT_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The resolved limits and formats of an engine, and the plan of its runner."""

    limits: EngineLimits
    formats: Formats
    runner: "RunnerPlan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLength:
    """The context lengths that a network supports."""

    default: int
    longest: int | None
    """None: no limit."""
    takes_rope: bool = True
    """True if the setting `rope` can stretch the context."""
    limit: str = ""
    """The reason why contexts end at `longest`, where the network was made for longer ones."""


def plan_engine(config: EngineConfig, model: Model, *, max_model_len: int | None = None) -> EnginePlan:
    """
    Resolve a configuration against the model and this machine.

    Raises:
        SettingsError: A setting is out of range.
        InsufficientMemory: The model does not fit.
    """
    # The native module is not needed for the pure part of this file.
    from headrace.inference.runner.cpu import has_native_bf16, is_fastest_in_w4a8
    from headrace.inference.runner.packing import LOW_BITS, layer_formats_of
    from headrace.inference.runner.plan import plan_runner

    check_threads(config.threads, len(usable_cpus()))
    limits = resolve_limits(config, model.spec, max_model_len=max_model_len)
    budget = host_budget(config)
    layer_formats = layer_formats_of(model.spec, model.weights)
    formats = choose_formats(
        config.dtype,
        config.kv_dtype,
        num_parameters=model.spec.num_parameters,
        stored_bits=dominant_bits(model.weights, expected_shapes(model.spec)),
        machine=Machine(
            available_bytes=budget.usable_bytes,
            has_native_bf16=has_native_bf16(config.isa),
            is_fastest_in_w4a8=is_fastest_in_w4a8(config.isa),
        ),
        is_mixed="w8" in layer_formats.values(),
        keeps_low_bits=not LOW_BITS.isdisjoint(layer_formats.values()),
    )
    runner = plan_runner(
        model.spec,
        dtype=formats.dtype,
        kv_dtype=formats.kv_dtype,
        block_tokens=BLOCK_TOKENS,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        budget=budget,
        threads=config.threads,
        layer_formats=layer_formats,
        max_adapters=config.max_loras,
        max_adapter_rank=config.max_lora_rank,
        max_draft_tokens=limits.max_draft_tokens,
    )
    return EnginePlan(limits=limits, formats=formats, runner=runner)


def resolve_limits(config: EngineConfig, spec: ModelSpec, *, max_model_len: int | None = None) -> EngineLimits:
    """Return the limits of an engine for this model; raise `SettingsError` for those out of range."""
    is_stretched = any(rope.kind == "dynamic" for rope in spec.ropes)
    context = ContextLength(
        default=spec.default_positions,
        longest=None if is_stretched else spec.max_positions,
        takes_rope=not spec.learned_positions and not spec.context_limit,
        limit=spec.context_limit,
    )
    return limits_within(config, context, max_model_len=max_model_len, is_causal=spec.is_causal)


def limits_within(
    config: EngineConfig, context: ContextLength, *, max_model_len: int | None = None, is_causal: bool = True
) -> EngineLimits:
    """Resolve limits as `resolve_limits` does, for a network of which only the context length is known."""
    max_model_len = _max_model_len(max_model_len, config.max_kv_cache_tokens, context)
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
        max_num_batched_tokens=max(
            config.max_num_batched_tokens, config.max_num_seqs, 0 if is_causal else max_model_len
        ),
        max_waiting_seqs=config.max_waiting_seqs,
        max_draft_tokens=config.max_draft_tokens,
        max_step_s=config.max_itl_ms / 1000 or None,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def host_budget(config: EngineConfig) -> "MemoryBudget":
    """Return the memory of this host to plan with."""
    from headrace.core.host_memory import available_memory_bytes
    from headrace.inference.runner.memory import MemoryBudget  # needs the native module

    return MemoryBudget(
        available_bytes=available_memory_bytes(),
        max_memory_bytes=config.max_memory_bytes,
        kv_cache_bytes=config.kv_cache_bytes,
        max_kv_cache_tokens=config.max_kv_cache_tokens,
    )


def step_limits(limits: EngineLimits, config: EngineConfig, *, max_rows: int) -> RunnerLimits:
    """
    Return the largest step; the runner plans its number of blocks.

    `max_rows` bounds the logits that a step computes at a time, though never below one for each sequence.
    """
    return RunnerLimits(
        num_blocks=1,
        block_tokens=BLOCK_TOKENS,
        max_step_tokens=limits.max_num_batched_tokens,
        max_step_sequences=limits.max_num_seqs,
        max_step_rows=max(limits.max_num_seqs, min(limits.max_num_batched_tokens, max_rows)),
        max_context_tokens=limits.max_model_len,
        max_adapters=config.max_loras,
        max_adapter_rank=config.max_lora_rank,
    )


def check_threads(threads: int | None, num_cpus: int) -> None:
    """Refuse more threads than CPUs: the threads of a step spin at barriers, so they would be very slow."""
    if threads is not None and threads > num_cpus:
        raise SettingsError(
            f"threads is {threads}, but this process may use {num_cpus} CPUs. Set it to {num_cpus} at most."
        )


def _max_model_len(requested: int | None, max_kv_cache_tokens: int | None, context: ContextLength) -> int:
    if requested is None:
        bound = max_kv_cache_tokens or DEFAULT_MAX_MODEL_LEN
        return min(context.default, DEFAULT_MAX_MODEL_LEN, max(bound - bound % BLOCK_TOKENS, min(bound, BLOCK_TOKENS)))
    if context.longest is not None and requested > context.longest:
        stretch = ", or stretch the context with the setting rope" if context.takes_rope else ""
        reason = (
            f"this backend runs the model up to {context.longest} positions: {context.limit} that"
            if context.limit
            else f"the model was made for {context.longest} positions"
        )
        raise SettingsError(
            f"max_model_len is {requested}, but {reason}. Set it to {context.longest} at most{stretch}."
        )
    return requested
