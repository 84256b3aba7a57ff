import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.tools.bench.measure import (
    Failure,
    Objectives,
    RequestRecord,
    parse_objectives,
    percentile,
    spread,
    summarise,
)

GOOD = RequestRecord(
    index=0,
    due_s=1.0,
    sent_s=1.0,
    end_s=2.0,
    text_at_s=(1.5, 1.6, 1.8),
    prompt_tokens=10,
    output_tokens=3,
)
FAILED = replace(GOOD, failure=Failure.BUSY, text_at_s=(), output_tokens=None, prompt_tokens=None, end_s=1.1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_matches_numpy(values: list[float], fraction: float) -> None:
    found = percentile(sorted(values), fraction)
    assert math.isclose(np.quantile(values, fraction), found, rel_tol=1e-9, abs_tol=1e-6)


def test_no_values_have_no_spread() -> None:
    assert spread([]) is None


def test_latencies_are_measured_from_the_moment_a_request_was_due() -> None:
    late = replace(GOOD, due_s=0.25)
    assert late.ttft_s == 1.25
    assert late.e2e_s == 1.75
    assert summarise([late]).send_lag_s.max == 0.75


def test_gaps_between_tokens_are_taken_within_an_answer_and_not_between_answers() -> None:
    summary = summarise([GOOD, replace(GOOD, due_s=50.0, sent_s=50.0, text_at_s=(60.0, 60.1), end_s=61.0)])
    assert summary.itl_s.max == pytest.approx(0.2)


def test_time_per_token_uses_the_tokens_of_the_server_where_a_piece_holds_several() -> None:
    record = replace(GOOD, output_tokens=7)
    assert record.tpot_s == pytest.approx(0.3 / 6)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    assert replace(GOOD, output_tokens=1, text_at_s=(1.5,)).tpot_s is None


def test_an_empty_answer_ends_its_wait_with_its_end() -> None:
    assert replace(GOOD, output_tokens=0, text_at_s=()).ttft_s == 1.0


def test_throughput_counts_whole_answers_over_the_time_from_first_due_to_last_end() -> None:
    summary = summarise([replace(GOOD, due_s=0.0), GOOD, replace(FAILED, end_s=4.0)])
    assert summary.duration_s == 4.0
    assert summary.output_tokens_per_s == pytest.approx(6 / 4)
    assert summary.total_tokens_per_s == pytest.approx(26 / 4)
    assert summary.requests_per_s == pytest.approx(2 / 4)
    assert summary.failures == {"busy": 1}


def test_failed_requests_do_not_improve_latencies() -> None:
    assert summarise([GOOD]).ttft_s == summarise([GOOD, FAILED]).ttft_s


@pytest.mark.parametrize(
    ("counts", "word"),
    [((3, 3), "server usage"), ((None, None), "streamed pieces"), ((3, None), "mixed")],
)
def test_the_summary_says_who_counted_the_tokens(counts: tuple, word: str) -> None:
    assert word == summarise([replace(GOOD, output_tokens=count) for count in counts]).tokens_counted_by


def test_prompt_tokens_are_unknown_if_one_answer_lacks_them() -> None:
    summary = summarise([GOOD, replace(GOOD, prompt_tokens=None)])
    assert summary.prompt_tokens is None
    assert summary.total_tokens_per_s is None


def test_goodput_counts_the_answers_that_kept_every_objective() -> None:
    objectives = parse_objectives("ttft:600,e2e:1200")
    records = [GOOD, replace(GOOD, end_s=3.0), replace(GOOD, text_at_s=(1.7, 1.8, 1.9)), FAILED]
    goodput = summarise(records, objectives=objectives).goodput
    assert goodput.fraction == 0.25
    assert goodput.requests_per_s == pytest.approx(1 / 2)


def test_objectives_are_given_in_milliseconds() -> None:
    assert parse_objectives("ttft:500,tpot:50") == Objectives(ttft_s=0.5, tpot_s=0.05)


@pytest.mark.parametrize("text", ["speed:5", "ttft", "ttft:fast", "ttft:0", "ttft:-3", "e2e:nan"])
def test_an_invalid_objective_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_objectives(text)


def test_cost_is_the_price_of_the_time_over_the_tokens() -> None:
    record = replace(GOOD, due_s=0.0, end_s=36.0, output_tokens=500, prompt_tokens=1500)
    cost = summarise([record], price_per_hour=2.0).cost
    assert cost.per_1k_output_tokens == pytest.approx(0.04)
    assert cost.per_1k_total_tokens == pytest.approx(0.01)


def test_a_run_without_requests_has_an_empty_summary() -> None:
    summary = summarise([])
    assert (summary.num_requests, summary.duration_s, summary.ttft_s) == (0, 0.0, None)


record_strategy = st.builds(
    lambda due, gaps, output, failure: RequestRecord(
        index=0,
        due_s=due,
        sent_s=due,
        end_s=due + sum(gaps) + 0.01,
        text_at_s=tuple(due + sum(gaps[: i + 1]) for i in range(len(gaps))),
        output_tokens=output,
        failure=failure,
    ),
    st.floats(0, 100),
    st.lists(st.floats(0, 5), max_size=8),
    st.none() | st.integers(0, 20),
    st.none() | st.sampled_from(list(Failure)),
)


@given(st.lists(record_strategy, max_size=12))
def test_a_summary_is_consistent_for_any_records(records: list[RequestRecord]) -> None:
    summary = summarise(records)
    assert summary.num_succeeded + sum(summary.failures.values()) == summary.num_requests
    for figures in (summary.ttft_s, summary.itl_s, summary.tpot_s, summary.e2e_s):
        if figures is not None:
            assert 0 <= figures.p50 <= figures.p90 <= figures.p99 <= figures.max
