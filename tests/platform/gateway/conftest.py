"""A gateway behind a real server, in a thread with its own event loop, and workers on the same loop."""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import uvicorn
import uvloop
from botocore.config import Config

from headrace.core.telemetry import setup_logging
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.platform.gateway import objects as objects_module
from headrace.platform.gateway.app import Gateway, Publish
from headrace.platform.gateway.async_queue import AsyncPublisher
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.gateway.key_usage import KeyUsages
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.state.routes import ROUTE, Route, Wake
from headrace.serving.http.tls import bind, url_of
from tests import plain_http
from tests.prompt_server import PLATFORM_HTTP, PromptServer
from tests.service_models import parsed_service_models
from tests.waiting import WAIT_S

from .async_parts import MemoryObjects, open_pending
from .routes import ACCOUNT, REGION, RouteStore, route, variant
from .workers import Script, Worker, echo

__all__ = ["parsed_service_models"]


@dataclass
class Running:
    """A running gateway and what a test may look into."""

    url: str
    gateway: Gateway
    store: RouteStore
    loop: asyncio.AbstractEventLoop
    client: httpx.Client
    boto: Any
    log: io.StringIO
    server: PromptServer
    pending: Any = None
    """The stored asynchronous invocations, if they are accepted."""
    workers: list[Worker] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def worker(self, script: Script = echo) -> Worker:
        """A new worker, in no route yet."""
        worker = Worker(script)
        self.run(worker.start())
        self.workers.append(worker)
        return worker

    def serve(self, script: Script = echo, **more: Any) -> Worker:
        """An endpoint `ep` with one worker."""
        worker = self.worker(script)
        self.put(route(variant("AllTraffic", [worker.url]), **more))
        return worker

    def put(self, *routes: Route) -> None:
        """Write routes, and wait until the gateway has them."""
        self.store.put(*routes)
        self.run(self.gateway._table.settled())

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Poll until `fact()` is true."""
        deadline_s = time.monotonic() + WAIT_S
        while not fact():
            assert time.monotonic() < deadline_s, f"never happened: {what}\n{self.log.getvalue()}"
            time.sleep(0.002)

    def clean_up(self) -> None:
        """Remove all routes and workers, and reset counters and log."""
        for worker in self.workers:
            self.run(worker.stop())
        self.workers.clear()
        for record in self.store.list(ROUTE):
            self.store.drop(record.name)
        self.run(self.gateway._table.settled())
        self.gateway.metrics.refused.clear()
        assert "request.crashed" not in self.log.getvalue(), self.log.getvalue()
        self.log.seek(0)
        self.log.truncate()

    def is_idle(self) -> bool:
        """Return whether nothing is in flight and all counts are zero."""
        return not self.gateway.loads and not self.gateway.metrics.in_flight


@contextmanager
def running(
    *,
    http: Any = PLATFORM_HTTP,
    objects: S3Objects | None = None,
    async_folder: Path | None = None,
    wake: Wake | None = None,
    draw: Any = None,
    publish: Publish | None = None,
    async_publisher: AsyncPublisher | None = None,
    routes: Sequence[Route] = (),
    tracer: Tracer = NO_TRACER,
    usages: KeyUsages | None = None,
    wrap: Callable[[Any], Any] = lambda gateway: gateway,
    **limits: Any,
) -> Iterator[Running]:
    """Serve until the block ends, with `routes` from the start; `wrap` puts an application in front of the gateway."""
    log = io.StringIO()
    setup_logging(format="json", level="info", stream=log)
    store = RouteStore()
    store.put(*routes)
    pending = open_pending(async_folder) if async_folder is not None else None
    more = {} if draw is None else {"draw": draw}
    site = GatewayConfig(account=ACCOUNT, region=REGION, **limits)
    gateway = Gateway(
        store,
        site,
        objects=objects,
        pending=pending,
        wake=wake,
        publish=publish,
        async_publisher=async_publisher,
        tracer=tracer,
        usages=usages,
        **more,
    )
    config = uvicorn.Config(wrap(gateway), http=http, ws="none", lifespan="off", log_config=None, access_log=False)
    server = PromptServer(config)
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    loop = uvloop.new_event_loop()
    loop.run_until_complete(gateway.start())
    invocations = loop.create_task(gateway.run_async())
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(sockets=[listener]),), daemon=True)
    thread.start()
    boto = client_of(url)
    with plain_http.Client(base_url=url, timeout=WAIT_S) as client:
        made = Running(url, gateway, store, loop, client, boto, log, server, pending)
        try:
            yield made
        finally:
            boto.close()
            server.stop()
            thread.join(WAIT_S)
            invocations.cancel()
            loop.run_until_complete(asyncio.gather(invocations, return_exceptions=True))
            loop.run_until_complete(gateway.close())
            for worker in made.workers:
                loop.run_until_complete(worker.stop())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            listener.close()
            if pending is not None:
                pending.blobs.close()
    assert not thread.is_alive()
    assert "request.crashed" not in log.getvalue(), log.getvalue()


def client_of(url: str, **options: Any) -> Any:
    """A real client of the runtime."""
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(read_timeout=WAIT_S, **options),
    )


@pytest.fixture(scope="session")
def shared_gateway() -> Iterator[Running]:
    with running() as made:
        yield made


@pytest.fixture
def gateway(shared_gateway: Running) -> Iterator[Running]:
    """A gateway with default limits, reset for each test: tests share the process, not its state."""
    setup_logging(format="json", level="info", stream=shared_gateway.log)
    yield shared_gateway
    shared_gateway.until(shared_gateway.is_idle, "all requests ended")
    shared_gateway.clean_up()


@contextmanager
def accepting(folder: Path, objects: MemoryObjects, **limits: Any) -> Iterator[Running]:
    with running(objects=objects, async_folder=folder, **limits) as made:
        yield made


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry the object storage at once."""
    monkeypatch.setattr(objects_module, "RETRY_PAUSES_S", (0.01,))
