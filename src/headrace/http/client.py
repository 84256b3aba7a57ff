"""
The HTTP/1.1 client of the gateway: connections to workers, kept and used again.

A request belongs to one connection from its first byte to the last of its answer; who gives it up in between closes the
connection, which is how a worker learns that nobody listens any more.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.http.client_connection import WorkerConnection
from headrace.http.client_response import Answer, BrokenInHead, NotConnected, UpstreamFailed

CONNECT_TIMEOUT_S = 5.0
"""A worker on this machine or in this network accepts in well under a second. Source: SageMaker asks for 250 ms."""

MAX_IDLE_CONNECTIONS = 64
"""To one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """What a worker is asked. `Host` and `Content-Length` are added."""

    method: str = "POST"
    path: str = "/invocations"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Call:
    """One request that is under way; `close` it, whatever happened."""

    __slots__ = ("_connection", "_pool", "answer")

    def __init__(self, answer: Answer, connection: WorkerConnection, pool: "_Pool") -> None:
        self.answer = answer
        self._connection: WorkerConnection | None = connection
        self._pool = pool

    def close(self) -> None:
        """Keep the connection if the answer has ended, else close it, which aborts the request. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)


class Upstream:
    """Requests to workers, by their URL (`http://host:port`)."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    async def call(self, url: str, request: WorkerRequest) -> Call:
        """
        Send a request and wait for the head of its answer.

        Raises:
            NotConnected: no connection, so nothing was sent.
            UpstreamFailed: it broke before the head. A connection that was kept may have been closed by the worker in
                the meantime: then a new one was tried, too.
        """
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = _Pool(url)
        head = _head(request, pool.netloc)
        failure: UpstreamFailed | None = None
        while True:
            connection = pool.take() or await pool.connect(failure)
            is_kept = connection.num_requests > 0
            try:
                answer = connection.send(head, request.body)
                await answer.begun()
            except UpstreamFailed as error:
                connection.abort()
                if not is_kept or isinstance(error, BrokenInHead):
                    raise
                failure = error
            except BaseException:
                connection.abort()
                raise
            else:
                return Call(answer, connection, pool)

    def retain(self, urls: Iterable[str]) -> None:
        """Let go of idle connections to all workers but these."""
        kept = set(urls)
        for url in [url for url in self._pools if url not in kept]:
            self._pools.pop(url).close_idle()

    async def close(self) -> None:
        """Close all connections and wait until they are."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()


class _Pool:
    """Connections to one worker."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.netloc = parts.netloc
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._idle: list[WorkerConnection] = []
        self._open: set[WorkerConnection] = set()
        self._is_closed = False
        self._all_closed = asyncio.Event()

    def take(self) -> WorkerConnection | None:
        """The idle connection that was used last, as it is the least likely to be closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
        return None

    async def connect(self, earlier: UpstreamFailed | None) -> WorkerConnection:
        """
        A new connection.

        Raises:
            NotConnected: there is none.
            UpstreamFailed: the same, where an `earlier` try had sent the request.
        """
        try:
            return await self._connected()
        except NotConnected:
            if earlier is not None:
                raise earlier from None
            raise

    async def _connected(self) -> WorkerConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: WorkerConnection(self._closed), self._host, self._port
                )
        except TimeoutError:
            raise NotConnected(f"{self.netloc} does not accept connections") from None
        except OSError as error:
            raise NotConnected(f"no connection to {self.netloc} ({error.strerror or error})") from error
        # NOTE: not earlier: of one that is given up while it is being made, uvloop does not tell the end.
        if not connection.is_open:
            raise NotConnected(f"{self.netloc} closed the connection at once")
        self._open.add(connection)
        return connection

    def give_back(self, connection: WorkerConnection) -> None:
        """Keep it if it can be used again."""
        if connection.is_idle and not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.abort()

    def close_idle(self) -> None:
        """Keep none from now on; those in use are closed as they are given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    async def close(self) -> None:
        """Close all."""
        self.close_idle()
        for connection in list(self._open):
            connection.abort()
        while self._open:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _closed(self, connection: WorkerConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open:
            self._all_closed.set()


def _head(request: WorkerRequest, netloc: str) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
    text = (
        f"{request.method} {request.path} HTTP/1.1\r\nHost: {netloc}\r\n{headers}"
        f"Content-Length: {len(request.body)}\r\n\r\n"
    )
    return text.encode("latin-1")
