"""
The lifecycle of a model server: bind, listen, load, serve, shut down.

It listens before it loads, so that a port in use is reported at once and `/ping` answers 503 in the meantime. The first
SIGTERM or SIGINT shuts it down gracefully, a second one at once. After SIGTERM it keeps serving for `shutdown_delay_s`
with `/ping` at 503; then the listener closes. Requests in flight may finish within `shutdown_grace_s` of the signal.

Exit codes: 0 stopped by a signal, 1 failed, 2 an error that the caller can fix, 128 + n killed by a second signal n.
"""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import uvloop

from headrace.core.allocator import limit_arenas, return_memory
from headrace.core.client_text import printable
from headrace.core.errors import HeadraceError, UserError
from headrace.core.processes import protect_memory
from headrace.core.telemetry import get_logger
from headrace.core.threads import take_short_turns
from headrace.serving.http.asgi import ASGIApp
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, server_context, url_of
from headrace.serving.server.base_service import BaseService
from headrace.serving.settings.shutdown import resolve_shutdown_delay

T = TypeVar("T")

_FLUSH_S = 2.0
"""Seconds for the last bytes of the last request to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideApp:
    """An application on an address of its own, which is served while the server lives."""

    name: str
    """Its name in the log."""
    setting: str
    """The setting of its address, for errors."""
    host: str
    port: int
    app: ASGIApp


class ModelServer(ABC):
    """The part of a server that differs between an engine and a model's own code."""

    side_apps: Sequence[SideApp] = ()

    def __init__(self, service: BaseService, app: ASGIApp) -> None:
        """Serve an application, which answers that it is loading until `start` has returned."""
        self.service = service
        self.app = app

    @abstractmethod
    async def start(self) -> None:
        """Load the model and begin to serve it; cancelled when a signal comes first."""

    @abstractmethod
    def report_ready(self, url: str, start_ms: int, side_urls: Mapping[str, str]) -> None:
        """Report that the model is served; `side_urls` are those of the side applications by their names."""

    @abstractmethod
    async def finish(self, deadline_s: float) -> None:
        """Let requests in flight finish until the deadline, and release the model; also after a failed start."""

    async def flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.service.limiter.wait_idle(), _FLUSH_S)


def serve(served: ModelServer, listener: socket.socket | None = None) -> int:
    """
    Serve until a signal stops the server; return the exit code. The error of a failure is on stderr.

    `listener`: None for one at the address of the settings.
    """
    settings = served.service.settings
    protect_memory()
    limit_arenas()
    take_short_turns()
    try:
        tls = server_context(settings.tls_cert, settings.tls_key)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(listener or bind(settings.host, settings.port))
            side_listeners = [
                stack.enter_context(bind(side.host, side.port, setting=side.setting)) for side in served.side_apps
            ]
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            return runner.run(_Lifecycle(served, listener, side_listeners, tls).run())
    except HeadraceError as error:
        print(f"Error: {printable(error.message)}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 1


class _Lifecycle:
    def __init__(
        self,
        served: ModelServer,
        listener: socket.socket,
        side_listeners: Sequence[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._served = served
        self._settings = served.service.settings
        self._listeners = [listener, *side_listeners]
        self._url, *side_urls = (url_of(socket, is_tls=tls is not None) for socket in self._listeners)
        self._side_urls = {side.name: url for side, url in zip(served.side_apps, side_urls, strict=True)}
        self._stop = asyncio.Event()
        self._delay_s = 0.0
        self._stopped_s: float | None = None
        """Time of the signal, by the monotonic clock."""
        self._started_s = perf_counter()
        limits = http_limits(self._settings)
        apps = [served.app, *(side.app for side in served.side_apps)]
        self._servers = [http_server(app, limits=limits, tls=tls) for app in apps]

    async def run(self) -> int:
        """Listen, load and serve until a signal; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(self._servers, self._listeners, strict=True)
        ]
        get_logger().info("server.listening", url=self._url, model=self._settings.model, **self._side_urls)
        trimming = asyncio.create_task(return_memory(), name="free memory")
        try:
            if await self._start():
                await self._stop.wait()
                if self._delay_s:  # load balancers learn from `/ping` that this server shuts down
                    self._served.service.terminate()
                    await asyncio.sleep(self._delay_s)
        finally:
            trimming.cancel()
            self._served.service.close()
            for server in self._servers:
                server.stop()
            spent_s = 0.0 if self._stopped_s is None else perf_counter() - self._stopped_s
            await self._served.finish(max(0.0, self._settings.shutdown_grace_s - spent_s))
            # The last bytes may still be on their way; connections that do not close after that are dropped.
            _, open_ones = await asyncio.wait(serving, timeout=_FLUSH_S)
            for server in self._servers if open_ones else ():
                server.force_exit = True
            await asyncio.gather(*serving)
        return 0

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            get_logger().warning("server.killed", signal=signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(128 + number)
        settings = self._settings
        if number == signal.SIGTERM:
            self._delay_s = resolve_shutdown_delay(
                settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s, host=settings.host
            )
        self._stopped_s = perf_counter()
        get_logger().info(
            "server.stopping",
            signal=signal.Signals(number).name,
            in_flight=self._served.service.limiter.in_flight,
            delay_s=self._delay_s,
            grace_s=settings.shutdown_grace_s,
        )
        self._stop.set()

    async def _start(self) -> bool:
        """Load the model; return False if a signal came first."""
        loading = asyncio.create_task(self._served.start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            return False
        loading.result()
        start_ms = round((perf_counter() - self._started_s) * 1e3)
        self._served.report_ready(self._url, start_ms, self._side_urls)
        return True


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that does not keep the process alive: a download cannot be interrupted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(set_outcome: Callable[..., None], outcome: object) -> None:
        if not done.cancelled():
            set_outcome(outcome)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 -- raised again in the event loop
            loop.call_soon_threadsafe(resolve, done.set_exception, error)
        else:
            loop.call_soon_threadsafe(resolve, done.set_result, result)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await done
