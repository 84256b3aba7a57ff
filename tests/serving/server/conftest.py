"""A real server (uvicorn on a free port, in a thread) around an `EchoBackend`."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from headrace.core.telemetry import setup_logging
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.http.connection_memory import ConnectionMemory
from headrace.serving.http.protocol import StreamingProtocol
from headrace.serving.http.server import http_limits
from headrace.serving.http.tls import bind, url_of
from headrace.serving.server.app import app_of
from headrace.serving.server.service import FetchAdapter, Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.testing.echo import EchoBackend, EchoScript
from tests import plain_http
from tests.prompt_server import PromptServer
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from selenium import webdriver

    from .chat_page import ChatPage

SLOW = EchoScript(delay_s=0.02)


@dataclass
class Echo:
    """A running server and what a test may look into."""

    url: str
    backend: EchoBackend
    service: Service
    client: httpx.Client
    log: io.StringIO
    open_calls: set[int]
    """The calls of the application that have not returned: a client has its answer before the answer is logged."""

    def post(self, path: str, body: object = None, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more)

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Poll until `fact()` is true."""
        deadline_s = time.monotonic() + WAIT_S
        while not fact():
            assert time.monotonic() < deadline_s, f"never happened: {what}\n{self.log.getvalue()}"
            time.sleep(0.005)

    def records(self, num: int) -> list[dict[str, Any]]:
        """The request lines of the log, when there are `num` of them."""

        def lines() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in self.log.getvalue().splitlines()]
            return [line for line in found if line["event"] == "request.finished"]

        self.until(lambda: len(lines()) >= num, f"{num} request lines")
        return lines()


@contextmanager
def serving(
    backend: EchoBackend | None = None,
    *,
    ready: bool = True,
    http: str = "headrace",
    watch_scope: Callable[[Scope], None] = lambda _: None,
    timeout_keep_alive: int = 75,
    fetch_adapter: FetchAdapter | None = None,
    tracer: Tracer = NO_TRACER,
    memory: ConnectionMemory | None = None,
    **settings: Any,
) -> Iterator[Echo]:
    """Serve until the block ends, as `headrace serve` does or by plain uvicorn (`http="httptools"`)."""
    backend = backend or EchoBackend(max_model_len=512)
    log = io.StringIO()
    setup_logging(format="json", level="info", stream=log)
    resolved = ServerSettings(**{"model": "echo", "dialect": "tgi-3", **settings})
    app = app_of(Service(resolved, backend if ready else None, fetch_adapter=fetch_adapter, tracer=tracer))

    open_calls: set[int] = set()

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        watch_scope(scope)
        open_calls.add(id(scope))
        try:
            await app(scope, receive, send)
        finally:
            open_calls.discard(id(scope))

    protocol: Any = (
        partial(StreamingProtocol, limits=http_limits(resolved), memory=memory or ConnectionMemory())
        if http == "headrace"
        else http
    )
    config = uvicorn.Config(
        watched,
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=timeout_keep_alive,
    )
    server = PromptServer(config)
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        with plain_http.Client(base_url=url, timeout=WAIT_S) as client:
            yield Echo(url, backend, app.state.service, client, log, open_calls)
    finally:
        server.stop()
        thread.join(WAIT_S)
        listener.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def shared_echo() -> Iterator[Echo]:
    with serving() as running:
        yield running


@pytest.fixture
def echo(shared_echo: Echo) -> Iterator[Echo]:
    """A server with default settings, as if it were fresh: tests share the process, not what they did to it."""
    shared_echo.backend.script = EchoScript()
    shared_echo.backend.is_healthy = True
    shared_echo.backend.requests.clear()
    shared_echo.backend.aborted.clear()
    shared_echo.log.seek(0)
    shared_echo.log.truncate()
    setup_logging(format="json", level="info", stream=shared_echo.log)
    yield shared_echo
    # The log is the process's: a line that comes later would be in the log of the next test's own server.
    shared_echo.until(lambda: not shared_echo.open_calls, "the requests have ended and are in the log")


@pytest.fixture(scope="package")  # a page that stays open goes on drawing
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    from tests.browser import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(driver: "webdriver.Chrome", echo: Echo) -> "ChatPage":
    from .chat_page import ChatPage

    return ChatPage(driver, echo.url)
