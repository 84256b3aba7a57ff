"""
An HTTP/1.1 client for Headrace's own servers: a pool of keep-alive connections, and one-off requests.

It is lean because the gateway forwards every token through it: no redirects, no proxies, no compression, no cookies. A
request owns a connection from its first byte to the last of its response; a response that is closed before its end
closes the connection, which aborts the request in the server.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from headrace.core.client_text import reason_of
from headrace.serving.http.client_connection import (
    ClientConnection,
    ClientResponse,
    ConnectFailed,
    NoResponse,
    ResponseHeadBroken,
)
from headrace.serving.http.tls import default_context, has_pin, pinned_context

CONNECT_TIMEOUT_S = 2.5
"""A server in this network accepts in well under a second, or two if a packet is lost. SageMaker asks for 250 ms."""

HANDSHAKE_TIMEOUT_S = 10.0
"""Other than accepting, a handshake of TLS needs the server's process, which may wait for a core."""

SILENCE_S = 5
"""
Seconds without an acknowledgement after which a connection to another machine is broken. A machine that has lost its
power or its network sends no reset, so that a response would be awaited until the timeout of its invocation. A process
that is busy or stopped is not meant: its kernel acknowledges.
"""
_PROBE_S = 1
"""Seconds between the kernel's probes of a silent connection."""

MAX_IDLE_CONNECTIONS = 64
"""Idle connections kept for one server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request to a server; `Host` and `Content-Length` are added."""

    method: str = "POST"
    path: str = "/invocations"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class HttpClient:
    """
    Sends requests to servers by their URL, over connections that it keeps.

    A URL is `http://host:port`, `https://host:port`, or `https://host:port#sha256=HEX` for the server with that
    certificate (`pin_of`), which gets nothing before it has proved to be it.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """
        Create a client.

        `tls` decides whom it trusts at URLs with `https://` and without a certificate: by default the authorities of
        this machine.
        """
        self._tls = tls
        self._pools: dict[str, _Pool] = {}

    async def send(self, url: str, request: ClientRequest) -> ClientResponse:
        """
        Send a request and wait for the head of its response, which the caller closes.

        A kept connection that the server had closed in the meantime is replaced by a new one.

        Raises:
            ConnectFailed: no connection could be made, so nothing was sent.
            NoResponse: the connection broke before the response head.
        """
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = _Pool(url, self._tls)
        fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nHost: {pool.netloc}\r\n{fields}"
            f"Content-Length: {len(request.body)}\r\n\r\n"
        ).encode("latin-1")
        failure: NoResponse | None = None
        while True:
            connection = pool.take() or await pool.connect(failure)
            # The server may have closed a kept connection while the request was on its way, but not a new one.
            is_kept = connection.num_requests > 0
            try:
                response = connection.send(head, request.body, is_head=request.method == "HEAD")
                await response.started()
            except NoResponse as error:
                connection.abort()
                if not is_kept or isinstance(error, ResponseHeadBroken):
                    raise
                failure = error
            except BaseException:
                connection.abort()
                raise
            else:
                return response

    def retain(self, urls: Iterable[str]) -> None:
        """Close idle connections to all servers but these."""
        kept = set(urls)
        for url in [url for url in self._pools if url not in kept]:
            self._pools.pop(url).close_idle()

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()


@asynccontextmanager
async def send_once(url: str, request: ClientRequest) -> AsyncIterator[ClientResponse]:
    """Send a request over a connection of its own, and wait for the head of the response, or raise `NoResponse`."""
    client = HttpClient()
    try:
        yield await client.send(url, replace(request, headers=(*request.headers, ("Connection", "close"))))
    finally:
        await client.close()


def break_when_silent(connection: socket.socket) -> None:
    """Let the kernel break a connection whose peer, on another machine, has acknowledged nothing for `SILENCE_S`."""
    if ipaddress.ip_address(connection.getpeername()[0].partition("%")[0]).is_loopback:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _PROBE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _Pool:
    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self.netloc = parts.netloc
        self._pin = parts.fragment
        self._tls = pinned_context() if self._pin else None
        if parts.scheme == "https" and self._tls is None:
            self._tls = tls or default_context()
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._idle: list[ClientConnection] = []
        self._open: set[ClientConnection] = set()
        self._is_closed = False
        self._all_closed = asyncio.Event()

    def take(self) -> ClientConnection | None:
        """Return the most recently used idle connection, the least likely to be closed; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
        return None

    async def connect(self, earlier: NoResponse | None) -> ClientConnection:
        """Return a new connection; raise `ConnectFailed`, or `earlier` if an attempt had sent the request."""
        try:
            return await self._connected()
        except ConnectFailed:
            if earlier is not None:
                raise earlier from None
            raise

    async def _connected(self) -> ClientConnection:
        if not self._host:
            raise ConnectFailed(f"the URL names no host ({self.netloc!r})")
        loop = asyncio.get_running_loop()
        make = partial(ClientConnection, on_release=self._release, on_lost=self._lost)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await loop.create_connection(make, self._host, self._port)
            break_when_silent(transport.get_extra_info("socket"))
            if self._tls is not None:
                await self._encrypt(transport, connection, self._tls)
        except TimeoutError:
            raise ConnectFailed(f"{self.netloc} does not accept connections") from None
        except OSError as error:
            raise ConnectFailed(f"no connection to {self.netloc} ({reason_of(error)})") from error
        # NOTE: not earlier: uvloop does not report the end of a connection that is cancelled while it is being made.
        if not connection.is_open:
            raise ConnectFailed(f"{self.netloc} closed the connection at once")
        self._open.add(connection)
        return connection

    async def _encrypt(
        self, transport: asyncio.Transport, connection: ClientConnection, context: ssl.SSLContext
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                encrypted = await loop.start_tls(transport, connection, context, server_hostname=self._host)
        except BaseException:
            transport.abort()
            raise
        connection.connection_made(cast("asyncio.Transport", encrypted))
        if self._pin and not has_pin(connection.tls, self._pin):
            connection.abort()
            raise ConnectFailed(f"{self.netloc} has another certificate than the expected server")

    def close_idle(self) -> None:
        """Close idle connections; those in use are closed when they are released."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    async def close(self) -> None:
        self.close_idle()
        for connection in list(self._open):
            connection.abort()
        while self._open:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _release(self, connection: ClientConnection) -> None:
        if connection.is_idle and not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.abort()

    def _lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open:
            self._all_closed.set()
