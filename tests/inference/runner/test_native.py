"""The native kernels compute what the reference computes, for every format, CPU variant and kind of network."""

import platform
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from headrace import _native
from headrace.core.errors import SettingsError
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.cpu import cpu_report
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.sampling import sample_rows
from headrace.inference.runner.step import Bias, History, Mask
from tests.inference.runner.native_models import (
    ALL_ISAS,
    FORMATS,
    ISAS,
    LIMITS,
    SPECS,
    WIDE,
    BlockWeights,
    GuidedReference,
    load,
    relative_error,
    small_spec,
    spread,
)
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import ArrayWeights, random_weights, round_to_w8, weight_shapes

TOLERANCES = {"bf16": 0.015, "w8a16": 0.02, "w8a8": 0.04, "w4a16": 0.2, "w4a8": 0.2}
"""4-bit rounding of random weights is coarse; exact 4-bit weights are tested below with the tolerance of 8 bits."""
BLOCKS = [7, 3, 11, 2, 30, 31, 5, 6, 9, 20]


LATENT = "latent attention of odd sizes, whose queries grow"


def prompt(spec, length, seed=0):
    return np.random.default_rng(seed).integers(0, spec.vocab_size, length).tolist()


A16 = (("w8a16", "bf16"), ("w4a16", "bf16"))
HALVES = (
    (("bf16", "bf16"), ("w8a8", "int8"), ("w4a8", "bf16"), *A16),
    (("bf16", "int8"), ("w8a8", "bf16"), ("w4a8", "int8"), *A16),
)
"""
Each has every format of weights and both of the KV cache, together they have all of `FORMATS`.

Attention reads the cache and no weights, matrices the weights and no cache: a network needs one half, with each ISA.
"""
assert set(HALVES[0] + HALVES[1]) == set(FORMATS)


@pytest.mark.parametrize(("name", "formats", "isa"), spread({name: HALVES[n % 2] for n, name in enumerate(SPECS)}))
def test_logits_match_the_reference(name, formats, isa, tmp_path):
    dtype, kv_dtype = formats
    spec = SPECS[name]
    weights = random_weights(spec)
    runner = load(spec, weights, tmp_path, dtype=dtype, kv_dtype=kv_dtype, isa=isa)
    step = two_prompts(spec)
    expected = (
        expected_logits(name) if spec.moe is None else GuidedReference(runner, weights, TOLERANCES[dtype]).logits(step)
    )
    assert relative_error(runner.logits(step), expected) < TOLERANCES[dtype]


def two_prompts(spec):
    """Return a step of two prompts: with experts a short one, as the reference runs again for each format and ISA."""
    first = prompt(spec, 150 if spec.moe is None else 70)
    return make_step((first, 0, BLOCKS), (prompt(spec, 33, 1), 0, [1, 4]), all_rows=True)


@cache
def expected_logits(name):
    """The logits of the reference; without experts they do not depend on the native runner."""
    spec = SPECS[name]
    return ReferenceRunner(spec, random_weights(spec), LIMITS).logits(two_prompts(spec))


LOW_BITS = (Encoding.TERNARY, Encoding.Q2_K, Encoding.Q3_K)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        *((encoding, "w4a8") for encoding in (Encoding.Q4_0, Encoding.FP4, Encoding.Q4_1, *LOW_BITS)),
        (Encoding.Q8_0, "w8a8"),
    ],
)
def test_quantized_checkpoints_lose_precision_only_in_activations(encoding, dtype, isa, tmp_path):
    spec = WIDE if encoding in LOW_BITS else small_spec(intermediate_size=192)
    plain = random_weights(spec)
    weights = BlockWeights({name: plain.arrays[name] for name in plain.names()}, encoding)
    runner = load(spec, weights, tmp_path, dtype=dtype, isa=isa)
    step = make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)
    assert relative_error(runner.logits(step), ReferenceRunner(spec, weights, LIMITS).logits(step)) < 0.04


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        *((encoding, "w4a16") for encoding in (Encoding.Q4_0, Encoding.FP4, Encoding.Q4_1, *LOW_BITS)),
        (Encoding.I8, "w8a16"),
    ],
)
def test_two_bytes_for_each_activation_lose_less_than_a_bf16_cache(encoding, dtype, isa, tmp_path):
    """All matrices can be packed exactly, so the only other rounding is that of keys and values."""
    spec = WIDE if encoding in LOW_BITS else small_spec(intermediate_size=192)
    arrays = dict(random_weights(spec).arrays)
    arrays["embed"] = round_to_w8(arrays["embed"])
    weights = BlockWeights(arrays, encoding)
    step = make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)
    expected = ReferenceRunner(spec, weights, LIMITS).logits(step)
    runners = [load(spec, weights, tmp_path, dtype=name, isa=isa) for name in (dtype, dtype.replace("a16", "a8"))]
    errors = [relative_error(runner.logits(step), expected) for runner in runners]
    assert errors[0] < 0.004
    assert errors[1] > 2 * errors[0]


