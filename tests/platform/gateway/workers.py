"""A worker whose responses a test scripts, byte by byte."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request as the worker received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Exchange:
    """A request, with methods to answer it."""

    worker: "Worker"
    asked: Asked
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def whole(self, body: bytes, *, status: str = "200 OK", **headers: str) -> None:
        self.raw(_head(status, {"content-length": str(len(body)), **headers}) + body)

    def start(self, *, status: str = "200 OK", **headers: str) -> None:
        self.raw(_head(status, {"transfer-encoding": "chunked", **headers}))

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    async def flush(self) -> None:
        await self.writer.drain()

    def die(self) -> None:
        """Reset the connection, as the kernel does for a killed process."""
        self.writer.transport.abort()

    async def until_gone(self) -> None:
        """Return when the other side has closed the connection."""
        try:
            while await self.reader.read(1000):
                pass
        except ConnectionError:
            pass
        self.worker.num_gone += 1


Script = Callable[[Exchange], Awaitable[None]]


async def echo(exchange: Exchange) -> None:
    exchange.whole(exchange.asked.body, content_type=exchange.asked.headers.get("content-type", "text/plain"))


@dataclass
class Worker:
    """Listens on a free port; `script` answers each request."""

    script: Script = echo
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    num_gone: int = 0
    url: str = ""
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close everything at once, like a killed process."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writers.add(writer)
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                await self.script(Exchange(self, asked, reader, writer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.split(": ", 1) for line in lines if line]
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = start.split(" ")
    return Asked(method, path, headers, body)


def _head(status: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1")
