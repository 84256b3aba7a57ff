import json
import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.tools.bench.workload import (
    Arrivals,
    Dataset,
    Lengths,
    Synthetic,
    WordScale,
    Workload,
    fit_word_scale,
    parse_dataset,
    parse_lengths,
)

FIXED_8 = Lengths(kind="fixed", low=8, high=8)


def synthetic(**values) -> Synthetic:
    return Synthetic(**{"prompt_tokens": FIXED_8, "output_tokens": FIXED_8, **values})


def workload(**values) -> Workload:
    return Workload(**{"arrivals": Arrivals(kind="closed"), "source": synthetic(), "seed": 1, **values})


@given(st.sampled_from(["7", "3-9", "~5"]), st.integers())
def test_a_length_is_drawn_within_its_bounds(text: str, seed: int) -> None:
    lengths = parse_lengths(text)
    drawn = [lengths.draw(random.Random(seed)) for _ in range(20)]
    assert all((1 if lengths.kind == "exponential" else lengths.low) <= length <= lengths.high for length in drawn)


@pytest.mark.parametrize("text", ["7", "3-9", "~5"])
def test_a_length_is_written_as_it_was_read(text: str) -> None:
    assert text == str(parse_lengths(text))


def test_exponential_lengths_have_the_requested_mean() -> None:
    rng = random.Random(0)
    lengths = parse_lengths("~100")
    mean = sum(lengths.draw(rng) for _ in range(20_000)) / 20_000
    assert mean == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("text", ["", "many", "0", "9-3", "-5", "1-2-3", "~0", "1.5"])
def test_an_invalid_length_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"length"):
        parse_lengths(text)


@given(st.integers(), st.sampled_from(["closed", "poisson", "constant"]))
def test_the_same_seed_gives_the_same_load(seed: int, kind: str) -> None:
    load = workload(arrivals=Arrivals(kind=kind, rate_per_s=3.0), seed=seed, num_requests=9)
    assert list(load.requests()) == list(load.requests())


def test_another_seed_gives_another_load() -> None:
    first, second = (list(workload(seed=seed, num_requests=5).requests()) for seed in (1, 2))
    assert [r.question for r in first] != [r.question for r in second]


def test_poisson_arrivals_come_at_the_rate_and_with_the_spread_of_independent_users() -> None:
    times_s = list(islice(Arrivals(kind="poisson", rate_per_s=4.0).times_s(random.Random(3)), 20_001))
    gaps_s = [late - early for early, late in pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)
    assert mean_s == pytest.approx(0.25, rel=0.03)
    assert variance == pytest.approx(0.25**2, rel=0.06)


def test_constant_arrivals_are_evenly_spaced() -> None:
    times_s = list(islice(Arrivals(kind="constant", rate_per_s=4.0).times_s(random.Random(3)), 4))
    assert times_s == [0.0, 0.25, 0.5, 0.75]


def test_an_open_loop_ends_with_its_duration() -> None:
    load = workload(arrivals=Arrivals(kind="constant", rate_per_s=10.0), duration_s=1.0)
    assert len(list(load.requests())) == 10


def test_a_run_of_a_number_of_requests_has_that_number() -> None:
    assert len(list(workload(num_requests=7).requests())) == 7


def test_requests_share_exactly_the_requested_prefix() -> None:
    source = synthetic(prompt_tokens=parse_lengths("50"), shared_prefix_tokens=30)
    texts = [question.text.split() for question, _ in islice(source.questions(seed=5), 4)]
    assert all(text[:30] == texts[0][:30] for text in texts)
    assert len({tuple(text[30:]) for text in texts}) == 4
    assert {len(text) for text in texts} == {50}


def test_prompts_without_a_shared_prefix_begin_differently() -> None:
    texts = [question.text for question, _ in islice(synthetic().questions(seed=5), 10)]
    assert len({text.split()[0] for text in texts}) > 3


@given(st.floats(0.25, 4), st.integers(0, 50), st.integers(60, 4000))
def test_the_scale_found_by_two_probes_gives_prompts_of_the_requested_length(
    per_word: float, fixed: int, tokens: int
) -> None:
    scale = fit_word_scale((32, round(fixed + 32 * per_word)), (96, round(fixed + 96 * per_word)))
    found = fixed + per_word * scale.words_for(tokens)
    assert found == pytest.approx(tokens, rel=0.05, abs=per_word + 2)


def test_a_server_that_reports_the_same_count_for_any_prompt_falls_back_to_one_token_a_word() -> None:
    assert WordScale() == fit_word_scale((32, 10), (96, 10))


def test_a_dataset_gives_each_row_once_before_any_comes_again() -> None:
    lines = [json.dumps({"prompt": f"p{i}", "max_tokens": i + 1}) for i in range(6)]
    source = parse_dataset([*lines, "", "\n"], FIXED_8)
    drawn = list(islice(source.questions(seed=2), 12))
    assert {(f"p{i}", i + 1) for i in range(6)} == {(question.text, n) for question, n in drawn[:6]}
    assert {question.text for question, _ in drawn[:6]} == {question.text for question, _ in drawn[6:]}


def test_a_dataset_row_of_messages_keeps_them_and_has_their_text() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    source = parse_dataset([json.dumps({"messages": messages})], FIXED_8)
    assert isinstance(source, Dataset)
    ((question, max_tokens),) = source.rows
    assert question.messages == tuple(messages)
    assert question.text == "Be brief.\nHi"
    assert max_tokens is None


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"text": "x"}',
        '{"prompt": 5}',
        '{"prompt": "x", "max_tokens": 0}',
        '{"messages": [{"role": "user"}]}',
    ],
)
def test_a_bad_dataset_line_is_named_by_its_number(line: str) -> None:
    with pytest.raises(SettingsError, match="Line 2"):
        parse_dataset(['{"prompt": "good"}', line], FIXED_8)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(SettingsError, match="empty"):
        parse_dataset(["\n"], FIXED_8)
