"""
An HTTP/1.1 client for streams, with one timestamp for each part of a body, over the connections of `serving.http`.

The load tool shares the machine with the server that it measures. Reading a stream of small events costs about 8 us of
CPU per event this way (on uvloop) and 45-64 with httpx (32 streams of 200 events). The time of arrival is taken within
the callback that reads the bytes, before others run.
No redirects, no proxies, no compression, no cookies, and no request is sent twice.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from headrace.core.client_text import reason_of
from headrace.core.errors import SettingsError
from headrace.serving.http.client_connection import ClientConnection, ClientResponse
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


class Exchange(ClientResponse):
    """
    A response that keeps all parts of its body, with the times at which they arrived.

    Waiting raises `ConnectionFailed` if the connection breaks before the status, and `Truncated` after it.
    """

    def __init__(self, flow: ClientConnection) -> None:
        super().__init__(flow)
        self.pieces: list[Piece] = []
        self._is_streamed = False

    async def finished(self) -> None:
        """Wait for the end of the body."""
        while not self.is_complete:
            await self._changed()

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives."""
        position, self._is_streamed = 0, True
        while True:
            while position < len(self.pieces):
                yield self.pieces[position].data
                position += 1
            if self.is_complete:
                return
            await self._changed()

    def content(self) -> bytes:
        """Return the part of the body received so far."""
        return b"".join(piece.data for piece in self.pieces)

    def add(self, part: bytes) -> None:
        """Keep a part of the body; called by the connection."""
        self.pieces.append(Piece(time.perf_counter(), part))
        if self._is_streamed:  # else no task waits for parts, and waking one costs more than the part
            self.wake()

    def fail(self, failure: Exception) -> None:
        """End with an error; called by the connection."""
        where = "in the middle of the response" if self.status else "before a response"
        reason = str(failure).replace("the connection closed", f"the connection closed {where}")
        super().fail(Truncated(reason) if self.status else ConnectionFailed(reason))


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
        self._idle: list[ClientConnection] = []
        self._open: dict[ClientConnection, asyncio.Event] = {}
        """The connections that are not closed, with what is set when they are."""
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

    async def open(self, method: str, path: str, body: bytes = b"", *, accept: str = "*/*") -> Exchange:
        """
        Send a request and return without waiting for the response, which the caller closes.

        Raises:
            ConnectionFailed: nothing listens at the address.
        """
        connection = await self._connection()
        head = (
            f"{method} {self._url.path.rstrip('/')}{path} HTTP/1.1\r\n{self._common}accept: {accept}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        exchange = connection.send(head.encode("latin-1"), body)
        assert isinstance(exchange, Exchange)
        return exchange

    async def fetch(self, method: str, path: str, body: bytes = b"", *, accept: str = "*/*") -> Exchange:
        """
        Send a request and wait for the end of its response.

        Raises:
            ConnectionFailed: nothing listens at the address, or the connection broke before the response.
            Truncated: the connection broke during the response.
            TimeoutError: the response was not complete after `timeout_s`.
        """
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange = await self.open(method, path, body, accept=accept)
                await exchange.finished()
        finally:
            if exchange is not None:
                exchange.close()
        return exchange

    async def close(self) -> None:
        """Close all connections and wait until they are closed."""
        for connection, lost in list(self._open.items()):
            connection.abort()
            await lost.wait()
        self._idle.clear()

    async def _connection(self) -> ClientConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
        host = self._url.hostname or ""
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                self._new_connection, host, self.port, ssl=self._ssl
            )
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(
                f"The certificate of {host}:{self.port} is not accepted: {error.verify_message}. Use a name that it "
                "was issued for, and set SSL_CERT_FILE to the file of its root certificate if it has a root of its own."
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"no connection to {host}:{self.port} ({reason_of(error)})") from error
        if not connection.is_open:
            raise ConnectionFailed(f"{host}:{self.port} closed the connection at once")
        self._open[connection] = asyncio.Event()
        return connection

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(on_release=self._release, on_lost=self._lost, make_response=Exchange)

    def _release(self, connection: ClientConnection) -> None:
        if connection.is_idle:
            self._idle.append(connection)
        else:
            connection.abort()

    def _lost(self, connection: ClientConnection) -> None:
        if (lost := self._open.pop(connection, None)) is not None:
            lost.set()


def _split(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise SettingsError(f"The URL is '{url}'; expected the address of a server, such as http://127.0.0.1:8080.")
    return parts