@pytest.mark.parametrize("encoding", [Encoding.F16, Encoding.BF16])
def test_half_precision_checkpoints_are_read(encoding, tmp_path):
    spec = small_spec()
    plain = random_weights(spec)

    class HalfWeights(ArrayWeights):
        def load(self, name):
            tensor = super().load(name)
            values = tensor.data.view("<f4")
            halves = values.astype("<f2") if encoding is Encoding.F16 else (values.view("<u4") >> 16).astype("<u2")
            return type(tensor)(encoding, tensor.num_rows, tensor.num_columns, halves.view(np.uint8))

    weights = HalfWeights({name: plain.arrays[name] for name in plain.names()})
    step = make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)
    expected = ReferenceRunner(spec, weights, LIMITS).logits(step)
    assert relative_error(load(spec, weights, tmp_path).logits(step), expected) < 0.015


@pytest.mark.parametrize("isa", ISAS)
def test_decoding_over_several_attention_chunks_matches_the_reference(isa, tmp_path):
    spec = small_spec()
    weights = random_weights(spec)
    runner, reference = load(spec, weights, tmp_path, isa=isa), ReferenceRunner(spec, weights, LIMITS)
    tokens = prompt(spec, 310)
    first = make_step((tokens[:300], 0, BLOCKS))
    runner.logits(first), reference.logits(first)
    for context in range(300, 310):
        step = make_step(([tokens[context]], context, BLOCKS))
        assert relative_error(runner.logits(step), reference.logits(step)) < 0.015


@pytest.mark.parametrize("isa", ISAS)
def test_in_int8_the_rotated_part_of_a_latent_key_may_be_of_any_size(isa, tmp_path):
    """
    Keys whose rotated part is 64 times as large, and that of queries as small, have the same scores.

    With one scale for a key, its latent would be rounded to a few steps.
    """
    spec = replace(SPECS["latent attention of the largest size, with experts"], moe=None)
    sizes, arrays = spec.mla, dict(random_weights(spec).arrays)
    logits = []
    for factor in (1, 64):
        scaled = dict(arrays)
        for layer in range(spec.num_layers):
            keys, queries = (arrays[f"layers.{layer}.{name}"].copy() for name in ("kv_a", "q_b"))
            keys[sizes.kv_rank :] *= factor
            queries.reshape(spec.num_heads, sizes.query_dim, -1)[:, sizes.key_dim :] /= factor
            scaled |= {f"layers.{layer}.kv_a": keys, f"layers.{layer}.q_b": queries}
        runner = load(spec, ArrayWeights(scaled), tmp_path, kv_dtype="int8", isa=isa)
        logits.append(runner.logits(make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)))
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize(
    ("name", "batch", "isa"), spread({name: (1, 3, 8) for name, spec in SPECS.items() if spec.moe})
)
def test_decoding_with_experts_matches_the_reference(batch, name, isa, tmp_path):
    spec = SPECS[name]
    weights = random_weights(spec)
    runner = load(spec, weights, tmp_path, isa=isa)
    reference = GuidedReference(runner, weights, TOLERANCES["bf16"])
    for context in range(12):
        step = make_step(*[([prompt(spec, 12, sequence)[context]], context, [sequence]) for sequence in range(batch)])
        assert relative_error(runner.logits(step), reference.logits(step)) < TOLERANCES["bf16"]


def test_equal_scores_choose_the_experts_with_the_lowest_index(tmp_path):
    spec = small_spec(moe=MoeSpec(num_experts=20, top_k=2, expert_size=32))
    arrays = dict(random_weights(spec).arrays)
    for name, array in arrays.items():
        expert = name.partition(".experts.")[2].partition(".")[0]
        if name.endswith(".router") or (expert and int(expert) not in (0, 1)):
            arrays[name] = np.zeros_like(array)
    weights = ArrayWeights(arrays)
    step = make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)
    expected = ReferenceRunner(spec, weights, LIMITS).logits(step)
    assert relative_error(load(spec, weights, tmp_path).logits(step), expected) < TOLERANCES["bf16"]


