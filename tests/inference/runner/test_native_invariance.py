"""
A row gets the same bits in any batch, with any chunks of its prompt, on one thread or two.

Each test computes all logits of some sequences alone and in one piece, then again in random chunks, in random company,
on blocks that hold the leftovers of others, with the logits of some rows only, and compares bit for bit.

Proves the share of the kernels in batch invariance, the only one that depends on the ISA, the threads and the kind of
network; the engine's share is proved in `tests/inference/engine` on one network (`test_native_bytes`,
`test_same_bytes`).
"""

from dataclasses import replace

import numpy as np
import pytest

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.weights import Encoding
from tests.inference.runner.native_models import (
    FORMATS,
    ISAS,
    LIMITS,
    NO_OTHERS,
    SPECS,
    WIDE,
    BlockWeights,
    load,
    small_spec,
    spread,
)
from tests.inference.runner.steps import make_step, with_random_rows
from tests.inference.runner.weights import ArrayWeights, random_weights

SHARED = "inputs of layers, shared keys, wider MLPs"
"""Its last layers attend to the keys of earlier ones, so that they run for the rows that are needed only."""
LENGTHS = (300, 40, 33, 1, 129, 64)


def random_schedule(rng, lengths, max_tokens):
    """Steps of (sequence, start, stop) pieces that work through all sequences in order."""
    done = [0] * len(lengths)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        pieces, room = [], max_tokens
        for sequence in rng.permutation(len(lengths)):
            left = lengths[sequence] - done[sequence]
            if left and room and rng.random() < 0.7:
                size = min(left, room, int(rng.choice([1, 1, 2, 3, 17, 32, 200])))
                pieces.append((int(sequence), done[sequence], done[sequence] + size))
                done[sequence] += size
                room -= size
        if pieces:
            yield pieces


def alone(runner, prompts, tables):
    return [
        runner.logits(make_step((tokens, 0, table), all_rows=True))
        for tokens, table in zip(prompts, tables, strict=True)
    ]


def in_company(runner, prompts, tables, rng, max_tokens):
    """Yield sequence, position and logits of some tokens."""
    for pieces in random_schedule(rng, [len(tokens) for tokens in prompts], max_tokens):
        step = make_step(
            *[(prompts[sequence][start:stop], start, tables[sequence]) for sequence, start, stop in pieces],
            all_rows=True,
        )
        step = with_random_rows(step, rng)
        places = [(sequence, position) for sequence, start, stop in pieces for position in range(start, stop)]
        for row, logits in zip(step.rows, runner.logits(step), strict=True):
            yield *places[row], logits


