"""Hidden states of the rows that a step returns for pooling."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import EngineFailed
from headrace.inference.models.spec import RopeSpec
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.runner.native_models import ISAS, LIMITS, SPECS, GuidedReference, load, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import random_weights

TOKENS = np.random.default_rng(5).integers(0, 60, 350).tolist()
TABLES = [[5, 9, 1, 30, 2, 8, 11], [7, 3, 20, 21, 22]]
ENCODERS = {
    "bert": small_spec(
        is_causal=False, norm="layer", norm_bias=True, norms="stream", embedding_norm=True, token_types=2, mlp="plain",
        activation="gelu_erf", learned_positions=512, rope_of_layer=(-1, -1), qkv_bias=True, o_bias=True, mlp_bias=True,
    ),
    "modernbert": small_spec(
        is_causal=False, norm="layer", embedding_norm=True, first_attn_norm=False, activation="gelu_erf",
        ropes=(RopeSpec(theta=1.6e5), RopeSpec()), rope_of_layer=(0, 1, 1), windows=(0, 33, 33), num_layers=3,
    ),
}  # fmt: skip


def pooled_step(rows, hidden_rows, stop=350):
    """Return a step of two sequences, of which the first has 200 tokens."""
    step = make_step((TOKENS[:200], 0, TABLES[0]), (TOKENS[200:stop], 0, TABLES[1]), all_rows=True)
    return replace(
        step,
        rows=np.array(rows, np.int32),
        sampling=step.sampling[: len(rows)],
        hidden_rows=np.array(hidden_rows, np.int32),
    )


@pytest.mark.parametrize("name", SPECS)
def test_hidden_states_are_those_of_the_reference(name, tmp_path):
    spec = SPECS[name]
    weights = random_weights(spec)
    step = pooled_step([199], [0, 1, 60, 63, 64, 65, 198, 200, 349])
    runner = load(spec, weights, tmp_path, dtype="bf16", kv_dtype="bf16", threads=2)
    expected = GuidedReference(runner, weights, 0.03).hidden(step)
    actual = runner.execute(step).hidden
    assert actual.shape == (9, spec.hidden_size)
    error = np.linalg.norm(actual - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 0.03


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ENCODERS)
def test_tokens_of_an_encoder_attend_to_both_sides_of_them(name, isa, tmp_path):
    spec = ENCODERS[name]
    weights = random_weights(spec)
    step = pooled_step([], [0, 1, 31, 32, 33, 100, 199, 200, 232, 233, 349])
    expected = ReferenceRunner(spec, weights, LIMITS).execute(step).hidden
    runner = load(spec, weights, tmp_path, dtype="bf16", kv_dtype="bf16", threads=2, isa=isa)
    actual = runner.execute(step).hidden
    assert (np.linalg.norm(actual - expected, axis=1) < 0.03 * np.linalg.norm(expected, axis=1)).all()
    alone = replace(make_step((TOKENS[200:350], 0, TABLES[1]), all_rows=True), hidden_rows=np.array([0], np.int32))
    alone = replace(alone, rows=np.empty(0, np.int32), sampling=alone.sampling[:0])
    np.testing.assert_array_equal(runner.execute(alone).hidden[0], actual[7])


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
@pytest.mark.parametrize("name", ["llama", "inputs of layers, shared keys, wider MLPs"])
def test_a_hidden_state_has_the_same_bits_in_any_step_and_on_any_threads(name, dtype, tmp_path):
    spec = SPECS[name]
    weights = random_weights(spec)
    expected = load(spec, weights, tmp_path, dtype=dtype, kv_dtype="bf16", threads=1)
    everything = expected.execute(pooled_step([], range(350))).hidden
    runner = load(spec, weights, tmp_path, dtype=dtype, kv_dtype="bf16", threads=2)
    for rows, hidden_rows in (([], [199, 349]), ([3, 70], [0, 64, 65, 66, 210]), (range(300), range(300, 350))):
        output = runner.execute(pooled_step(rows, hidden_rows))
        np.testing.assert_array_equal(output.hidden, everything[list(hidden_rows)])
    alone = replace(make_step((TOKENS[200:260], 0, TABLES[1]), all_rows=True), hidden_rows=np.array([59], np.int32))
    alone = replace(alone, rows=np.empty(0, np.int32), sampling=alone.sampling[:0])
    np.testing.assert_array_equal(runner.execute(alone).hidden[0], everything[259])


def test_each_token_has_the_vector_of_its_type(tmp_path):
    spec = replace(small_spec(), token_types=3)
    weights = random_weights(spec)
    types = np.random.default_rng(1).integers(0, 3, 350).astype(np.int32)
    step = replace(pooled_step([], range(0, 350, 7)), token_types=types)
    reference, runner = ReferenceRunner(spec, weights, LIMITS), load(spec, weights, tmp_path, dtype="bf16", threads=2)
    expected, actual = reference.execute(step).hidden, runner.execute(step).hidden
    assert np.linalg.norm(actual - expected) < 0.03 * np.linalg.norm(expected)
    untyped = replace(step, token_types=None)
    assert np.linalg.norm(runner.execute(untyped).hidden - expected) > 0.1 * np.linalg.norm(expected)
    assert np.linalg.norm(reference.execute(untyped).hidden - expected) > 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize("types", [[0] * 349 + [2], [-1] * 350, [0] * 349])
def test_token_types_that_do_not_exist_are_refused(types, tmp_path):
    spec = replace(small_spec(), token_types=2)
    weights = random_weights(spec)
    step = replace(pooled_step([], [0]), token_types=np.array(types, np.int32))
    for runner in (
        load(spec, weights, tmp_path, dtype="bf16", kv_dtype="bf16", threads=1),
        ReferenceRunner(spec, weights, LIMITS),
    ):
        with pytest.raises(EngineFailed, match=r"token type|token_types|a type that does not exist"):
            runner.execute(step)


@pytest.mark.parametrize(
    ("rows", "hidden_rows", "message"),
    [([], [5, 5], "ascend"), ([], [350], "within"), ([], [-1], "within"), ([4, 9], [3, 9], "both")],
)
def test_hidden_rows_that_are_not_valid_are_refused(rows, hidden_rows, message, tmp_path):
    spec = small_spec()
    weights = random_weights(spec)
    runner = load(spec, weights, tmp_path, dtype="w8a8", kv_dtype="int8", threads=1)
    step = pooled_step(rows, hidden_rows)
    with pytest.raises(EngineFailed, match=message):
        runner.execute(step)
    with pytest.raises(EngineFailed, match="hidden"):
        ReferenceRunner(spec, weights, LIMITS).execute(step)
