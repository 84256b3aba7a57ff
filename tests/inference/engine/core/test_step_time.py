"""The step-time model keeps steps short while sequences decode, learns from noise, and never stops progress."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.inference.engine.core.step_time import StepTimeModel, attended_tokens

coefficients = st.tuples(st.floats(1e-4, 2e-2), st.floats(2e-5, 2e-3), st.floats(0, 1 / 300)).map(
    lambda abc: (abc[0], abc[1], abc[1] * abc[2])
)


def teach(model: StepTimeModel, a: float, b: float, c: float, *, noise: float, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        decodes, context = rng.randint(1, 64), rng.randint(1, 2000)
        chunk = rng.choice([0, 0, 16, 64, 200, 500])
        tokens = decodes + chunk
        attended = decodes * context + attended_tokens(context, chunk)
        seconds = (a + b * tokens + c * attended) * (1 + noise * rng.uniform(-1, 1))
        model.observe(tokens=tokens, attended=attended, seconds=seconds)


@settings(max_examples=40, deadline=None)
@given(coefficients, st.integers(1, 64), st.integers(0, 4000), st.integers(0, 1000))
def test_a_step_with_the_chosen_chunk_stays_under_the_limit(
    truth: tuple[float, float, float], decodes: int, context: int, seed: int
) -> None:
    a, b, c = truth
    model = StepTimeModel()
    teach(model, a, b, c, noise=0.05, seed=seed)
    limit_s = 0.1
    attended = decodes * 500
    chunk = model.largest_chunk_tokens(tokens=decodes, attended=attended, context=context, limit_s=limit_s)
    seconds = a + b * (decodes + chunk) + c * (attended + attended_tokens(context, chunk))
    assert chunk == 0 or seconds <= limit_s


@settings(max_examples=20, deadline=None)
@given(coefficients, st.integers(0, 1000))
def test_the_chunk_uses_most_of_the_available_time(truth: tuple[float, float, float], seed: int) -> None:
    a, b, c = truth
    model = StepTimeModel()
    teach(model, a, b, c, noise=0.05, seed=seed)
    limit_s = a + 300 * b + c * 300 * 500
    chunk = model.largest_chunk_tokens(tokens=10, attended=10 * 300, context=200, limit_s=limit_s)
    seconds = a + b * (10 + chunk) + c * (3000 + attended_tokens(200, chunk))
    assert seconds >= 0.6 * limit_s


def test_one_slow_step_changes_little() -> None:
    model = StepTimeModel()
    teach(model, 5e-3, 2e-4, 1e-8, noise=0.02, seed=1)
    before = model.predict_s(tokens=200, attended=50_000)
    for _ in range(3):
        model.observe(tokens=200, attended=50_000, seconds=5.0)
    for _ in range(16):
        model.observe(tokens=16, attended=4000, seconds=5e-3 + 16 * 2e-4 + 4000e-8)
    assert model.predict_s(tokens=200, attended=50_000) == pytest.approx(before, rel=0.3)


@pytest.mark.parametrize(("has_chunk", "least", "most"), [(True, 0, 130), (False, 200, 400)])
def test_chunks_leave_a_margin_when_three_steps_in_ten_are_slow(has_chunk: bool, least: int, most: int) -> None:
    model, rng = StepTimeModel(), random.Random(1)
    a, b, c, limit_s = 5e-3, 2e-4, 1e-8, 0.05
    passed = 0
    for number in range(1000):
        chunk = model.largest_chunk_tokens(tokens=8, attended=4000, context=500, limit_s=limit_s)
        tokens, attended = 8 + chunk, 4000 + attended_tokens(500, chunk)
        seconds = (a + b * tokens + c * attended) * (1.6 if rng.random() < 0.3 else 1.0)
        model.observe(tokens=tokens, attended=attended, seconds=seconds, has_chunk=has_chunk)
        passed += number >= 100 and seconds > limit_s
    assert least <= passed <= most


def test_hours_of_decoding_do_not_displace_samples_of_prompts() -> None:
    model = StepTimeModel()
    teach(model, 5e-3, 2e-4, 0, noise=0.02, seed=2)
    for _ in range(5000):
        model.observe(tokens=8, attended=4000, seconds=5e-3 + 8 * 2e-4)
    assert model.predict_s(tokens=400, attended=40_000) == pytest.approx(5e-3 + 400 * 2e-4, rel=0.15)


def test_prompts_have_a_predicted_cost_before_any_was_measured() -> None:
    model = StepTimeModel()
    for _ in range(100):
        model.observe(tokens=1, attended=100, seconds=0.01)
    assert model.largest_chunk_tokens(tokens=1, attended=100, context=0, limit_s=0.1) <= 64


def test_a_step_grows_by_a_bounded_factor() -> None:
    model = StepTimeModel()
    for tokens in (1, 32, 64):
        for _ in range(5):
            model.observe(tokens=tokens, attended=tokens, seconds=1e-6 * tokens)
    assert model.largest_chunk_tokens(tokens=1, attended=1, context=0, limit_s=10.0) == 4 * 64 - 1


def test_no_chunk_fits_a_limit_that_is_already_exceeded() -> None:
    model = StepTimeModel()
    teach(model, 0.2, 1e-3, 0, noise=0.0, seed=3)
    assert model.largest_chunk_tokens(tokens=4, attended=400, context=0, limit_s=0.1) == 0


def test_nothing_measured_means_a_millisecond_for_a_token_and_four_small_steps() -> None:
    model = StepTimeModel()
    assert model.predict_s(tokens=100, attended=1000) == pytest.approx(0.1)
    assert model.largest_chunk_tokens(tokens=0, attended=0, context=0, limit_s=1000.0) == 4 * 16


def test_the_first_steps_are_fitted_each_and_then_every_sixteenth() -> None:
    model, refits = StepTimeModel(), []
    for number in range(1, 65):
        before = model.coefficients
        model.observe(tokens=8, attended=64, seconds=0.01 * (1 + number / 100))
        if model.coefficients != before:
            refits.append(number)
    assert refits == [*range(1, 25), 32, 48, 64]


def test_a_kind_of_step_counts_with_the_median_of_its_last_seven() -> None:
    model = StepTimeModel()
    for seconds in [0.01] * 7 + [0.03] * 4:
        model.observe(tokens=8, attended=64, seconds=seconds)
    assert model.predict_s(tokens=8, attended=64) == pytest.approx(0.03)


def test_noise_halves_a_chunk_at_most_and_is_forgotten_slowly() -> None:
    model = StepTimeModel()
    for seconds in [0.1, 0.1, 1.0] * 40 + [0.1]:
        model.observe(tokens=100, attended=0, seconds=seconds, has_chunk=True)
    (a, b, c), noise = model.coefficients, 2.0 - 0.1 * (1 - 0.9)
    chunk = model.largest_chunk_tokens(tokens=0, attended=0, context=0, limit_s=0.2)
    assert (a, c) == (0.0, 0.0)
    assert chunk == int(0.9 * 0.2 / noise / b)


@pytest.mark.parametrize("start_s", [0.0, 0.02])
def test_attention_has_a_bounded_cost_and_the_rest_of_the_fit_is_the_best_with_it(start_s: float) -> None:
    """Attending to a token takes 1/50 of computing one here; the bound is 1/256."""
    model = StepTimeModel()
    steps = [(tokens, tokens * context) for tokens in (8, 32, 128, 512) for context in (10, 200, 3000)]
    seconds = {step: start_s + 1e-4 * step[0] + 2e-6 * step[1] for step in steps}
    for tokens, attended in steps:
        model.observe(tokens=tokens, attended=attended, seconds=seconds[tokens, attended])
    a, b, c = model.coefficients
    assert c == pytest.approx(b / 256)

    def error(a: float, b: float) -> float:
        return sum(((a + b * (step[0] + step[1] / 256)) / seconds[step] - 1) ** 2 for step in steps)

    others = [(a, 0.99 * b), (a, 1.01 * b), (a + 1e-4, b), *([(a - 1e-4, b)] if a > 1e-4 else [])]
    assert (a > 0) == (start_s > 0)
    assert all(error(a, b) < error(*other) for other in others)


@pytest.mark.parametrize(("tokens", "seconds"), [(4, 0.0), (4, -1.0), (4, float("nan")), (4, float("inf")), (0, 0.1)])
def test_invalid_times_are_ignored(tokens: int, seconds: float) -> None:
    model = StepTimeModel()
    model.observe(tokens=tokens, attended=4, seconds=seconds)
    assert model.coefficients == StepTimeModel().coefficients


def test_steps_of_one_token_are_learned_and_steps_without_prompts_add_no_noise() -> None:
    model = StepTimeModel()
    for seconds in [0.01, 0.01, 0.1] * 40 + [0.01]:
        model.observe(tokens=1, attended=0, seconds=seconds)
    assert model.predict_s(tokens=1, attended=0) == pytest.approx(0.01)
    b = model.coefficients[1]
    assert model.largest_chunk_tokens(tokens=0, attended=0, context=0, limit_s=40 * b / 0.9 + 1e-9) == 40


def test_noise_never_falls_below_one() -> None:
    model = StepTimeModel()
    for _ in range(100):
        model.observe(tokens=16, attended=0, seconds=0.1, has_chunk=True)
    chunk = model.largest_chunk_tokens(tokens=0, attended=0, context=0, limit_s=0.2)
    assert chunk == int(0.9 * 0.2 / model.coefficients[1])
