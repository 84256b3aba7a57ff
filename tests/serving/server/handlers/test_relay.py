"""The HTTP server around real children: bodies, streams, clients that leave or are slow, errors and limits."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.routing import BaseRoute, Route

from headrace.core.telemetry import setup_logging
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.http.otlp import tracing
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, url_of
from headrace.serving.server.handlers.app import handler_app
from headrace.serving.server.handlers.relay import HandlerRoute
from headrace.serving.server.handlers.service import CodeService, HandlerService
from headrace.serving.settings.loading import load_settings
from tests import plain_http
from tests.otlp_receiver import http_receiver
from tests.serving.handlers.support import pool_of, spec_for, until
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def serving(service: CodeService, more_routes: Sequence[BaseRoute] = ()) -> AsyncIterator[str]:
    """Serve on a free port; the path below `/do` is what `user_code.py` does."""
    route = HandlerRoute(service, item_path=lambda scope: scope["path"].removeprefix("/do"))
    server = http_server(
        handler_app(service, [Route("/do/{action}", route, methods=["POST"]), *more_routes]),
        limits=http_limits(service.settings),
    )
    with bind("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield url_of(listener)
        finally:
            server.stop(grace_s=1)
            await task


def service_for(pool: HandlerPool, tracer: Tracer = NO_TRACER, **settings: Any) -> HandlerService:
    resolved, _ = load_settings({"model": "model-a", **settings}, {})
    return HandlerService(resolved, pool.spec, pool, tracer=tracer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HandlerPool]:
    async with pool_of(spec_for(tmp_path_factory.mktemp("model"))) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pool: HandlerPool) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(service_for(pool)) as url, plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        yield client


async def test_a_response_of_one_part_has_its_length_and_the_headers_of_the_code(client: httpx.AsyncClient) -> None:
    response = await client.post("/do/echo", content=b"\x00body", headers={"x-request-id": "abc"})
    assert (response.status_code, response.content) == (200, b"\x00body")
    assert response.headers["content-length"] == "5"
    assert response.headers["x-own"] == "é"
    assert response.headers["x-request-id"] == "abc"
    assert "transfer-encoding" not in response.headers


async def test_a_stream_is_chunked_one_chunk_a_part(client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"POST /do/stream HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\nconnection: close\r\n\r\n3")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"transfer-encoding: chunked" in head
    assert body == b"7\r\npart 0\n\r\n7\r\npart 1\n\r\n7\r\npart 2\n\r\n0\r\n\r\n"


async def test_a_large_body_comes_back(client: httpx.AsyncClient) -> None:
    body = os.urandom(6_000_000)
    assert (await client.post("/do/echo", content=body)).content == body


async def test_a_lost_child_is_told_before_the_first_byte_and_breaks_the_stream_after_it(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/do/os_exit")
    assert (response.status_code, response.json()["message"]) == (500, "Worker died.")
    log = io.StringIO()
    setup_logging(format="json", level="info", stream=log)
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/do/begin_and_die")
    assert '"handler.response_broken"' in log.getvalue()
    assert await finished(log) == {"status": 200, "finish": "error", "bytes": 5}
    assert "Traceback" not in log.getvalue(), "it is no bug of the server"
    assert (await client.post("/do/echo", content=b"again")).content == b"again"


async def test_code_gets_the_span_of_its_request_as_the_parent_of_its_own(pool: HandlerPool) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    client_context = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01", "tracestate": "vendor=a"}
    with http_receiver() as receiver:
        with tracing(receiver.url, {}, service="s") as tracer:
            async with (
                serving(service_for(pool, tracer)) as url,
                plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client,
            ):
                headers = (await client.post("/do/headers", headers=client_context)).json()
                await client.post("/do/os_exit", headers=client_context)
        answered, lost = receiver.trace(trace_id, 2)
    assert headers["traceparent"] == f"00-{trace_id}-{answered.span_id}-01"
    assert headers["tracestate"] == "vendor=a"
    assert (answered.name, answered.error) == ("POST /do/{action}", "")
    assert (lost.attributes["http.response.status_code"], lost.error) == (500, "500")


async def finished(log: io.StringIO) -> dict[str, object]:
    """Wait for the line of a request that has ended, and return its facts."""
    await until(lambda: '"request.finished"' in log.getvalue())
    lines = map(json.loads, log.getvalue().splitlines())
    line = next(line for line in lines if line["event"] == "request.finished")
    return {name: line[name] for name in ("status", "finish", "bytes")}


async def test_a_client_that_leaves_cancels_its_call(client: httpx.AsyncClient, pool: HandlerPool) -> None:
    log = io.StringIO()
    setup_logging(format="json", level="info", stream=log)
    await until(lambda: not pool.num_running)  # a call of an earlier test may end late
    asking = asyncio.create_task(client.post("/do/until_cancelled"))
    await until(lambda: pool.num_running)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not pool.num_running)
    assert await finished(log) == {"status": 499, "finish": "disconnected", "bytes": 0}


async def test_a_client_that_does_not_read_stops_the_code(client: httpx.AsyncClient, pool: HandlerPool) -> None:
    sent = pool.spec.load.model_dir / "sent"
    async with client.stream("POST", "/do/endless") as response:
        assert response.status_code == 200
        before = -1
        async with asyncio.timeout(WAIT_S):
            while not sent.exists() or before != int(sent.read_text() or 0):
                before = int(sent.read_text() or 0) if sent.exists() else -1
                await asyncio.sleep(0.3)
    await until(lambda: not pool.num_running)
    assert before * 1000 < 20_000_000


async def test_health_metrics_and_other_paths(client: httpx.AsyncClient, pool: HandlerPool) -> None:
    ping = await client.get("/ping")
    assert (ping.status_code, ping.json()) == (200, {"status": "Healthy"})
    await until(lambda: pool.num_ready == 1)
    metrics = (await client.get("/metrics")).text
    page = (Path(__file__).parents[4] / "docs/metrics.md").read_text()
    names = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE headrace_")]
    assert names
    assert [name for name in names if f"`{name}`" not in page] == [], "made by scripts/docs.py from the same families"
    assert 'headrace_handler_ready_workers{model="model-a"} 1.0' in metrics
    assert (await client.get("/invocations")).status_code == 405
    for path in ("/nowhere", "/v1/chat/completions", "/predictions/model-a"):
        other = await client.get(path)
        assert other.status_code == 404
        expected = f"GET {path} is not served: the model's own code answers POST /invocations."
        assert expected in other.text


async def test_limits_and_the_key_of_the_server_hold(pool: HandlerPool) -> None:
    service = service_for(pool, api_key="K", max_body_bytes="10", max_concurrent_requests="1")
    async with serving(service) as url, plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client:
        assert (await client.post("/do/echo")).status_code == 401
        client.headers["authorization"] = "Bearer K"
        assert (await client.post("/do/echo", content=b"x" * 11)).status_code == 413
        running = asyncio.create_task(client.post("/do/sleep", content=b"0.3"))
        await until(lambda: service.limiter.in_flight == 1)
        assert (await client.post("/do/echo")).status_code == 429
        assert (await running).content == b"slept"
        service.terminate()
        assert (await client.get("/ping")).status_code == 503
        drained = await client.post("/do/echo", content=b"still")
        assert (drained.content, drained.headers["connection"]) == (b"still", "close")
        service.close()
        assert (await client.post("/do/echo")).status_code == 503


async def test_a_server_whose_code_is_being_loaded_says_so(tmp_path: Path) -> None:
    settings, _ = load_settings({"model": "model-a"}, {})
    async with (
        serving(HandlerService(settings, spec_for(tmp_path))) as url,
        plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client,
    ):
        assert (await client.get("/ping")).status_code == 503
        response = await client.post("/invocations", content=b"{}")
        assert (response.status_code, "still loading" in json.dumps(response.json())) == (503, True)
