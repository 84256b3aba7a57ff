"""
A lean HTTP/1.1 client for streams: asyncio transports and httptools, one timestamp for each read from the socket.

The load tool shares the machine with the server that it measures. Reading a stream of small events costs 11-12 us of
CPU per event this way (on uvloop; 23-28 on asyncio's own loop) and 45-64 with httpx (32 streams of 200 events). The
time of arrival is taken when the bytes are read, before other callbacks run.
No redirects, no proxies, no compression, no cookies.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from headrace.core.errors import SettingsError
from headrace.serving.http.tls import client_context


class ConnectionFailed(Exception):
    """The connection was refused, or it broke before the response began."""


class CertificateRefused(ConnectionFailed):
    """The certificate of the server is not accepted; the message says why and what to set."""


class Truncated(Exception):
    """The connection closed before the end of the body."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Body bytes and the time (`time.perf_counter`) at which they were read from the socket."""

    at_s: float
    data: bytes


class Exchange:
    """A request on a connection, and the part of its response received so far."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[Piece] = []
        self.is_complete = False
        self._error: Exception | None = None
        self._changed: asyncio.Future[None] | None = None

    async def finished(self) -> None:
        """Wait for the end of the body. Raises `ConnectionFailed` or `Truncated`."""
        while not self.is_complete:
            await self._change()

    async def answered(self) -> None:
        """Wait for the status and headers. Raises `ConnectionFailed`."""
        while not self.status:
            await self._change()

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises `Truncated` where it breaks off."""
        position = 0
        while True:
            while position < len(self.pieces):
                yield self.pieces[position].data
                position += 1
            if self.is_complete:
                return
            await self._change()

    def content(self) -> bytes:
        """Return the part of the body received so far."""
        return b"".join(piece.data for piece in self.pieces)

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def changed(self, error: Exception | None = None) -> None:
        """Wake the waiting task; called by the connection."""
        self._error = error or self._error
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class Connection(asyncio.Protocol):
    """A keep-alive connection; it carries one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.is_usable = True
        self.lost = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._read_at_s = 0.0
        self._has_length = False

    def send(self, request: bytes) -> Exchange:
        """Write one request."""
        assert self.transport is not None
        assert self.exchange is None
        self._parser = httptools.HttpResponseParser(self)
        self._has_length = False
        self.exchange = Exchange()
        self.transport.write(request)
        return self.exchange

    def close(self) -> None:
        """Close at once; the server then aborts a response that is still streaming."""
        self.is_usable = False
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by the event loop."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_` methods; called by the event loop."""
        self._read_at_s = time.perf_counter()
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            exchange.changed(Truncated(f"the response is not HTTP: {error}"))
            self.close()
        exchange.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete or fail the exchange in flight; called by the event loop."""
        self.is_usable = False
        self.lost.set()
        if self.exchange is None:
            return
        if not self.exchange.status:
            self.exchange.changed(ConnectionFailed(f"the connection closed before a response ({exc or 'end of file'})"))
        elif self._has_length:
            self.exchange.changed(
                Truncated(f"the connection closed in the middle of the response ({exc or 'end of file'})")
            )
        else:  # a body without a length ends when the connection closes
            self.on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header; called by the parser."""
        assert self.exchange is not None
        key = name.decode("latin-1").lower()
        self.exchange.headers[key] = value.decode("latin-1")
        self._has_length |= key in {"content-length", "transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Record the status; called by the parser."""
        assert self.exchange is not None
        self.exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body; called by the parser."""
        assert self.exchange is not None
        self.exchange.pieces.append(Piece(self._read_at_s, body))

    def on_message_complete(self) -> None:
        """Complete the exchange; called by the parser, and when a connection without a length closes."""
        if self.exchange is None or self.exchange.status == 100:
            return
        self.exchange.is_complete = True
        self.exchange.changed()
        self.exchange = None
        self.is_usable = self.is_usable and self._parser.should_keep_alive()


class HttpClient:
    """A client of one server, with a pool of keep-alive connections that grows with the requests in flight."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        ca_bundle: str | None = None,
    ) -> None:
        """
        Create a client without connecting.

        Args:
            url: the address of the server.
            headers: headers of every request.
            timeout_s: the longest that `fetch` waits.
            ca_bundle: file or folder of certificates to trust besides the system's.

        Raises:
            SettingsError: the address is not a URL, or the certificates cannot be read.
        """
        self._url = _split(url)
        self._timeout_s = timeout_s
        self._ssl = client_context(ca_bundle) if self._url.scheme == "https" else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        common = {"host": self._url.netloc.rpartition("@")[2], "user-agent": "headrace-bench", **(headers or {})}
        self._common = "".join(f"{name}: {value}\r\n" for name, value in common.items())

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._url.port or (443 if self._ssl else 80)

    @property
    def is_loopback(self) -> bool:
        """True if the address of the server is certainly this machine."""
        return self._url.hostname in {"127.0.0.1", "::1", "localhost"}

    async def open(
        self, method: str, path: str, body: bytes = b"", *, accept: str = "*/*"
    ) -> tuple[Exchange, Connection]:
        """
        Send a request and return without waiting for the response. Return the connection with `release`.

        Raises:
            ConnectionFailed: nothing listens at the address.
        """
        connection = await self._connection()
        request = (
            f"{method} {self._url.path.rstrip('/')}{path} HTTP/1.1\r\n{self._common}accept: {accept}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return connection.send(request.encode("latin-1") + body), connection

    async def fetch(self, method: str, path: str, body: bytes = b"", *, accept: str = "*/*") -> Exchange:
        """
        Send a request and wait for the end of its response.

        Raises:
            ConnectionFailed: nothing listens at the address, or the connection broke before the response.
            Truncated: the connection broke during the response.
            TimeoutError: the response was not complete after `timeout_s`.
        """
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange, connection = await self.open(method, path, body, accept=accept)
                await exchange.finished()
        finally:
            if connection is not None:
                self.release(connection)
        return exchange

    def release(self, connection: Connection) -> None:
        """Return the connection to the pool if its exchange has ended, else close it."""
        if connection.is_usable and connection.exchange is None:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """Close all connections and wait until they are closed."""
        for connection in self._open:
            connection.close()
        for connection in list(self._open):
            await connection.lost.wait()
        self._open.clear()
        self._idle.clear()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        host = self._url.hostname or ""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, host, self.port, ssl=self._ssl)
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(
                f"The certificate of {host}:{self.port} is not accepted: {error.verify_message}. Use a name that it "
                "was issued for, and set SSL_CERT_FILE to the file of its root certificate if it has a root of its own."
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"no connection to {host}:{self.port} ({error.strerror or error})") from error
        self._open = {known for known in self._open if not known.lost.is_set()} | {connection}
        return connection


def _split(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise SettingsError(f"The URL is '{url}'; expected the address of a server, such as http://127.0.0.1:8080.")
    return parts
