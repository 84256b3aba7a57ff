"""The parts of the gateway's benchmark that decide."""

import json

import pytest
from benchmarks.gateway.figures import Answer, Round, summary, table
from benchmarks.gateway.run import request_body


def made(*, direct_s: float, through_s: float, ttfts: tuple[float, float], streams: int = 1) -> Round:
    direct, through = (Answer(ttft_s=ttft_s, total_s=1, num_pieces=100) for ttft_s in ttfts)
    return Round(
        api="openai",
        streams=streams,
        direct=(direct,),
        direct_s=direct_s,
        through=(through,),
        through_s=through_s,
        gateway_cpu_s=0.01,
    )


def test_added_latency_and_lost_throughput_are_medians():
    rounds = [
        made(direct_s=9, through_s=10, ttfts=(0.010, 0.011)),
        made(direct_s=98, through_s=100, ttfts=(0.020, 0.022)),
        made(direct_s=100, through_s=100, ttfts=(0.030, 0.033)),
    ]
    (row,) = summary(rounds)
    assert row["added_ttft_ms"] == pytest.approx(2)
    assert row["throughput_loss"] == pytest.approx(0.02)
    assert row["gateway_cpu_us_a_piece"] == pytest.approx(100)
    assert "| openai | 1 | 2.00 ms | 2.0% | 100 us |" in table([row])


def test_apis_and_numbers_of_streams_have_separate_rows():
    fast = made(direct_s=1, through_s=1, ttfts=(1, 1))
    rows = summary([fast, made(direct_s=1, through_s=2, ttfts=(1, 1), streams=8)])
    assert [(row["streams"], row["throughput_loss"]) for row in rows] == [(1, 0), (8, 0.5)]


@pytest.mark.parametrize("api", ["sagemaker", "openai"])
def test_no_two_requests_have_the_same_prompt_and_all_stream(api):
    bodies = {request_body(api, number, 10) for number in range(50)}
    assert len(bodies) == 50
    assert all(json.loads(body)["stream"] for body in bodies)
