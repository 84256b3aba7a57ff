"""Uvicorn as the model server and the platform run it: with our protocol, signal handling and logs."""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import uvicorn

from headrace.core.telemetry import get_logger
from headrace.serving.http.asgi import ASGIApp
from headrace.serving.http.connection_memory import ConnectionMemory
from headrace.serving.http.protocol import HttpLimits, StreamingProtocol
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.server_settings import ServerSettings

_RETRY_S = 1.0
"""Pause after the system had no descriptor or memory for a connection. Source: asyncio's servers."""


class TlsListener:
    """
    A listening socket whose connections get their HTTP protocol after the handshake.

    They are counted and timed from the first byte. The servers of asyncio and uvloop report a connection only after its
    handshake, so that clients that connect and send nothing would be neither counted nor dropped for a minute.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        limits: HttpLimits,
        num_connections: Callable[[], int],
    ) -> None:
        """Start accepting; `num_connections` returns the number of connections whose handshake has ended."""
        self._listener = listener
        self._context = context
        self._make_protocol = make_protocol
        self._limits = limits
        self._num_connections = num_connections
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections, and drop those in their handshake; called by uvicorn."""
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # the client disconnected while it was queued
            except OSError as error:
                get_logger().error("http.not_accepted", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            if self._num_connections() + len(self._handshakes) >= self._limits.max_connections:
                # No response: it would cost a handshake first.
                get_logger().info("http.refused", status=503, reason="The server has too many connections.")
                connection.close()
                continue
            handshake = loop.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        timeout_s = self._limits.handshake_timeout_s
        with suppress(OSError):  # a TLS or connection error, or a timeout
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )


MAX_HANDSHAKE_S = 10.0
"""Seconds for a TLS handshake; a slow one over a mobile network takes two."""
_DATE_S = 1.0
"""The resolution of the header `Date`."""
_OTHER_DESCRIPTORS = 1024
"""Open files and connections to workers, besides the connections of clients."""


class HttpServer(uvicorn.Server):
    """
    A uvicorn server with our own listener for TLS.

    It has no signal handlers: uvicorn would raise the signals again at shutdown.
    """

    def __init__(self, config: uvicorn.Config, *, limits: HttpLimits, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._limits = limits
        self._tls = tls
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        state = self.server_state
        protocol = cast("type[StreamingProtocol]", self.config.http_protocol_class)  # with its limits, see http_server
        make_protocol = partial(protocol, config=self.config, server_state=state, app_state=self.lifespan.state)
        listeners = [
            TlsListener(
                listener, self._tls, make_protocol, limits=self._limits, num_connections=lambda: len(state.connections)
            )
            for listener in sockets or ()
        ]
        self.servers = cast("list[asyncio.Server]", listeners)  # uvicorn only closes them
        self.started = True

    async def main_loop(self) -> None:
        """Wait for `stop`, and renew the date of responses; uvicorn's own loop wakes ten times a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._stopping.wait()

    def stop(self, *, grace_s: float | None = None) -> None:
        """
        Close the listener; abort requests after `grace_s` (rounded, at least 1), or wait until they end.

        Any thread may call it.
        """
        self.config.timeout_graceful_shutdown = None if grace_s is None else max(1, round(grace_s))
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._stopping.set)

    def stop_listening(self) -> None:
        """Close the listener, and nothing else; open connections stay."""
        for server in getattr(self, "servers", ()):  # it has none before its start
            server.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers; called by uvicorn around its run."""
        yield


def http_limits(settings: ServerSettings | PlatformSettings) -> HttpLimits:
    return HttpLimits(
        max_connections=settings.max_connections,
        receive_timeout_s=settings.receive_timeout_s,
        handshake_timeout_s=min(MAX_HANDSHAKE_S, settings.receive_timeout_s),
        send_timeout_s=settings.send_timeout_s,
    )


def http_server(app: ASGIApp, *, limits: HttpLimits, tls: ssl.SSLContext | None = None) -> HttpServer:
    """Return a server for an application; `serve(sockets=[...])` runs it, with TLS if a context is given."""
    # The soft limit on open files is often 1024, and `accept` fails above it.
    num_descriptors = limits.max_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_descriptors:
        most = num_descriptors if hard == resource.RLIM_INFINITY else min(num_descriptors, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(StreamingProtocol, limits=limits, memory=ConnectionMemory())),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
    config.load()
    return HttpServer(config, limits=limits, tls=tls)
