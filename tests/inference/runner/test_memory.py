"""The plan is what is allocated, and memory is counted as the kernel and the container see it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from headrace.core.errors import InsufficientMemory, SettingsError
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.latent import MlaSpec
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.native import load_native_runner
from headrace.inference.runner.plan import plan_runner
from tests.inference.runner.native_models import FORMATS, SPECS, STATE_SPECS, load, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

GIB = 1 << 30


def runner_plan(
    spec, *, available_bytes=GIB, max_memory_bytes=None, kv_cache_bytes=None, max_kv_cache_tokens=None, **changes
):
    options = {
        "dtype": "w8a8",
        "kv_dtype": "int8",
        "block_tokens": 32,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 200,
        "budget": MemoryBudget(
            available_bytes=available_bytes,
            max_memory_bytes=max_memory_bytes,
            kv_cache_bytes=kv_cache_bytes,
            max_kv_cache_tokens=max_kv_cache_tokens,
        ),
        "threads": 2,
    }
    return plan_runner(spec, **(options | changes))


def plan(spec, **changes):
    return runner_plan(spec, **changes).memory


def test_a_network_without_kernels_is_refused_by_name():
    with pytest.raises(SettingsError, match="cannot run this model: head_dim is 8; expected a multiple of 16"):
        plan(replace(small_spec(), head_dim=8))


def test_the_plan_is_what_is_allocated(tmp_path):
    """For every network, format and number of threads; all differences are reported at once."""
    differences = {}
    for name, spec in (SPECS | STATE_SPECS).items():
        weights = random_weights(spec)
        for (dtype, kv_dtype), threads in product(FORMATS, (1, 3)):
            whole = runner_plan(spec, dtype=dtype, kv_dtype=kv_dtype, threads=threads)
            planned, limits = whole.memory, whole.limits
            runner = load(spec, weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, threads=threads, limits=limits)
            info = runner.info
            allocated = (info.weights_bytes, info.workspace_bytes, info.kv_cache_bytes, info.state_bytes)
            runner.close()
            kv_cache_bytes = max(1, planned.kv_cache_bytes)  # an arena is never empty
            total_bytes = planned.total_bytes + kv_cache_bytes - planned.kv_cache_bytes
            expected = (
                planned.weights_bytes,
                planned.workspace_bytes,
                kv_cache_bytes,
                planned.states.total_bytes,
            )
            if (*allocated, sum(allocated), limits.num_blocks) != (*expected, total_bytes, planned.num_blocks):
                differences[name, dtype, kv_dtype, threads] = (allocated, expected)
    assert differences == {}


@pytest.mark.parametrize(("kv_dtype", "bytes_of_layer"), [("bf16", 2 * (512 + 64)), ("int8", 512 + 64 + 2 * 4)])
def test_a_latent_is_stored_once_in_keys_that_hold_their_values(kv_dtype, bytes_of_layer):
    """The sizes of GLM-4.7-Flash."""
    mla = MlaSpec(kv_rank=512, query_rank=768, key_dim=192, rope_dim=64, value_dim=256)
    spec = small_spec(num_layers=47, num_heads=20, num_kv_heads=1, head_dim=576, mla=mla)
    assert plan(spec, dtype="bf16", kv_dtype=kv_dtype).kv_bytes_per_token == 47 * bytes_of_layer


def test_without_a_size_the_cache_holds_every_sequence_in_full():
    assert plan(small_spec()).num_blocks == 4 * 256 // 32


def test_little_memory_makes_a_smaller_cache_that_still_holds_one_context():
    roomy = plan(small_spec(), max_num_seqs=4000)
    tight = plan(small_spec(), max_num_seqs=4000, available_bytes=64 << 20)
    assert 8 <= tight.num_blocks < roomy.num_blocks
    assert tight.total_bytes <= 64 << 20


def test_a_requested_cache_size_is_kept():
    planned = plan(small_spec(), kv_cache_bytes=1 << 20)
    assert (1 << 20) - planned.block_bytes < planned.kv_cache_bytes <= 1 << 20


def test_a_cache_too_small_for_one_context_is_refused_with_the_numbers():
    with pytest.raises(InsufficientMemory, match="256 tokens needs") as caught:
        plan(small_spec(), kv_cache_bytes=1000)
    assert "max_model_len" in caught.value.message


@pytest.mark.parametrize(("weights_share", "mapping"), [(0.4, "none"), (0.6, "preferred")])
def test_weights_that_fill_much_of_the_memory_are_mapped(weights_share, mapping):
    spec = small_spec(hidden_size=1024, intermediate_size=4096, num_layers=4)
    weights_bytes = plan(spec).weights_bytes
    planned = plan(spec, available_bytes=int(weights_bytes / weights_share))
    assert (planned.mapping, planned.resident_weights_bytes) == (mapping, weights_bytes)


def test_experts_may_exceed_the_memory_if_what_a_token_reads_fits(tmp_path):
    moe = MoeSpec(num_experts=64, top_k=2, expert_size=256, layers=(True, False))
    spec = small_spec(hidden_size=256, moe=moe)
    roomy = runner_plan(spec)
    tight = runner_plan(spec, available_bytes=roomy.memory.weights_bytes)
    assert (roomy.memory.mapping, tight.memory.mapping) == ("none", "required")
    assert tight.memory.resident_weights_bytes < roomy.memory.weights_bytes / 8
    assert tight.memory.num_blocks == 256 // 32
    weights, step = random_weights(spec), make_step(([1, 2, 3, 4], 0, [5]), all_rows=True)
    copied, mapped = (
        load_native_runner(spec, weights, planned, cache_dir=tmp_path / planned.memory.mapping)
        for planned in (roomy, tight)
    )
    assert (copied.info.facts["packed_weights"], mapped.info.facts["packed_weights"]) == (
        "packed and cached",
        "packed and mapped",
    )
    np.testing.assert_array_equal(mapped.logits(step), copied.logits(step))


def test_a_large_kv_cache_is_refused_instead_of_mapping_experts_from_the_disk():
    moe = MoeSpec(num_experts=64, top_k=2, expert_size=256)
    spec = small_spec(hidden_size=256, moe=moe)
    weights_bytes = plan(spec).weights_bytes
    memory_bytes = 2 * weights_bytes
    fitting = plan(spec, available_bytes=memory_bytes, kv_cache_bytes=weights_bytes // 8)
    assert fitting.resident_weights_bytes == weights_bytes
    with pytest.raises(InsufficientMemory, match="kv_cache_bytes"):
        plan(spec, available_bytes=memory_bytes, kv_cache_bytes=weights_bytes)


def test_a_model_that_does_not_fit_is_refused_with_the_sum():
    with pytest.raises(InsufficientMemory, match=r"Weights .* MiB \+ workspace .* MiB \+ KV cache") as caught:
        plan(small_spec(), available_bytes=1 << 20)
    assert caught.value.facts["available_bytes"] == 1 << 20


@pytest.mark.parametrize(("tokens", "held"), [(100_000, 1024), (512, 512), (300, 288), (287, 256), (256, 256)])
def test_a_bound_in_tokens_is_independent_of_the_memory(tokens, held):
    assert plan(small_spec(), max_kv_cache_tokens=tokens).num_blocks * 32 == held
    assert plan(small_spec(), max_kv_cache_tokens=tokens, kv_cache_bytes=1 << 30).num_blocks * 32 <= max(tokens, 256)


def test_one_context_fits_into_a_bound_of_its_length_even_with_a_partial_block():
    assert plan(small_spec(), max_model_len=100, max_kv_cache_tokens=100).num_blocks == 4
    with pytest.raises(InsufficientMemory, match="max_kv_cache_tokens"):
        plan(small_spec(), max_model_len=200, max_kv_cache_tokens=100)


def test_a_limit_below_the_free_memory_bounds_the_plan_and_is_named_when_it_is_too_low():
    limited = plan(small_spec(), max_num_seqs=4000, max_memory_bytes=64 << 20)
    assert limited == plan(small_spec(), max_num_seqs=4000, available_bytes=64 << 20)
    assert plan(small_spec(), max_memory_bytes=2 * GIB) == plan(small_spec())
    with pytest.raises(InsufficientMemory, match=r"the 1 MiB that max_memory_bytes allows"):
        plan(small_spec(), max_memory_bytes=1 << 20)


def test_the_vocabulary_for_grammars_is_left_room_for():
    small, large = (plan(small_spec(vocab_size=size), max_num_seqs=10**6) for size in (1000, 100_000))
    assert large.reserve_bytes - small.reserve_bytes == 600 * 99_000
    for planned in (small, large):
        room_bytes = GIB - planned.total_bytes - planned.reserve_bytes
        assert 0 <= room_bytes < planned.block_bytes


def test_a_state_slot_keeps_the_inputs_of_a_limited_number_of_draft_tokens():
    spec = STATE_SPECS["short convolutions"]
    limits = [runner_plan(spec, max_draft_tokens=count).limits.max_draft_tokens for count in (0, 8, 5000)]
    assert limits == [0, 8, 32]
    assert runner_plan(small_spec(), max_draft_tokens=5000).limits.max_draft_tokens == 0


def test_other_block_sizes_are_refused():
    with pytest.raises(SettingsError, match="block_tokens is 16; expected 32"):
        plan(small_spec(), block_tokens=16)
