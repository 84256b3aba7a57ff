"""State slots share the memory with the KV cache, and take no more than there is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InsufficientMemory
from headrace.inference.runner.memory import MemoryBudget, MemoryPlan, RunnerSizes, plan_sizes
from headrace.inference.runner.step import RunnerLimits

MIB = 1 << 20
LIMITS = RunnerLimits(
    num_blocks=1,
    block_tokens=32,
    max_step_tokens=512,
    max_step_sequences=64,
    max_step_rows=512,
    max_context_tokens=8192,
)
QWEN_9B = RunnerSizes(
    weights_bytes=5000 * MIB,
    active_weights_bytes=5000 * MIB,
    workspace_bytes=300 * MIB,
    adapter_bytes=0,
    block_bytes=MIB,
    vocab_size=248_320,
    state_slot_bytes=50 * MIB,
)


def plan(available_mib: int, *, sizes: RunnerSizes = QWEN_9B, kv_cache_mib: int | None = None) -> MemoryPlan:
    kv_cache_bytes = None if kv_cache_mib is None else kv_cache_mib * MIB
    budget = MemoryBudget(available_bytes=available_mib * MIB, kv_cache_bytes=kv_cache_bytes)
    return plan_sizes(sizes, LIMITS, budget, formats="less")


def test_much_memory_has_slots_for_all_sequences_and_checkpoints_for_a_quarter_of_the_kv_cache() -> None:
    planned = plan(64_000)
    assert (planned.states.max_num_seqs, planned.states.is_limited) == (64, False)
    assert planned.num_blocks == 64 * 8192 // 32
    assert planned.states.num_slots == 64 + planned.num_blocks // 4 // 50


def test_little_memory_runs_fewer_sequences_and_says_so() -> None:
    planned = plan(8_500)
    assert (planned.states.max_num_seqs, planned.states.is_limited) == (19, True)
    assert planned.num_blocks >= 8192 // 32
    assert planned.states.num_slots >= 19 + 2


def test_a_given_size_of_the_kv_cache_is_kept() -> None:
    planned = plan(16_000, kv_cache_mib=6_000)
    assert planned.num_blocks == 6_000
    assert (planned.states.max_num_seqs, planned.states.num_slots - planned.states.max_num_seqs) == (35, 30)


def test_small_states_have_a_checkpoint_for_each_block_at_most() -> None:
    planned = plan(16_000, sizes=replace(QWEN_9B, state_slot_bytes=MIB // 8))
    assert planned.states.num_slots == 64 + planned.num_blocks


def test_a_network_without_attention_keeps_a_checkpoint_for_each_sequence() -> None:
    planned = plan(16_000, sizes=replace(QWEN_9B, block_bytes=0), kv_cache_mib=1000)
    assert (planned.kv_cache_bytes, planned.states.num_slots) == (0, 2 * 64)


def test_states_that_do_not_fit_are_refused_with_their_size() -> None:
    with pytest.raises(InsufficientMemory, match=r"\+ states 150 MiB .* max_draft_tokens"):
        plan(6_000)


@given(st.integers(7_000, 100_000), st.integers(1, 400), st.one_of(st.none(), st.integers(256, 20_000)))
def test_a_plan_fits_into_the_memory(available_mib: int, slot_mib: int, kv_cache_mib: int | None) -> None:
    try:
        planned = plan(
            available_mib, sizes=replace(QWEN_9B, state_slot_bytes=slot_mib * MIB), kv_cache_mib=kv_cache_mib
        )
    except InsufficientMemory:
        smallest = QWEN_9B.weights_bytes + (kv_cache_mib or 256) * MIB + 3 * slot_mib * MIB
        assert smallest + 1500 * MIB > available_mib * MIB
    else:
        states = planned.states
        assert planned.total_bytes + planned.reserve_bytes <= available_mib * MIB
        assert planned.total_bytes >= planned.kv_cache_bytes + states.num_slots * states.slot_bytes
        assert 1 <= states.max_num_seqs <= states.num_slots - 2
