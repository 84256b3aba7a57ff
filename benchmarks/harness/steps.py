"""Runners without an engine around them, and the steps that an engine would issue."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.host_memory import available_memory_bytes
from headrace.inference.models.model import Model
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.native import NativeRunner, load_native_runner
from headrace.inference.runner.packing import layer_formats_of
from headrace.inference.runner.plan import plan_runner
from headrace.inference.runner.sampling import stack_sampling
from headrace.inference.runner.step import Int32, StateStep, StepInput

BLOCK = 32
"""Tokens of a block of the KV cache."""


def load_runner(model: Model, *, cache_dir: Path | None, isa: str | None = None, **settings: Any) -> NativeRunner:
    """Return the native runner of a model; `settings` are those of `plan_runner`."""
    plan = plan_runner(
        model.spec,
        block_tokens=BLOCK,
        budget=MemoryBudget(available_bytes=available_memory_bytes()),
        layer_formats=layer_formats_of(model.spec, model.weights),
        **settings,
    )
    return load_native_runner(model.spec, model.weights, plan, isa=isa, cache_dir=cache_dir)


def states_in(slots: Sequence[int] | Int32, tokens: int, *, context: int) -> StateStep | None:
    """Return how sequences use their state slots when each takes `tokens` tokens; None without slots."""
    slots, count = np.array(slots, np.int32), len(slots)
    if not count:
        return None
    return StateStep(
        read=slots if context else np.full(count, -1, np.int32),
        write=slots,
        replayed=np.zeros(count, np.int32),
        certain=np.full(count, tokens, np.int32),
    )


def decode_step(
    tokens: Sequence[int] | Int32,
    tables: Int32,
    context: int,
    *,
    adapters: Int32 | None = None,
    state_slots: Sequence[int] | Int32 = (),
) -> StepInput:
    """Return a step of one token for each sequence, after a context of this length."""
    count = len(tokens)
    return StepInput(
        token_ids=np.array(tokens, np.int32),
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=np.full(count, context, np.int32),
        block_tables=np.ascontiguousarray(tables, np.int32),
        rows=np.arange(count, dtype=np.int32),
        sampling=stack_sampling([{}] * count),
        adapters=adapters,
        states=states_in(state_slots, 1, context=context),
    )


def prompt_step(
    tokens: Sequence[int] | Int32,
    table: Int32,
    *,
    context: int = 0,
    rows: Sequence[int] | None = None,
    state_slots: Sequence[int] | Int32 = (),
) -> StepInput:
    """Return a step of one chunk of a prompt after a context; logits are computed for `rows`, by default the last."""
    size = len(tokens)
    wanted = [size - 1] if rows is None else rows
    return StepInput(
        token_ids=np.array(tokens, np.int32),
        query_starts=np.array([0, size], np.int32),
        context_lens=np.array([context], np.int32),
        block_tables=np.ascontiguousarray(table, np.int32)[None],
        rows=np.array(wanted, np.int32),
        sampling=stack_sampling([{}] * len(wanted)),
        states=states_in(state_slots, size, context=context),
    )
