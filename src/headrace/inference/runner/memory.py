"""The memory plan: available memory and the memory a model needs, computed before anything is allocated."""

from dataclasses import dataclass, field, replace
from typing import Final

from headrace import _native
from headrace.core.errors import InsufficientMemory
from headrace.inference.runner.native_config import native_limits
from headrace.inference.runner.packing import Mapping
from headrace.inference.runner.state_memory import StateSlots, all_slots, kv_share, live_slots
from headrace.inference.runner.step import RunnerLimits

_MIB: Final = 1 << 20
_RESERVE_SHARE: Final = 0.1
_MAX_RESERVE_BYTES: Final = 1 << 30
_GRAMMAR_BYTES_PER_TOKEN: Final = 600
"""
llguidance's form of the vocabulary and the index of names, which every server builds once it is idle. Measured as
resident memory: 480 to 560 bytes a token for vocabularies of 262,144 (Gemma 3) and 49,152 (SmolLM2).
"""
_COPIED_SHARE: Final = 0.5
"""Weights that take a larger share of the memory are mapped from their file: the page cache needs no second copy."""
_FLOAT_BYTES: Final = 4
_NATIVE_FORMATS: Final = "a smaller dtype (w8a16, w4a16) or kv_dtype (int8)"
_LIMITED: Final = (
    "max_memory_bytes allows (for a platform's worker: the memory of its inference component or instance type). "
    "Raise it or lower"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The memory to plan with."""

    available_bytes: int
    """The memory that is free."""
    max_memory_bytes: int | None = None
    """The part of it that may be used; None: all."""
    kv_cache_bytes: int | None = None
    """The size of the KV cache; None: what the sequences need and the memory allows."""
    max_kv_cache_tokens: int | None = None
    """Upper bound of the KV cache; None: no bound."""

    @property
    def usable_bytes(self) -> int:
        return min(self.available_bytes, self.max_memory_bytes or self.available_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSizes:
    """The memory that a runner needs besides its KV cache, and the size of one block of the cache."""

    weights_bytes: int
    active_weights_bytes: int
    """The weights that every step reads; less than `weights_bytes` only if the rest may stay in a mapped file."""
    workspace_bytes: int
    adapter_bytes: int
    block_bytes: int
    vocab_size: int
    state_slot_bytes: int = 0
    """One state slot; 0 for models without state layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory that a runner will allocate."""

    weights_bytes: int
    resident_weights_bytes: int
    """The weights that must be in memory: all, but for experts that a step does not read if weights are mapped."""
    mapping: Mapping
    """The weights are mapped from a file instead of copied."""
    workspace_bytes: int
    """Activations, logits, rotary tables, samplers."""
    adapter_bytes: int
    """Slots for adapters."""
    kv_bytes_per_token: int
    block_bytes: int
    """One block of the KV cache, all layers."""
    num_blocks: int
    kv_cache_bytes: int
    total_bytes: int
    reserve_bytes: int
    """Kept free for the rest of the process: interpreter, tokenizer, requests, the vocabulary for grammars."""
    available_bytes: int
    states: StateSlots = field(default_factory=StateSlots)


def plan_memory(
    config: _native.ModelConfig,
    limits: RunnerLimits,
    budget: MemoryBudget,
    *,
    num_threads: int,
    state_slot_bytes: int = 0,
) -> MemoryPlan:
    """
    Add up the memory of a runner and decide the size of its KV cache, whatever `num_blocks` of `limits` is.

    A model with state layers may run fewer sequences than `limits` has, see `MemoryPlan.states`.

    Raises `InsufficientMemory` if the model does not fit; the message has the sum and the settings to change.
    """
    sizes = RunnerSizes(
        weights_bytes=_native.layout_bytes(config),
        active_weights_bytes=active_weight_bytes(config),
        workspace_bytes=_native.workspace_bytes(config, native_limits(limits), num_threads)
        + layer_input_bytes(config, limits),
        adapter_bytes=_native.adapter_bytes(config, native_limits(limits)),
        block_bytes=_native.kv_block_bytes(config),
        vocab_size=config.vocab_size,
        state_slot_bytes=state_slot_bytes,
    )
    return plan_sizes(sizes, limits, budget, formats=_NATIVE_FORMATS)


def plan_sizes(sizes: RunnerSizes, limits: RunnerLimits, budget: MemoryBudget, *, formats: str) -> MemoryPlan:
    """
    Add up memory as `plan_memory` does, for a runner of which only the sizes are known.

    `formats` is the advice that an error gives about smaller formats.
    """
    usable_bytes = budget.usable_bytes
    reserve_bytes = min(int(usable_bytes * _RESERVE_SHARE), _MAX_RESERVE_BYTES)
    reserve_bytes += _GRAMMAR_BYTES_PER_TOKEN * sizes.vocab_size
    fixed_bytes = sizes.workspace_bytes + sizes.adapter_bytes
    num_blocks, states = _plan_caches(
        sizes, limits, budget, free_bytes=usable_bytes - reserve_bytes - sizes.weights_bytes - fixed_bytes
    )
    fixed_bytes += states.total_bytes
    least_blocks = min(num_blocks, _blocks_per_context(limits))
    least_bytes = fixed_bytes + least_blocks * sizes.block_bytes + reserve_bytes
    mapping = _mapping(sizes.weights_bytes, least_bytes, usable_bytes)
    resident_bytes = sizes.active_weights_bytes if mapping == "required" else sizes.weights_bytes
    plan = MemoryPlan(
        weights_bytes=sizes.weights_bytes,
        resident_weights_bytes=resident_bytes,
        mapping=mapping,
        workspace_bytes=sizes.workspace_bytes,
        adapter_bytes=sizes.adapter_bytes,
        kv_bytes_per_token=sizes.block_bytes // limits.block_tokens,
        block_bytes=sizes.block_bytes,
        num_blocks=num_blocks,
        kv_cache_bytes=num_blocks * sizes.block_bytes,
        total_bytes=resident_bytes + fixed_bytes + num_blocks * sizes.block_bytes,
        reserve_bytes=reserve_bytes,
        available_bytes=usable_bytes,
        states=states,
    )
    _check(plan, limits, is_limited=usable_bytes == budget.max_memory_bytes, formats=formats)
    return plan


def _plan_caches(
    sizes: RunnerSizes, limits: RunnerLimits, budget: MemoryBudget, *, free_bytes: int
) -> tuple[int, StateSlots]:
    """Return the number of blocks of the KV cache, and the state slots beside it."""
    slot_bytes, block_bytes = sizes.state_slot_bytes, sizes.block_bytes
    if not slot_bytes:
        return _num_blocks(limits, budget, block_bytes=block_bytes, free_bytes=free_bytes), StateSlots()
    max_num_seqs = live_slots(
        slot_bytes,
        max_num_seqs=limits.max_step_sequences,
        free_bytes=free_bytes,
        kv_cache_bytes=budget.kv_cache_bytes or _blocks_per_context(limits) * block_bytes,
    )
    num_blocks = _num_blocks(
        replace(limits, max_step_sequences=max_num_seqs),
        budget,
        block_bytes=block_bytes,
        free_bytes=kv_share(slot_bytes, max_num_seqs=max_num_seqs, free_bytes=free_bytes),
    )
    return num_blocks, all_slots(
        slot_bytes,
        max_num_seqs=max_num_seqs,
        requested_seqs=limits.max_step_sequences,
        num_blocks=num_blocks,
        kv_cache_bytes=num_blocks * block_bytes,
        free_bytes=free_bytes,
    )


def _mapping(weights_bytes: int, least_bytes: int, usable_bytes: int) -> Mapping:
    """
    Decide whether weights are mapped; `least_bytes` is the memory for everything else with the smallest KV cache.

    A larger `kv_cache_bytes` must not push weights to the disk: the plan is refused instead.
    """
    if weights_bytes + least_bytes > usable_bytes:
        return "required"
    return "preferred" if weights_bytes > usable_bytes * _COPIED_SHARE else "none"


def layer_input_bytes(config: _native.ModelConfig, limits: RunnerLimits) -> int:
    """Return the bytes of the rows that a step brings along for its layers: as they are stored, and in float32."""
    return 2 * _FLOAT_BYTES * config.num_layers * config.layer_input_size * limits.max_step_tokens


def active_weight_bytes(config: _native.ModelConfig) -> int:
    """Return the bytes of all weights but the experts that a token does not choose."""
    slots = config.num_experts + config.num_shared_experts
    total = 0
    for slot in _native.layout(config):
        prefix, _, part = slot.name.rpartition(".")
        is_stack = slots > 0 and part in {"gate_up", "down"}
        if is_stack and config.expert_layers:
            is_stack = config.expert_layers[int(prefix.removeprefix("layers."))]
        total += slot.num_bytes * (config.top_k + config.num_shared_experts) // slots if is_stack else slot.num_bytes
    return total


def _num_blocks(limits: RunnerLimits, budget: MemoryBudget, *, block_bytes: int, free_bytes: int) -> int:
    """
    Return the number of blocks of the KV cache.

    Without `kv_cache_bytes` it holds a full context of each sequence, or as many blocks as fit into the memory, but at
    least one full context. It never holds more than `max_kv_cache_tokens`. Blocks without bytes, of a network without
    attention, only count tokens.
    """
    blocks_per_context = _blocks_per_context(limits)
    if not block_bytes:
        num_blocks = blocks_per_context * limits.max_step_sequences
    elif budget.kv_cache_bytes is None:
        num_blocks = max(
            min(blocks_per_context * limits.max_step_sequences, free_bytes // block_bytes), blocks_per_context
        )
    else:
        num_blocks = budget.kv_cache_bytes // block_bytes
    if (max_tokens := budget.max_kv_cache_tokens) is not None:
        # Whole blocks, or the blocks of one context if it needs a partial block more.
        needed = min(-(-max_tokens // limits.block_tokens), blocks_per_context)
        num_blocks = min(num_blocks, max(max_tokens // limits.block_tokens, needed))
    return num_blocks


def _blocks_per_context(limits: RunnerLimits) -> int:
    return -(-limits.max_context_tokens // limits.block_tokens)


def _check(plan: MemoryPlan, limits: RunnerLimits, *, is_limited: bool, formats: str) -> None:
    blocks_per_context = _blocks_per_context(limits)
    facts = {
        "weights_bytes": plan.weights_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "kv_cache_bytes": plan.kv_cache_bytes,
        "available_bytes": plan.available_bytes,
    }
    if plan.num_blocks < blocks_per_context:
        needed = blocks_per_context * plan.block_bytes
        raise InsufficientMemory(
            f"The KV cache has {_mib(plan.kv_cache_bytes)}, one context of {limits.max_context_tokens} tokens needs "
            f"{_mib(needed)}. Raise kv_cache_bytes or max_kv_cache_tokens, or lower max_model_len.",
            **facts,
        )
    if plan.total_bytes + plan.reserve_bytes > plan.available_bytes:
        adapters = f" + adapters {_mib(plan.adapter_bytes)}" if plan.adapter_bytes else ""
        states = f" + states {_mib(plan.states.total_bytes)}" if plan.states.total_bytes else ""
        raise InsufficientMemory(
            f"Weights {_mib(plan.resident_weights_bytes)} + workspace {_mib(plan.workspace_bytes)}{adapters}{states} "
            f"+ KV cache {_mib(plan.kv_cache_bytes)} = {_mib(plan.total_bytes)}, and {_mib(plan.reserve_bytes)} for "
            f"the rest of the process, do not fit into the {_mib(plan.available_bytes)} that "
            f"{_LIMITED if is_limited else 'are available. Lower'} max_model_len, kv_cache_bytes or "
            f"max_num_batched_tokens{', max_loras or max_lora_rank' if adapters else ''}"
            f"{', max_draft_tokens' if states else ''}, "
            f"or take {formats}.",
            **facts,
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"