@pytest.mark.parametrize("isa", ISAS)
def test_a_tolerance_shares_the_softmax_with_scores_near_the_chosen_one(isa, tmp_path):
    moe = MoeSpec(num_experts=6, top_k=3, expert_size=32, tolerance=0.3, router_bias=True)
    spec = small_spec(moe=moe)
    arrays = dict(random_weights(spec).arrays)
    for layer in range(spec.num_layers):
        arrays[f"layers.{layer}.router"] *= 0
        arrays[f"layers.{layer}.router_bias"] = np.array([0.37, 1.0, -0.1, 0.9, 0.4, -0.12], np.float32)
    weights = ArrayWeights(arrays)
    step = make_step((prompt(spec, 40), 0, BLOCKS), all_rows=True)
    expected = ReferenceRunner(spec, weights, LIMITS).logits(step)
    assert relative_error(load(spec, weights, tmp_path, isa=isa).logits(step), expected) < TOLERANCES["bf16"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 5])
def test_sampling_matches_the_reference(batch, isa, tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path, isa=isa)
    fields = [
        {"temperature": 0.0, "num_top": -1},
        {"temperature": 0.8, "seed": 5, "position": 9, "num_top": 3},
        {"temperature": 0.0, "num_top": 0},
        {"target": 17, "num_top": 2},
        {"temperature": 1.2, "top_p": 0.9, "seed": 1},
    ][:batch]
    pieces = [(prompt(spec, 9, seed), 0, [seed]) for seed in range(batch)]
    step = make_step(*pieces, sampling=fields)
    expected, actual = sample_rows(runner.logits(step), step), runner.execute(step)
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
    np.testing.assert_array_equal(actual.ranks, expected.ranks)
    np.testing.assert_allclose(actual.logprobs, expected.logprobs, rtol=1e-5)
    np.testing.assert_allclose(actual.top_logprobs, expected.top_logprobs, rtol=1e-5)


def mask_of(vocab_size, allowed):
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


