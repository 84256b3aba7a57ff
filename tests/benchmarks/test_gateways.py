"""The parts of the benchmark of several gateways that decide."""

import asyncio
import json
from typing import Any

import pytest
from benchmarks.gateways import pages
from benchmarks.gateways.figures import Busy, Paced, ceiling_per_s, percentile, summary, table
from benchmarks.gateways.load import connections, request, stream_request
from benchmarks.gateways.worker import Echo, piece_of


def busy(load: str, rate: float, *, setup: str = "1 process", is_pinned: bool = False) -> Busy:
    return Busy(
        setup=setup,
        load=load,
        is_pinned=is_pinned,
        answers=int(rate),
        pieces=int(rate) * 10,
        seconds=1.0,
        gateway_cpu_s=rate * 300e-6,
        worker_cpu_s=rate * 50e-6,
        client_cpu_s=rate * 50e-6,
    )


def paced(direct_s: float, through_s: float, *, is_pinned: bool = False) -> Paced:
    return Paced(setup="1 process", is_pinned=is_pinned, direct=(direct_s,) * 9, through=(through_s,) * 9)


def rows() -> list[dict[str, Any]]:
    cells = [
        busy(load, rate, is_pinned=is_pinned)
        for load in ("requests", "streams")
        for rate in (1000, 2000, 4000)
        for is_pinned in (False, True)
    ]
    latencies = [paced(0.001, through_s, is_pinned=p) for through_s in (0.002, 0.003, 0.009) for p in (False, True)]
    return summary(cells, latencies)


def test_rows_have_the_medians_of_the_rounds() -> None:
    shared, pinned = rows()
    assert (shared["is_pinned"], pinned["is_pinned"]) == (False, True)
    assert shared["requests"]["per_s"] == 2000
    assert shared["requests"]["gateway_cpu_us"] == pytest.approx(300)
    assert shared["streams"]["per_s"] == 20_000, "streams are counted in pieces"
    assert shared["streams"]["gateway_cpu_us"] == pytest.approx(30)
    assert shared["latency"]["added_p50_ms"] == pytest.approx(2)
    assert ceiling_per_s(shared["requests"], 2) == pytest.approx(5000)
    assert "| 1 process | shared by all | 2,000 | 40% | 300 us | 100 us | 2.00 ms | 2.00 ms |" in table(
        [shared], num_cores=2
    )


def test_a_percentile_is_a_measured_value() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_the_page_computes_processes_from_the_cost_of_a_request() -> None:
    result = {"summary": rows(), "num_cores": 2, "note": "a trial"}
    text = "\n".join(pages.gateways(result))
    assert "(A trial.)" in text
    assert "100,000 short requests a second need 50 processes at 60% load" in text
    assert "with 128 streamed pieces each, 640" in text


async def test_the_client_meets_the_ends_of_short_answers_and_of_streams() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with server:
        (connection,) = await connections([server.sockets[0].getsockname()[1]], 1)
        await connection.send(request("/invocations"))
        await connection.send(stream_request("/invocations", 5, 1.0, 3))
        assert connection.num_pieces == 5
        await connection.send(request("/invocations", json.dumps({"inputs": "x" * 100_000}).encode()))
        connection.transport.close()
    assert piece_of("r3", 4) == b"data: r3-4\n\n"
