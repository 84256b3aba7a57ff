"""The bytes that a token reads, by the formats and the parts of a network."""

from dataclasses import replace

import pytest

from headrace.inference.models.experts import MoeSpec
from headrace.inference.runner.decode_speed import decode_bytes, measure_bandwidth
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.plan import plan_runner
from tests.inference.runner.native_models import small_spec

TIED = small_spec(moe=MoeSpec(num_experts=6, top_k=2, expert_size=64, layers=(True, False)))


def weights_of(spec, dtype="w8a8"):
    return decode_bytes(spec, dtype=dtype, kv_dtype="int8", max_model_len=256).weights


def planned(spec, dtype="w8a8"):
    budget = MemoryBudget(available_bytes=1 << 30)
    return plan_runner(
        spec,
        dtype=dtype,
        kv_dtype="int8",
        block_tokens=32,
        max_model_len=256,
        max_num_seqs=1,
        max_num_batched_tokens=32,
        budget=budget,
    ).memory


def with_top_k(top_k):
    return replace(TIED, moe=replace(TIED.moe, top_k=top_k))


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
def test_a_token_that_takes_all_experts_reads_all_weights(dtype):
    assert weights_of(with_top_k(6), dtype) == pytest.approx(planned(TIED, dtype).weights_bytes, rel=0.02)


def test_the_bytes_of_experts_grow_with_those_that_a_token_takes():
    two, four, six = (weights_of(with_top_k(count)) for count in (2, 4, 6))
    assert two < four < six
    assert six - four == pytest.approx(four - two, abs=8)


def test_a_token_reads_one_row_of_an_embedding_that_is_not_the_head():
    tied, untied = (small_spec(tie_embeddings=is_tied) for is_tied in (True, False))
    assert planned(untied).weights_bytes > planned(tied).weights_bytes + tied.vocab_size * tied.hidden_size
    assert 0 < weights_of(untied) - weights_of(tied) < 4 * tied.hidden_size


def test_a_full_context_is_read_where_there_is_no_window():
    spec = small_spec(windows=(40, 0))
    per_token = planned(spec).kv_bytes_per_token
    read = decode_bytes(spec, dtype="w8a8", kv_dtype="int8", max_model_len=256)
    assert read.kv_at_max_model_len == pytest.approx(per_token / 2 * (256 + 40), rel=0.01)
    assert read.tokens_per_s(1e9, is_full=True) < read.tokens_per_s(1e9) == 1e9 / read.weights


def test_the_bandwidth_of_this_machine_is_plausible():
    assert 1e8 < measure_bandwidth() < 1e13