MASKED = {
    "one token": ([1234], {}),
    "two tokens, drawn": ([3, 1999], {"temperature": 5.0, "seed": 3}),
    "no token": ([], {}),
    "few tokens, biased": ([40, 41, 900], {"temperature": 0.0}),
    "few tokens, penalised": ([40, 41, 900], {"repetition_penalty": 1.7}),
    "few tokens with logprobs": ([7, 8, 9], {"num_top": 2}),
    "half of all": (range(0, 2000, 2), {}),
    "half of all, drawn": (range(1, 2000, 2), {"temperature": 1.0, "top_p": 0.9, "seed": 8}),
    "all": (range(2000), {}),
    "no mask": (None, {}),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "w8a8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_masked_rows_match_the_reference_alone_and_in_a_batch(threads, dtype, isa, tmp_path):
    spec = small_spec(vocab_size=2000)
    limits = replace(LIMITS, max_step_sequences=len(MASKED))
    runner = load(spec, random_weights(spec), tmp_path, isa=isa, dtype=dtype, threads=threads, limits=limits)
    steps = {}
    for chosen in ([*range(len(MASKED))], *([index] for index in range(len(MASKED)))):
        cases = [list(MASKED.values())[index] for index in chosen]
        names = [list(MASKED)[index] for index in chosen]
        step = make_step(
            *[(prompt(spec, 9, index), 0, [index]) for index in chosen],
            sampling=[fields for _, fields in cases],
            masks=tuple(
                Mask(row, mask_of(2000, list(allowed))) for row, (allowed, _) in enumerate(cases) if allowed is not None
            ),
            biases=tuple(
                Bias(row, np.array([41], np.int32), np.array([30.0], np.float32))
                for row, name in enumerate(names)
                if name.endswith("biased")
            ),
            histories=tuple(
                History(row, np.array([40, 900, 900], np.int32), 1)
                for row, name in enumerate(names)
                if name.endswith("penalised")
            ),
        )
        expected, actual = sample_rows(runner.logits(step), step), runner.execute(step)
        np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
        np.testing.assert_array_equal(actual.top_ids, expected.top_ids)
        steps[tuple(chosen)] = actual.token_ids.tolist()
    together, *alone = steps.values()
    assert together == [token for tokens in alone for token in tokens]


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_lowest_id(isa, tmp_path):
    spec = small_spec()
    arrays = {name: np.ones(shape) for name, shape in weight_shapes(spec).items()}
    arrays["embed"][[20, 40, 77, 331]] = 2.0
    runner = load(spec, ArrayWeights(arrays), tmp_path, isa=isa)
    for sampling in ({}, {"num_top": 0}):
        step = make_step(([5, 6], 0, [0]), ([7], 0, [1]), ([8], 0, [2]), sampling=sampling)
        assert runner.execute(step).token_ids.tolist() == [20, 20, 20]


def test_a_step_without_logit_rows_still_fills_the_cache(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path)
    tokens = prompt(spec, 30)
    whole = runner.logits(make_step((tokens, 0, [0])))
    silent = make_step((tokens[:20], 0, [9]), all_rows=True)
    silent = type(silent)(
        **{name: getattr(silent, name) for name in silent.__slots__}
        | {"rows": silent.rows[:0], "sampling": silent.sampling[:0]}
    )
    assert runner.execute(silent).token_ids.shape == (0,)
    np.testing.assert_array_equal(runner.logits(make_step((tokens[20:], 20, [9]))), whole)


def test_an_isa_that_the_cpu_lacks_is_refused_and_named(tmp_path):
    spec = small_spec()
    with pytest.raises(SettingsError, match=r"sse9.*portable"):
        load(spec, random_weights(spec), tmp_path, isa="sse9")


def test_an_unknown_format_is_refused_and_named(tmp_path):
    spec = small_spec()
    with pytest.raises((SettingsError, ValueError), match="w2a8"):
        load(spec, random_weights(spec), tmp_path, dtype="w2a8")


def test_the_report_names_the_best_isa():
    report = cpu_report()
    assert report.isa == report.isas[0]
    assert report.isas[-1] == "portable"
    assert report.is_built_for_cpu
    assert report.threads >= 1


@pytest.mark.skipif(not {"avx2", "avx_vnni_evex"} <= set(ALL_ISAS), reason="only CPUs with AVX-512 run both")
@pytest.mark.parametrize(("name", "dtype"), [("llama", "w8a8"), (LATENT, "w4a8"), (LATENT, "w8a16")])
def test_products_of_vnni_change_no_bit_of_avx2(name, dtype, tmp_path):
    spec, weights = SPECS[name], random_weights(SPECS[name])
    step = make_step((prompt(spec, 70), 0, BLOCKS[:3]), (prompt(spec, 1), 0, BLOCKS[3:4]), all_rows=True)
    logits = [
        load(spec, weights, tmp_path, dtype=dtype, kv_dtype="int8", isa=isa).logits(step)
        for isa in ("avx2", "avx_vnni_evex")
    ]
    np.testing.assert_array_equal(*logits)


def test_the_tests_compare_the_kernels_of_all_cpus():
    own = {"x86_64": {"avx512_bf16", "avx512", "avx_vnni", "avx2", "avx_vnni_evex"}, "aarch64": {"neon_i8mm", "neon"}}
    assert set(_native.built_isas()) == own.get(platform.machine(), set()) | {"portable"}


def test_the_runner_reports_the_loaded_model(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path, dtype="w8a8", kv_dtype="int8", isa="portable")
    assert (runner.info.dtype, runner.info.kv_dtype, runner.info.device) == ("w8a8", "int8", "cpu (portable)")
    assert runner.info.facts["bf16"] == "emulated"


def test_a_profile_divides_the_time_of_steps_by_phase_and_thread(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path, threads=2)
    assert runner.profile() == []
    runner.start_profile()
    assert {seconds for thread in runner.profile() for seconds in thread.values()} == {0.0}
    output = runner.execute(make_step((prompt(spec, 200), 0, BLOCKS)))
    threads = runner.profile()
    assert len(threads) == 2
    assert output.num_threads in (1, 2), "one if another process kept a core busy"
    for phase in ("qkv", "attention", "gate_up", "down"):
        assert sum(thread[phase] for thread in threads) > 0
    runner.start_profile()
    assert sum(seconds for thread in runner.profile() for seconds in thread.values()) == 0.0
