"""Sampling: properties of the numpy definition, and the C++ sampler against it, token for token."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.inference.runner.sampling import MASS_BITS, NO_TOKEN, masses, random_bits, sample_rows, stack_sampling
from headrace.inference.runner.step import SAMPLING_DTYPE, Bias, History, Mask, StepInput, StepOutput

INF = np.inf


def step_of(fields, **extras) -> StepInput:
    """A step whose logits are known, so that only its sampling matters."""
    rows = np.arange(len(fields), dtype=np.int32)
    return StepInput(
        token_ids=np.zeros(len(fields), np.int32),
        query_starts=np.arange(len(fields) + 1, dtype=np.int32),
        context_lens=np.zeros(len(fields), np.int32),
        block_tables=np.zeros((len(fields), 1), np.int32),
        rows=rows,
        sampling=stack_sampling(fields),
        **extras,
    )


def native_rows(logits, step: StepInput) -> StepOutput:
    token_ids, logprobs, ranks, top_ids, top_logprobs = _native.sample_rows(
        logits,
        step.sampling.view(np.uint8).reshape(len(step.rows), SAMPLING_DTYPE.itemsize),
        [(item.row, item.tokens, item.num_prompt_tokens) for item in step.histories],
        [(item.row, item.ids, item.values) for item in step.biases],
        [(item.row, item.words) for item in step.masks],
    )
    return StepOutput(token_ids=token_ids, logprobs=logprobs, ranks=ranks, top_ids=top_ids, top_logprobs=top_logprobs)


@pytest.fixture(params=[sample_rows, native_rows], ids=["numpy", "native"])
def sample(request):
    """`sample(logits row, fields, ...)` -> the token, by either sampler."""

    def one(logits, fields=None, **extras):
        output = request.param(np.array([logits], np.float32), step_of([fields or {}], **extras))
        return int(output.token_ids[0])

    one.rows = request.param
    return one


def mask_of(vocab, allowed):
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


# --- C++ against numpy

FIELDS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "position": st.integers(0, 2**33),
        "temperature": st.sampled_from([0.0, 1e-6, 0.1, 0.7, 1.0, 1.5, 100.0, 1e35]),
        "num_top": st.sampled_from([-1, 0, 1, 5, 70]),
    },
    optional={
        "top_k": st.sampled_from([0, 1, 2, 5, 50, 500, 10**6]),
        "top_p": st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-20, 1e-6, 0.1, 0.5, 1.0]),
        "typical_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-2.0, 0.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.1, 0.0, 0.33]),
    },
)


@st.composite
def row_problems(draw):
    """Logits with ties, forbidden and broken entries; parameters; penalties, biases and masks."""
    vocab = draw(st.sampled_from([1, 2, 31, 63, 64, 65, 130, 1000, 5000]))
    fields = draw(st.lists(FIELDS, min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((len(fields), vocab)) * draw(st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0]))
    if draw(st.booleans()):
        logits = np.round(logits)
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -INF
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.0, 0.001]))] = draw(st.sampled_from([INF, np.nan]))
    for row, own in enumerate(fields):
        own["target"] = draw(st.sampled_from([-1, -1, row % vocab]))
    chosen = [row for row in range(len(fields)) if draw(st.booleans())]
    tokens = rng.integers(0, vocab, (len(fields), 24)).astype(np.int32)
    values = rng.choice([-INF, -3.0, 1.5, 20.0], (len(fields), 24)).astype(np.float32)
    words = rng.integers(0, 2**32, (len(fields), -(-vocab // 32)), dtype=np.uint32)
    return logits.astype(np.float32), step_of(
        fields,
        histories=tuple(History(row, tokens[row], draw(st.integers(0, 24))) for row in chosen),
        biases=tuple(Bias(row, tokens[row], values[row]) for row in chosen if draw(st.booleans())),
        masks=tuple(Mask(row, words[row]) for row in chosen if draw(st.booleans())),
    )


@settings(max_examples=400, deadline=None)
@given(row_problems())
def test_the_native_sampler_gives_the_very_same_tokens_as_numpy(problem):
    logits, step = problem
    with np.errstate(invalid="ignore"):
        expected = sample_rows(logits, step)
    found = native_rows(logits, step)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_array_equal(found.ranks, expected.ranks)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.top_logprobs, expected.top_logprobs, rtol=1e-6, atol=1e-6)


def test_large_vocabularies_agree_too():
    logits = (np.random.default_rng(3).standard_normal((12, 50_001)) * 2).astype(np.float32)
    fields = [{"temperature": 0.8, "seed": seed, "num_top": 5} for seed in range(12)]
    changes = [{}, {"top_p": 0.9}, {"top_k": 50}, {"top_k": 2000, "top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.05}]
    step = step_of([base | extra for base, extra in zip(fields, changes * 2, strict=True)])
    expected, found = sample_rows(logits, step), native_rows(logits, step)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)


# --- what either must do


@pytest.mark.parametrize("fields", [{}, {"temperature": 1e-9}, {"temperature": 2.0, "top_k": 1}])
def test_greedy_and_top_k_1_take_the_best_token_and_break_ties_by_id(sample, fields):
    assert sample([0.0, 3.0, -1.0, 3.0], fields) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [[0.0, np.nan, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF]])
def test_a_broken_row_has_no_token_and_no_logprob(sample, logits, temperature):
    output = sample.rows(np.array([logits], np.float32), step_of([{"temperature": temperature, "num_top": 1}]))
    assert output.token_ids[0] == NO_TOKEN
    assert np.isnan(output.logprobs[0])


def test_a_row_with_everything_masked_has_no_token(sample):
    assert sample([1.0, 2.0], masks=(Mask(0, mask_of(2, [])),)) == NO_TOKEN


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forbidden_logit_counts_only_for_logprobs(sample, temperature):
    masks = (Mask(0, mask_of(3, [1])),)
    assert sample([np.nan, 1.0, INF], {"temperature": temperature}, masks=masks) == 1
    assert sample([np.nan, 1.0, INF], {"temperature": temperature, "num_top": 0}, masks=masks) == NO_TOKEN


def test_a_broken_row_does_not_affect_the_others(sample):
    logits = np.array([[np.nan, 1.0], [0.0, 1.0]], np.float32)
    assert sample.rows(logits, step_of([{}, {}])).token_ids.tolist() == [NO_TOKEN, 1]


def test_a_mask_is_enforced_at_any_temperature(sample):
    logits = np.linspace(5, -5, 70)
    allowed = {3, 33, 64, 69}
    mask = (Mask(0, mask_of(70, allowed)),)
    drawn = {sample(logits, {"temperature": 50.0, "seed": seed}, masks=mask) for seed in range(80)}
    assert drawn == allowed
    assert sample(logits, masks=mask) == 3


def test_a_bias_changes_the_winner_and_minus_infinity_forbids(sample):
    bias = Bias(0, np.array([0, 2], np.int32), np.array([-INF, 1.5], np.float32))
    assert sample([9.0, 2.0, 1.0], biases=(bias,)) == 2


def test_repetition_penalty_looks_at_prompt_and_answer_once_per_token(sample):
    history = History(0, np.array([0, 0, 0, 1], np.int32), 3)
    assert sample([4.0, 4.0, 2.5], {"repetition_penalty": 1.5}, histories=(history,)) == 0
    assert sample([4.0, 4.0, 3.0], {"repetition_penalty": 1.5}, histories=(history,)) == 2
    assert sample([-1.0, -1.0, -1.4], {"repetition_penalty": 1.5}, histories=(history,)) == 2


def test_presence_and_frequency_penalties_look_at_the_answer_only(sample):
    history = History(0, np.array([0, 0, 0, 1, 1], np.int32), 3)
    assert sample([2.0, 2.9, 0.0], {"frequency_penalty": 0.5}, histories=(history,)) == 0
    assert sample([2.0, 3.1, 0.0], {"frequency_penalty": 0.5}, histories=(history,)) == 1
    assert sample([2.0, 2.9, 0.0], {"presence_penalty": 1.0}, histories=(history,)) == 0
    assert sample([2.0, 3.1, 0.0], {"presence_penalty": 1.0}, histories=(history,)) == 1


def test_logprobs_come_from_the_raw_logits(sample):
    raw = np.array([[1.0, 3.0, 2.0, -1.0]], np.float32)
    bias = Bias(0, np.array([3], np.int32), np.array([50.0], np.float32))
    output = sample.rows(raw, step_of([{"temperature": 0.5, "num_top": 2}], biases=(bias,)))
    expected = raw[0] - np.log(np.exp(raw[0]).sum())
    assert output.token_ids[0] == 3
    np.testing.assert_allclose(output.logprobs[0], expected[3], rtol=1e-6)
    assert output.top_ids.tolist() == [[1, 2]]
    np.testing.assert_allclose(output.top_logprobs[0], expected[[1, 2]], rtol=1e-6)


def test_rows_with_fewer_alternatives_are_filled_up(sample):
    raw = np.array([[1.0, 3.0, 2.0]] * 3, np.float32)
    output = sample.rows(raw, step_of([{"num_top": 5}, {"num_top": 1}, {}]))
    assert output.top_ids.tolist() == [[1, 2, 0, -1, -1], [1, -1, -1, -1, -1], [-1] * 5]
    assert np.isnan(output.top_logprobs[output.top_ids == -1]).all()
    assert np.isnan(output.logprobs).tolist() == [False, False, True]


def test_a_target_is_reported_and_not_drawn(sample):
    raw = np.array([[1.0, 3.0, 2.0]], np.float32)
    output = sample.rows(raw, step_of([{"target": 0, "num_top": 0, "temperature": 1.0}]))
    assert output.token_ids.tolist() == [0]
    np.testing.assert_allclose(output.logprobs[0], 1.0 - np.log(np.exp(raw[0]).sum()), rtol=1e-6)


def kept_by(sample, logits, **fields):
    """Tokens that come up in many draws at a temperature of 1."""
    rows = np.tile(np.array(logits, np.float32), (600, 1))
    output = sample.rows(rows, step_of([{"temperature": 1.0, "seed": seed, **fields} for seed in range(600)]))
    return set(output.token_ids.tolist())


PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.2, 0.25])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 4}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 4}),
        ({"top_p": 0.86}, {1, 4, 3, 2}),
        ({"top_p": 1e-7}, {1}),
        ({"min_p": 0.45}, {1, 4, 3}),
        ({"min_p": 0.2}, {1, 4, 3, 2}),
        ({"top_k": 3, "min_p": 0.55}, {1, 4}),
        ({"top_k": 3, "top_p": 0.75}, {1, 4}),  # of the mass that top-k leaves: 0.65 / 0.85
        ({"typical_p": 0.2}, {4}),  # entropy 1.42: surprises 3.0, 0.92, 2.3, 1.61, 1.39
        ({"typical_p": 0.4}, {4, 3}),
        ({"typical_p": 0.8}, {4, 3, 1}),
        ({"typical_p": 0.8, "top_p": 0.5}, {1, 4}),
    ],
)
def test_each_filter_keeps_the_expected_tokens(sample, fields, kept):
    assert kept_by(sample, np.log(PROBABILITIES), **fields) == kept


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_with_their_probability(sample, temperature):
    num_draws = 4000
    logits = np.array([0.3, 2.0, -1.0, 1.0, 0.0, -2.5], np.float32)
    fields = [{"temperature": temperature, "seed": 7, "position": position} for position in range(num_draws)]
    drawn = sample.rows(np.tile(logits, (num_draws, 1)), step_of(fields)).token_ids
    expected = np.exp(logits / temperature)
    expected *= num_draws / expected.sum()
    chi_square = ((np.bincount(drawn, minlength=6) - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom, p = 0.001


def test_a_draw_depends_on_seed_and_position_only(sample):
    logits = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
    fields = [{"temperature": 5.0, "seed": seed, "position": position} for seed in range(9) for position in range(9)]
    together = sample.rows(np.repeat(logits, len(fields), axis=0), step_of(fields)).token_ids.tolist()
    alone = [sample(logits[0], own) for own in fields]
    assert together == alone
    assert len(set(alone)) > 40


def test_random_bits_are_those_of_philox():
    """Source: the first known answer of Random123, `philox4x32 10` with a counter and a key of zeros."""
    assert random_bits(0, 0) == 0x6627E8D5 | 0xE169C58D << 32


def test_masses_are_exponentials():
    exponents = np.linspace(-25, 0, 20_001).astype(np.float32)
    expected = np.exp(exponents.astype(np.float64)) * 2**MASS_BITS
    np.testing.assert_allclose(masses(exponents).astype(np.float64), expected, rtol=3e-7, atol=1)
    assert masses(np.array([0, -40, -INF], np.float32)).tolist() == [1 << MASS_BITS, 0, 0]


def test_sampling_rows_start_with_everything_off():
    (row,) = stack_sampling([{"seed": 2**64 - 1}])
    assert {name: row[name].item() for name in SAMPLING_DTYPE.names} == {
        "seed": 2**64 - 1,
        "position": 0,
        "temperature": 0,
        "top_p": 1,
        "min_p": 0,
        "typical_p": 1,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_k": 0,
        "num_top": -1,
        "target": -1,
    }


def test_an_empty_step_gives_empty_answers():
    empty = dataclasses.replace(step_of([{}]), sampling=stack_sampling([]), rows=np.zeros(0, np.int32))
    assert sample_rows(np.zeros((0, 5), np.float32), empty).top_ids.shape == (0, 0)
