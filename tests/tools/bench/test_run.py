"""The load tool against a real socket."""

import asyncio
import json
import time

import pytest
from rich.console import Console

from headrace.core.errors import SettingsError, Unavailable, UserError
from headrace.tools.bench.http1 import ConnectionFailed, Exchange, HttpClient, Truncated
from headrace.tools.bench.measure import Failure
from headrace.tools.bench.report import Report, print_report
from headrace.tools.bench.run import BenchOptions, run_benchmark, server_cpu_s
from headrace.tools.bench.workload import Arrivals, Synthetic, parse_lengths
from tests.tools.bench.scripted_server import Connection, openai_completion, openai_models, serving
from tests.waiting import WAIT_S

ROUTES = {"/v1/models": openai_models, "/v1/completions": openai_completion}


def options(url: str, **values) -> BenchOptions:
    source = Synthetic(prompt_tokens=parse_lengths("40"), output_tokens=parse_lengths("5"))
    defaults = {"url": url, "levels": (Arrivals(kind="closed", concurrency=3),), "source": source, "num_requests": 12}
    return BenchOptions(**{**defaults, **values})


async def bench(url: str, **values) -> Report:
    return await run_benchmark(options(url, **values), lambda label, record: None)


async def test_a_closed_loop_sends_all_requests_over_as_many_connections_as_users() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url)
    (level,) = report.levels
    assert level.summary.num_succeeded == 12
    assert level.summary.output_tokens == 60
    assert level.summary.tokens_counted_by == "server usage"
    assert server.num_connections == 3


async def test_prompts_have_the_requested_length_in_tokens_of_the_server() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url)
    assert report.levels[0].summary.prompt_tokens == pytest.approx(12 * 40, abs=12)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    running = 0
    most = 0

    async def slow(connection: Connection, question: dict) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if question["max_tokens"] == 5:
            while most < 6:
                await asyncio.sleep(0.001)
        await openai_completion(connection, question)
        running -= 1

    async with serving({**ROUTES, "/v1/completions": slow}) as server:
        report = await bench(
            server.url, levels=(Arrivals(kind="poisson", rate_per_s=400),), num_requests=6, warmup_requests=0
        )
    assert most == 6
    assert report.levels[0].label == "400/s poisson"
    assert report.levels[0].summary.num_succeeded == 6


async def test_each_level_of_a_sweep_is_reported() -> None:
    async with serving(ROUTES) as server:
        levels = tuple(Arrivals(kind="closed", concurrency=n) for n in (1, 2))
        report = await bench(server.url, levels=levels, num_requests=4)
    assert [level.label for level in report.levels] == ["C=1", "C=2"]


async def test_a_run_by_time_ends() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url, num_requests=None, duration_s=0.1)
    assert report.levels[0].summary.num_succeeded > 0


async def busy(connection: Connection, _: dict) -> None:
    connection.json({"error": {"message": "The queue is full."}}, "429 Too Many Requests")


async def breaks_off(connection: Connection, _: dict) -> None:
    connection.start_stream()
    connection.piece('data: {"choices": [{"text": "a"}]}\n\n')
    connection.writer.close()


async def breaks_in_words(connection: Connection, _: dict) -> None:
    connection.start_stream()
    connection.piece('data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "step failed"}}\n\n')
    connection.end_stream()


async def ends_early(connection: Connection, _: dict) -> None:
    connection.start_stream()
    connection.piece('data: {"choices": [{"text": "a"}]}\n\n')
    connection.end_stream()


async def talks_nonsense(connection: Connection, _: dict) -> None:
    connection.start_stream()
    connection.piece("<p>hello</p>\n")
    connection.end_stream()


async def never_answers(connection: Connection, _: dict) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (busy, Failure.BUSY),
        (breaks_off, Failure.TRUNCATED),
        (breaks_in_words, Failure.STREAM_ERROR),
        (ends_early, Failure.TRUNCATED),
        (talks_nonsense, Failure.UNREADABLE),
        (never_answers, Failure.TIMEOUT),
    ],
)
async def test_a_failure_is_named_by_its_kind_and_does_not_stop_the_run(answer, failure: Failure) -> None:
    async def sometimes(connection: Connection, question: dict) -> None:
        failing = question["max_tokens"] == 5 and len(server.requests) % 2
        await (answer if failing else openai_completion)(connection, question)

    async with serving({**ROUTES, "/v1/completions": sometimes}) as server:
        report = await bench(server.url, timeout_s=0.5 if failure is Failure.TIMEOUT else WAIT_S, warmup_requests=0)
    summary = report.levels[0].summary
    assert list(summary.failures) == [str(failure)]
    assert summary.num_succeeded + summary.failures[str(failure)] == 12


async def test_an_unreachable_server_is_one_clear_error() -> None:
    with pytest.raises(Unavailable, match="No server answers"):
        await bench("http://127.0.0.1:9")