def random_tables(rng):
    order = rng.permutation(LIMITS.num_blocks)
    counts = [-(-length // 32) for length in LENGTHS]
    return [blocks.tolist() for blocks in np.split(order[: sum(counts)], np.cumsum(counts)[:-1])]


def check(spec, tmp_path, *, dtype, kv_dtype, isa, seed, rounds=1, encoding=None, others=NO_OTHERS):
    rng = np.random.default_rng(seed)
    weights = random_weights(spec)
    if encoding is not None:
        weights = BlockWeights(weights.arrays, encoding, others)
    prompts = [rng.integers(0, spec.vocab_size, length).tolist() for length in LENGTHS]
    options = {"dtype": dtype, "kv_dtype": kv_dtype, "isa": isa}
    expected = alone(load(spec, weights, tmp_path, threads=1, **options), prompts, random_tables(rng))
    for threads in (1, 2):
        runner = load(spec, weights, tmp_path, threads=threads, **options)
        for _ in range(rounds):
            actual = in_company(runner, prompts, random_tables(rng), rng, int(rng.choice([16, 128, 400])))
            for sequence, position, logits in actual:
                np.testing.assert_array_equal(logits, expected[sequence][position])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_logits_do_not_depend_on_the_batch_the_chunks_or_the_threads(dtype, kv_dtype, isa, tmp_path):
    check(small_spec(), tmp_path, dtype=dtype, kv_dtype=kv_dtype, isa=isa, seed=1, rounds=1 + (isa == ISAS[0]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "encoding"), [("w4a8", Encoding.Q4_0), ("w4a16", Encoding.FP4)])
def test_nor_do_they_with_blocks_of_4_bits_that_have_no_minima(dtype, encoding, isa, tmp_path):
    spec = small_spec(intermediate_size=192)
    check(spec, tmp_path, dtype=dtype, kv_dtype="int8", isa=isa, seed=1, encoding=encoding)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("dtype", "encoding"), [("w4a8", Encoding.TERNARY), ("w4a16", Encoding.Q2_K), ("w4a8", Encoding.Q3_K)]
)
def test_nor_do_they_with_weights_of_2_and_3_bits_also_of_experts(dtype, encoding, isa, tmp_path):
    moe = MoeSpec(num_experts=5, top_k=2, expert_size=256, layers=(False, True))
    options = {"encoding": encoding, "others": {"v": Encoding.Q4_1}}
    check(replace(WIDE, moe=moe), tmp_path, dtype=dtype, kv_dtype="int8", isa=isa, seed=1, **options)


@pytest.mark.parametrize(
    ("name", "dtype", "isa"),
    spread({name: ("bf16", "w8a8", "w4a8", "w8a16", "w4a16") for name, spec in SPECS.items() if spec.moe}),
)
def test_logits_with_experts_do_not_depend_on_the_batch_the_chunks_or_the_threads(name, dtype, isa, tmp_path):
    check(SPECS[name], tmp_path, dtype=dtype, kv_dtype="int8", isa=isa, seed=1)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("bf16", "bf16"), ("w8a8", "int8"), ("w4a8", "int8"), ("w8a16", "bf16"), ("w4a16", "bf16")]
)
@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if name != "llama" and not spec.moe])
def test_no_network_depends_on_the_batch_the_chunks_or_the_threads(name, dtype, kv_dtype, tmp_path):
    check(SPECS[name], tmp_path, dtype=dtype, kv_dtype=kv_dtype, isa=ISAS[0], seed=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a16"])
def test_threads_that_share_the_rows_of_a_panel_compute_the_same_bits(dtype, isa, tmp_path):
    spec, rng = small_spec(), np.random.default_rng(4)
    weights, tokens = random_weights(spec), rng.integers(0, 333, 117).tolist()
    step = make_step((tokens[:90], 0, [3, 7, 1]), (tokens[90:91], 0, [4]), (tokens[91:], 0, [9]), all_rows=True)
    expected = load(spec, weights, tmp_path, dtype=dtype, isa=isa, threads=1).logits(step)
    for threads in (5, 16):
        runner = load(spec, weights, tmp_path, dtype=dtype, isa=isa, threads=threads)
        np.testing.assert_array_equal(runner.logits(step), expected)


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("rows", [[349], [0, 199], [60, 61, 62, 63, 64, 65, 300], range(350), range(349), []])
@pytest.mark.parametrize("name", ["llama", SHARED])
def test_rows_without_logits_do_not_change_the_others(name, rows, threads, tmp_path):
    spec, rng = SPECS[name], np.random.default_rng(3)
    tokens = rng.integers(0, spec.vocab_size, 351).tolist()
    tables = [[5, 9, 1, 30, 2, 8, 11], [7, 3, 20, 21, 22]]
    everything = make_step((tokens[:200], 0, tables[0]), (tokens[200:350], 0, tables[1]), all_rows=True)
    after = make_step((tokens[350:], 150, tables[1]))
    weights = random_weights(spec)
    expected = load(spec, weights, tmp_path, dtype="w8a8", kv_dtype="int8", threads=1)
    runner = load(spec, weights, tmp_path, dtype="w8a8", kv_dtype="int8", threads=threads)
    some = replace(everything, rows=np.array(rows, np.int32))
    np.testing.assert_array_equal(runner.logits(some), expected.logits(everything)[list(rows)])
    np.testing.assert_array_equal(runner.logits(after), expected.logits(after))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_stale_block_contents_do_not_change_logits_even_if_nan(kv_dtype, isa, tmp_path):
    spec = small_spec(tie_embeddings=False)
    arrays = dict(random_weights(spec).arrays)
    arrays["embed"][0] = np.nan
    step = make_step(([1, 2, 3, 4, 5], 0, [4]), all_rows=True)
    clean = load(spec, ArrayWeights(arrays), tmp_path, kv_dtype=kv_dtype, isa=isa).logits(step)
    runner = load(spec, ArrayWeights(arrays), tmp_path, kv_dtype=kv_dtype, isa=isa)
    assert np.isnan(runner.logits(make_step(([0] * 32, 0, [4])))).all()
    np.testing.assert_array_equal(runner.logits(step), clean)
    assert np.isfinite(clean).all()
