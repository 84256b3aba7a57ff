"""LoRA adapters in the reference and the native runtime: merged weights, mixed batches, slots."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import EngineFailed, InsufficientMemory
from headrace.inference.models.adapter import LowRank
from headrace.inference.runner.memory import MemoryBudget
from headrace.inference.runner.plan import plan_runner
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.runner.adapters import merged, random_adapter
from tests.inference.runner.native_models import FORMATS, ISAS, LIMITS, SPECS, load, relative_error, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

SLOTS = replace(LIMITS, max_adapters=3, max_adapter_rank=24)
TOLERANCES = {"bf16": 0.03, "w8a8": 0.06, "w4a8": 0.25, "w8a16": 0.03, "w4a16": 0.25}
"""Relative error of the logits; random weights lose much in 4 bits, with and without an adapter."""
LENGTHS = (150, 33, 1, 40, 7)
TABLES = [[0, 9, 2, 3, 4], [5, 6], [7], [8, 1], [10]]
ADAPTERS = (0, -1, 2, 1, 2)


def prompts_of(spec):
    rng = np.random.default_rng(4)
    return [rng.integers(0, spec.vocab_size, length).tolist() for length in LENGTHS]


def slots(*numbers):
    return np.array(numbers, np.int32)


def all_rows(pieces, adapters=None):
    return make_step(*pieces, all_rows=True, adapters=adapters)


def adapters_of(spec):
    return [
        random_adapter(spec, seed=1),
        random_adapter(spec, seed=2, ranks=(3, 16, 24)),
        random_adapter(spec, seed=3, parts=("q", "up", "down"), ranks=(1,)),
    ]


def loaded(runner, spec):
    for slot, adapter in enumerate(adapters_of(spec)):
        runner.load_adapter(slot, adapter)
    return runner


@pytest.mark.parametrize("name", SPECS)
def test_the_reference_computes_what_merged_weights_do(name):
    spec = SPECS[name]
    weights, tokens = random_weights(spec), prompts_of(spec)[1]
    runner = loaded(ReferenceRunner(spec, weights, SLOTS), spec)
    for slot, adapter in enumerate(adapters_of(spec)):
        expected = ReferenceRunner(spec, merged(weights, adapter), LIMITS).logits(all_rows([(tokens, 0, [3, 1])]))
        actual = runner.logits(all_rows([(tokens, 0, [3, 1])], slots(slot)))
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def error_of(spec, actual, expected):
    """Return the relative error; with experts that of the median row: rounding changes the choice of some rows."""
    if spec.moe is None:
        return relative_error(actual, expected)
    return float(np.median([relative_error(*rows) for rows in zip(actual, expected, strict=True)]))


def check_native(spec, tmp_path, **options):
    weights, tokens = random_weights(spec), prompts_of(spec)[1]
    reference = loaded(ReferenceRunner(spec, weights, SLOTS), spec)
    runner = loaded(load(spec, weights, tmp_path, limits=SLOTS, **options), spec)
    plain = reference.logits(all_rows([(tokens, 0, [3, 1])]))
    for slot in range(2):
        step = all_rows([(tokens, 0, [3, 1])], slots(slot))
        expected, actual = reference.logits(step), runner.logits(step)
        error = error_of(spec, actual, expected)
        assert error < TOLERANCES[options["dtype"]]
        assert error_of(spec, plain, expected) > 2 * error


@pytest.mark.parametrize("name", SPECS)
def test_native_kernels_stay_close_to_the_reference_in_every_network(name, tmp_path):
    check_native(SPECS[name], tmp_path, dtype="bf16", kv_dtype="bf16")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS[::2])
def test_native_kernels_stay_close_to_the_reference_in_every_format(dtype, kv_dtype, isa, tmp_path):
    check_native(small_spec(), tmp_path, dtype=dtype, kv_dtype=kv_dtype, isa=isa)


@pytest.mark.parametrize("isa", ISAS)
def test_ranks_and_outputs_of_very_different_magnitude_keep_their_precision(isa, tmp_path):
    spec, weights = small_spec(), random_weights(small_spec())
    rng = np.random.default_rng(8)

    def spread(matrix):
        ranks, outputs = (2.0 ** rng.integers(-6, 7, size) for size in (matrix.rank, len(matrix.expand)))
        expand = matrix.expand * (outputs / outputs.max())[:, None] / ranks
        return LowRank((matrix.shrink * ranks[:, None]).astype(np.float32), expand.astype(np.float32))

    plain = random_adapter(spec, seed=1, scale=2.0)
    adapter = replace(plain, matrices={name: spread(matrix) for name, matrix in plain.matrices.items()})
    step = all_rows([(prompts_of(spec)[1], 0, [3, 1])], slots(0))
    reference = ReferenceRunner(spec, weights, SLOTS)
    runner = load(spec, weights, tmp_path, limits=SLOTS, isa=isa)
    for each in (reference, runner):
        each.load_adapter(0, adapter)
    expected = reference.logits(step)
    assert relative_error(runner.logits(step), expected) < TOLERANCES["bf16"]
    assert relative_error(reference.logits(replace(step, adapters=None)), expected) > 3 * TOLERANCES["bf16"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("eight heads a group, biases, own LM head", dtype) for dtype in ("bf16", "w8a8", "w4a8", "w8a16", "w4a16")),
        ("inputs of layers, shared keys, wider MLPs", "w8a8"),
    ],
)
def test_a_row_has_the_same_bits_alone_and_among_rows_of_other_adapters(name, dtype, isa, tmp_path):
    spec = SPECS[name]
    weights, prompts = random_weights(spec), prompts_of(spec)
    options = {"dtype": dtype, "isa": isa, "limits": SLOTS}
    single = loaded(load(spec, weights, tmp_path, threads=1, **options), spec)
    expected = [
        single.logits(all_rows([(tokens, 0, table)], slots(slot)))
        for tokens, table, slot in zip(prompts, TABLES, ADAPTERS, strict=True)
    ]
    for threads in (1, 2):
        runner = loaded(load(spec, weights, tmp_path, threads=threads, **options), spec)
        whole = [(tokens, 0, table) for tokens, table in zip(prompts, TABLES, strict=True)]
        actual = runner.logits(all_rows(whole, slots(*ADAPTERS)))
        np.testing.assert_array_equal(actual, np.concatenate(expected))
        actual = runner.logits(make_step(*whole, adapters=slots(*ADAPTERS)))
        np.testing.assert_array_equal(actual, np.stack([logits[-1] for logits in expected]))
        last = [(tokens[-1:], len(tokens) - 1, table) for tokens, table in zip(prompts, TABLES, strict=True)]
        for chosen in ([0, 1, 2, 3, 4], [3, 0], [4]):
            actual = runner.logits(all_rows([last[i] for i in chosen], slots(*[ADAPTERS[i] for i in chosen])))
            np.testing.assert_array_equal(actual, np.stack([expected[i][-1] for i in chosen]))


def test_rows_without_an_adapter_have_the_bits_of_a_runner_without_slots(tmp_path):
    spec = small_spec()
    weights, tokens = random_weights(spec), prompts_of(spec)[1]
    expected = load(spec, weights, tmp_path, dtype="w8a8").logits(all_rows([(tokens, 0, [3, 1])]))
    runner = loaded(load(spec, weights, tmp_path, dtype="w8a8", limits=SLOTS), spec)
    for adapters in (None, slots(-1)):
        np.testing.assert_array_equal(runner.logits(all_rows([(tokens, 0, [3, 1])], adapters)), expected)


def test_a_slot_that_is_filled_again_forgets_its_old_content(tmp_path):
    spec = small_spec()
    weights, tokens = random_weights(spec), prompts_of(spec)[1]
    step = all_rows([(tokens, 0, [3, 1])], slots(0))
    runner = load(spec, weights, tmp_path, limits=SLOTS)
    runner.load_adapter(0, random_adapter(spec, seed=9, parts=("v",), ranks=(2,)))
    expected = runner.logits(step)
    runner.load_adapter(0, random_adapter(spec, seed=7))
    assert not np.array_equal(runner.logits(step), expected)
    runner.load_adapter(0, random_adapter(spec, seed=9, parts=("v",), ranks=(2,)))
    np.testing.assert_array_equal(runner.logits(step), expected)


@pytest.mark.parametrize("slot", [-2, 3])
def test_a_step_that_names_a_slot_that_does_not_exist_is_refused(slot, tmp_path):
    spec = small_spec()
    for runner in (
        load(spec, random_weights(spec), tmp_path, limits=SLOTS),
        ReferenceRunner(spec, random_weights(spec), SLOTS),
    ):
        with pytest.raises(EngineFailed, match="slot"):
            runner.logits(all_rows([([1, 2], 0, [0])], slots(slot)))


def test_a_runner_without_slots_refuses_adapters(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path)
    with pytest.raises(EngineFailed, match="slot"):
        runner.logits(all_rows([([1, 2], 0, [0])], slots(-1)))
    with pytest.raises(EngineFailed, match="slot"):
        runner.load_adapter(0, random_adapter(spec))


def test_an_adapter_of_another_network_or_of_more_rank_is_refused(tmp_path):
    spec = small_spec()
    runner = load(spec, random_weights(spec), tmp_path, limits=SLOTS)
    with pytest.raises(EngineFailed, match="rank is 32; expected at most 24"):
        runner.load_adapter(0, random_adapter(spec, ranks=(32,)))
    with pytest.raises(EngineFailed, match="fit"):
        runner.load_adapter(0, random_adapter(replace(spec, hidden_size=960)))


def test_slots_are_part_of_the_memory_plan():
    options = {
        "dtype": "w8a8",
        "kv_dtype": "int8",
        "block_tokens": 32,
        "max_model_len": 64,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "threads": 2,
    }
    spec, budget = small_spec(), MemoryBudget(available_bytes=1 << 30)
    plain = plan_runner(spec, budget=budget, **options).memory
    plan = plan_runner(spec, budget=budget, max_adapters=4, max_adapter_rank=16, **options).memory
    numbers = sum(
        matrix.shrink.size + matrix.expand.size for matrix in random_adapter(spec, ranks=(16,)).matrices.values()
    )
    assert plain.adapter_bytes == 0
    assert 4 * numbers <= plan.adapter_bytes < 4 * numbers * 1.5
    assert plan.total_bytes > plain.total_bytes + 4 * numbers
    with pytest.raises(InsufficientMemory, match="max_loras"):
        plan_runner(spec, budget=budget, max_adapters=1000, max_adapter_rank=512, **options)
