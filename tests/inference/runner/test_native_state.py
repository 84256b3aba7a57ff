"""
State layers in the native runtime: they compute what the reference computes, and nothing changes the bits of a row.

Each invariance test computes all logits of some sequences alone and in one piece, then again on a random walk: in
chunks, in company, with right and wrong draft tokens, through other slots and from checkpoints (`states.py`).
"""

import numpy as np
import pytest

from headrace.core.errors import EngineFailed, SettingsError
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.runner.native_models import (
    ISAS,
    LIMITS,
    STATE_LIMITS,
    STATE_SPECS,
    GuidedReference,
    load,
    relative_error,
    small_spec,
    spread,
)
from tests.inference.runner.states import INVALID_STATES, Walk, new_sequences
from tests.inference.runner.steps import make_step
from tests.inference.runner.test_native import TOLERANCES
from tests.inference.runner.weights import ArrayWeights, random_weights

LENGTHS = (300, 40, 33, 1, 129, 64)
SPARE_TOKENS = 8
"""Room in the blocks of a sequence for draft tokens beyond its end."""


def prompts_of(spec, rng):
    return [rng.integers(1, spec.vocab_size, length).tolist() for length in LENGTHS]


def tables_of():
    counts = [-(-(length + SPARE_TOKENS) // 32) for length in LENGTHS]
    return np.split(np.random.default_rng(0).permutation(sum(counts)), np.cumsum(counts)[:-1])


def whole(tokens, table):
    return make_step((tokens, 0, table), all_rows=True, states=new_sequences(len(tokens)))


@pytest.mark.parametrize(("name", "dtype", "isa"), spread(dict.fromkeys(STATE_SPECS, tuple(TOLERANCES))))
def test_logits_match_the_reference(name, dtype, isa, tmp_path):
    spec, tables = STATE_SPECS[name], tables_of()
    weights = random_weights(spec)
    runner = load(spec, weights, tmp_path, dtype=dtype, isa=isa, limits=STATE_LIMITS)
    tolerance = TOLERANCES[dtype] * 1.5
    reference = ReferenceRunner(spec, weights, STATE_LIMITS)
    if spec.moe is not None:
        reference = GuidedReference(runner, weights, tolerance, limits=STATE_LIMITS)
    prompts = prompts_of(spec, np.random.default_rng(1))
    step = make_step(
        (prompts[4], 0, tables[4]), (prompts[2], 0, tables[2]), all_rows=True, states=new_sequences(129, 33)
    )
    expected = reference.logits(step)
    assert relative_error(runner.logits(step), expected) < tolerance


@pytest.mark.parametrize(("name", "dtype", "isa"), spread(dict.fromkeys(STATE_SPECS, tuple(TOLERANCES))))
def test_logits_do_not_depend_on_chunks_company_drafts_slots_or_threads(name, dtype, isa, tmp_path):
    spec, tables, rng = STATE_SPECS[name], tables_of(), np.random.default_rng(2)
    weights, prompts = random_weights(spec), prompts_of(spec, rng)
    alone = load(spec, weights, tmp_path, dtype=dtype, isa=isa, threads=1, limits=STATE_LIMITS)
    expected = [alone.logits(whole(*pair)) for pair in zip(prompts, tables, strict=True)]
    for threads in numbers_of_threads(name, isa):
        runner = load(spec, weights, tmp_path, dtype=dtype, isa=isa, threads=threads, limits=STATE_LIMITS)
        walk = Walk(prompts, tables, rng, STATE_LIMITS, some_rows=threads > 1)
        for sequence, position, row in walk.run(runner.logits, int(rng.choice([16, 70, 400]))):
            np.testing.assert_array_equal(row, expected[sequence][position])


def numbers_of_threads(name, isa):
    """Return one, two and more than there are cores with the best ISA; with each other one of them, in turn."""
    every, turn = (1, 2, 5), ISAS.index(isa)
    return every if turn == 0 else every[(list(STATE_SPECS).index(name) + turn) % 3 :][:1]


@pytest.mark.parametrize("isa", ISAS)
def test_a_new_sequence_starts_from_zeros_whatever_its_slot_held(isa, tmp_path):
    spec = small_spec(mixers=("conv", "attention"), conv=STATE_SPECS["short convolutions"].conv, tie_embeddings=False)
    arrays = dict(random_weights(spec).arrays)
    arrays["embed"][0] = np.nan
    clean = load(spec, ArrayWeights(arrays), tmp_path, isa=isa, limits=STATE_LIMITS)
    expected = clean.logits(whole([1, 2, 3], [4]))
    runner = load(spec, ArrayWeights(arrays), tmp_path, isa=isa, limits=STATE_LIMITS)
    assert np.isnan(runner.logits(whole([0] * 40, [4, 5]))).all()
    np.testing.assert_array_equal(runner.logits(whole([1, 2, 3], [4])), expected)
    assert np.isfinite(expected).all()


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    spec = STATE_SPECS["short convolutions"]
    return load(spec, random_weights(spec), tmp_path_factory.mktemp("cache"), limits=STATE_LIMITS)


@pytest.mark.parametrize("states", INVALID_STATES.values(), ids=INVALID_STATES.keys())
def test_a_step_that_would_read_or_write_another_state_is_invalid(states, runner):
    runner.logits(make_step(([1, 2, 3], 0, [0]), states=new_sequences(3)))
    with pytest.raises(EngineFailed, match="The step is invalid"):
        runner.logits(make_step(([1, 2], 3, [0]), ([4, 5], 0, [2]), states=states))


def test_slots_are_for_networks_with_state_layers_which_need_some(tmp_path):
    for spec, limits in ((STATE_SPECS["short convolutions"], LIMITS), (small_spec(), STATE_LIMITS)):
        with pytest.raises(SettingsError, match="state slots"):
            load(spec, random_weights(spec), tmp_path, limits=limits)
