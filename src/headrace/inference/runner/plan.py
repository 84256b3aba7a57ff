"""The plan of a native runner: formats, step sizes, threads and memory, decided before anything is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace import _native
from headrace.core.errors import SettingsError
from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.cpu import default_threads
from headrace.inference.runner.memory import MemoryBudget, MemoryPlan, plan_memory
from headrace.inference.runner.native_config import NO_FORMATS, native_config
from headrace.inference.runner.step import RunnerLimits

_MAX_DRAFT_TOKENS: Final = 32
"""Draft tokens of a model with state layers: every state slot keeps the inputs of so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPlan:
    """Everything that `load_native_runner` needs to know besides the weights."""

    config: _native.ModelConfig
    limits: RunnerLimits
    num_threads: int
    memory: MemoryPlan


def plan_runner(  # noqa: PLR0913 - each parameter is a setting
    spec: ModelSpec,
    *,
    dtype: str,
    kv_dtype: str,
    block_tokens: int,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    budget: MemoryBudget,
    threads: int | None = None,
    layer_formats: Mapping[str, str] = NO_FORMATS,
    max_adapters: int = 0,
    max_adapter_rank: int = 0,
    max_draft_tokens: int = 0,
) -> RunnerPlan:
    """
    Plan a runner for a network.

    `threads` are those of a step; None: the physical cores. `layer_formats` names the matrices that are not plain w4 in
    w4a8 and w4a16 (see `packing.layer_formats_of`).

    Raises:
        InsufficientMemory: The model does not fit; the message has the sum and the settings to change.
        SettingsError: The runtime has no blocks of this size.
    """
    if block_tokens != _native.BLOCK_TOKENS:
        raise SettingsError(f"block_tokens is {block_tokens}; expected {_native.BLOCK_TOKENS} on a CPU.")
    config = native_config(
        spec, dtype=dtype, kv_dtype=kv_dtype, max_context_tokens=max_model_len, layer_formats=layer_formats
    )
    limits = RunnerLimits(
        num_blocks=1,
        block_tokens=block_tokens,
        max_step_tokens=max_num_batched_tokens,
        max_step_sequences=max_num_seqs,
        max_step_rows=max_num_batched_tokens,
        max_context_tokens=max_model_len,
        max_adapters=max_adapters,
        max_adapter_rank=max_adapter_rank,
        max_draft_tokens=min(max_draft_tokens, _MAX_DRAFT_TOKENS) if spec.has_state else 0,
    )
    num_threads = threads or default_threads()
    try:
        slot_bytes = _native.state_slot_bytes(config, limits.max_draft_tokens)
    except ValueError as exc:  # the first call that checks a network
        raise SettingsError(f"The native runtime cannot run this model: {exc}.") from exc
    memory = plan_memory(config, limits, budget, num_threads=num_threads, state_slot_bytes=slot_bytes)
    limits = replace(limits, num_blocks=memory.num_blocks)
    if slot_bytes:
        states = memory.states
        limits = replace(limits, max_step_sequences=states.max_num_seqs, num_state_slots=states.num_slots)
    return RunnerPlan(config=config, limits=limits, num_threads=num_threads, memory=memory)