async def test_a_server_that_refuses_every_request_stops_the_run_with_its_message() -> None:
    async with serving({**ROUTES, "/v1/completions": busy}) as server:
        with pytest.raises(UserError, match="The queue is full"):
            await bench(server.url)


async def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    async with serving(ROUTES) as server:
        with pytest.raises(SettingsError, match="tiny"):
            await bench(server.url, model="huge")


@pytest.mark.parametrize("url", ["", "http://", "ftp://host", "http://host:port", "http://host:99999"])
async def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected the address of a server"):
        await bench(url)


async def test_the_key_is_sent_and_never_reported() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url, api_key="s3cret")
    assert all(headers["authorization"] == "bearer s3cret" for headers in server.headers)
    assert "s3cret" not in json.dumps(report.as_json())


async def test_the_cpu_time_of_a_server_elsewhere_is_read_from_its_metrics() -> None:
    async def metrics(connection: Connection, _: dict) -> None:
        body = "# TYPE x counter\nprocess_cpu_seconds_total 10.5\n"
        connection.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}")

    async with serving({"/metrics": metrics}) as server:
        http = HttpClient(server.url.replace("127.0.0.1", "127.0.0.2"))
        assert not http.is_loopback
        assert await server_cpu_s(http) == 10.5
        await http.close()


async def test_a_server_elsewhere_without_metrics_has_no_cpu_time() -> None:
    async with serving({}) as server:
        http = HttpClient(server.url.replace("127.0.0.1", "127.0.0.2"))
        assert await server_cpu_s(http) is None
        await http.close()


async def test_the_cpu_time_of_a_server_here_is_that_of_its_process() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url)
    (level,) = report.levels
    assert level.server_cpu_s is not None
    assert level.server_cpu_s_per_1k_tokens == pytest.approx(1000 * level.server_cpu_s / 60)


async def test_levels_of_a_sweep_share_no_prompts() -> None:
    async with serving(ROUTES) as server:
        levels = tuple(Arrivals(kind="closed", concurrency=n) for n in (1, 2, 4))
        await bench(server.url, levels=levels, num_requests=4, warmup_requests=0)
    prompts = [question["prompt"] for path, question in server.requests if path == "/v1/completions"]
    assert len(prompts) == len(set(prompts))


async def test_the_report_is_one_json_object_and_a_table_that_names_every_level() -> None:
    async with serving(ROUTES) as server:
        report = await bench(server.url, price_per_hour=1.0)
    value = json.loads(json.dumps(report.as_json()))
    assert value["settings"]["seed"] == 0
    assert value["levels"][0]["cost"]["per_1k_output_tokens"] > 0
    assert value["environment"]["cpu"]
    console = Console(record=True, width=120, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        print_report(report, console)
    assert "C=3" in captured.get()
    assert "12 of 12" in captured.get()


async def fetch(url: str, path: str = "/") -> Exchange:
    http = HttpClient(url)
    try:
        return await http.fetch("GET", path)
    finally:
        await http.close()


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def answer(connection: Connection, _: dict) -> None:
        connection.write("HTTP/1.1 200 OK\r\n\r\nhello")
        connection.writer.close()

    async with serving({"/": answer}) as server:
        exchange = await fetch(server.url)
    assert exchange.content() == b"hello"


async def test_a_body_shorter_than_its_length_is_truncated() -> None:
    async def answer(connection: Connection, _: dict) -> None:
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")
        connection.writer.close()

    async with serving({"/": answer}) as server:
        with pytest.raises(Truncated, match=r"^the connection closed in the middle of the response \(end of file\)$"):
            await fetch(server.url)


async def test_a_connection_that_closes_before_an_answer_is_a_failure() -> None:
    async def answer(connection: Connection, _: dict) -> None:
        connection.writer.close()

    async with serving({"/": answer}) as server:
        with pytest.raises(ConnectionFailed, match=r"^the connection closed before a response \(end of file\)$"):
            await fetch(server.url)


async def test_each_part_of_a_body_has_the_time_at_which_it_came_also_the_one_that_comes_with_the_head() -> None:
    async def answer(connection: Connection, _: dict) -> None:
        connection.start_stream()
        connection.piece("a")
        await asyncio.sleep(0.02)
        connection.piece("b")
        connection.end_stream()

    async with serving({"/": answer}) as server:
        before_s = time.perf_counter()
        first, second = (await fetch(server.url)).pieces
    assert (first.data, second.data) == (b"a", b"b")
    assert before_s < first.at_s < second.at_s - 0.01 < time.perf_counter()


async def test_the_path_of_a_url_comes_before_the_route() -> None:
    async def answer(connection: Connection, _: dict) -> None:
        connection.json({})

    async with serving({"/endpoints/a/v1/models": answer}) as server:
        exchange = await fetch(f"{server.url}/endpoints/a/", "/v1/models")
    assert exchange.status == 200
