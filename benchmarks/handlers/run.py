"""Measure what the boundary between server and child costs: the time of a small echo, and memory of a large one."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from benchmarks.harness.proc import ProcessUse, read_process
from benchmarks.harness.results import make_parser, table
from starlette.routing import Route

from headrace.core.telemetry import setup_logging
from headrace.serving.handlers.exchange import HandlerRequest, request_part
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind
from headrace.serving.server.handlers.app import handler_app
from headrace.serving.server.handlers.service import HandlerService
from headrace.serving.settings.loading import load_settings
from headrace_handler.contract import Load

ECHO = """
def model_fn(model_dir):
    return None

def transform_fn(model, data, content_type, accept):
    return bytes(data), accept
"""
MEBIBYTE = 1 << 20


class InProcessEcho:
    """The same server without a child: the base of the comparison."""

    def __init__(self, service: HandlerService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.admit(scope, receive) as body:
            await Exchange(scope, receive, send).respond(200, (), body)


@asynccontextmanager
async def echo_server(folder: Path) -> AsyncIterator[tuple[int, HandlerPool]]:
    """Serve the echo in a child at /invocations, and without one at /echo; yield the port and the pool."""
    (folder / "code").mkdir()
    (folder / "code/inference.py").write_text(ECHO)
    load = Load(model_name="echo", model_dir=folder, entry="inference.py", options={"framework": ""})
    pool = HandlerPool(HandlerSpec(contract="sagemaker", load=load, environment={"PATH": "/usr/bin:/bin"}))
    await pool.start()
    settings, _ = load_settings({"model": "echo", "max_body_bytes": str(1 << 30), "max_buffered_bytes": "4G"}, {})
    service = HandlerService(settings, pool.spec, pool)
    app = handler_app(service, [Route("/echo", InProcessEcho(service), methods=["POST"])])
    server = http_server(app, limits=http_limits(settings))
    with bind("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1], pool
        finally:
            server.stop(grace_s=1)
            await serving
            await pool.close(deadline_s=0)


async def seconds(call: Callable[[], Awaitable[object]], number: int) -> list[float]:
    """Return the sorted durations of calls, one after the other, after a tenth as many for warm-up."""
    times: list[float] = []
    for index in range(number + number // 10):
        started_s = time.perf_counter()
        await call()
        if index >= number // 10:
            times.append(time.perf_counter() - started_s)
    return sorted(times)


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> int:
    """Send a request on a connection and return the length of the response's body."""
    kind = "application/octet-stream"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\naccept: {kind}\r\n\r\n".encode())
    writer.write(body)
    await writer.drain()
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert headers.startswith(b"http/1.1 200"), headers
    length = int(headers.partition(b"content-length:")[2].split(b"\r\n")[0])
    for remaining in range(length, 0, -MEBIBYTE):
        await reader.readexactly(min(MEBIBYTE, remaining))
    return length


async def echo_in_pool(pool: HandlerPool, body: bytes) -> None:
    """Send a body to the child, without HTTP."""
    parts = [await request_part(body, content_type="application/octet-stream")]
    response = pool.submit(HandlerRequest(request_id="r", parts=parts))
    await response.head()
    response.close()


def use_of(pid: int) -> ProcessUse:
    """Return what a running process takes."""
    use = read_process(pid)
    assert use is not None
    return use


def row(name: str, times: list[float]) -> tuple[str, str, str]:
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return name, f"{p50 * 1e3:.3f}", f"{p99 * 1e3:.3f}"


async def measure(number: int, large_mib: int) -> str:
    """Return the report: times of a 1 KB echo, then time and memory of a large one."""
    with tempfile.TemporaryDirectory() as folder:
        async with echo_server(Path(folder)) as (port, pool):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            small = b"x" * 1024
            without = await seconds(lambda: post(reader, writer, "/echo", small), number)
            with_child = await seconds(lambda: post(reader, writer, "/invocations", small), number)
            alone = await seconds(lambda: echo_in_pool(pool, small), number)
            added = [after - before for before, after in zip(without, with_child, strict=True)]
            rows = [
                row("HTTP, in the server", without),
                row("HTTP, in a child", with_child),
                row("added (difference of quantiles)", added),
                row("child without HTTP", alone),
            ]
            writer.close()
            return f"{table(('1 KB echo', 'p50 ms', 'p99 ms'), rows)}\n\n{await measure_large(pool, large_mib)}"


async def measure_large(pool: HandlerPool, large_mib: int) -> str:
    """Return the table about one large body through the child, without HTTP."""
    assert pool.workers[0].child is not None
    body, pids = b"x" * (large_mib * MEBIBYTE), (os.getpid(), pool.workers[0].child.pid)
    before = [use_of(pid).rss_bytes for pid in pids]
    times = await seconds(lambda: echo_in_pool(pool, body), 10)
    peaks = [use_of(pid).peak_rss_bytes for pid in pids]
    server, child = ((peak - start) / len(body) for peak, start in zip(peaks, before, strict=True))
    rows = (
        ("seconds, median of 10", f"{times[5]:.3f}"),
        ("peak memory above the body in the server, bodies", f"{server:.2f}"),
        ("peak memory in the child, bodies", f"{child:.2f}"),
    )
    return table((f"{large_mib} MiB echo, without HTTP", ""), rows)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="requests of each kind")
    parser.add_argument("--large-mib", type=int, default=100, help="size of the large body")
    options = parser.parse_args()
    setup_logging(format="console", level="warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(measure(options.requests, options.large_mib)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
