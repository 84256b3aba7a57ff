"""A tiny HTTP server with scripted answers: path → answering function."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Connection:
    """The client connection that an answering function gets."""

    writer: asyncio.StreamWriter

    def write(self, text: str) -> None:
        self.writer.write(text.encode())

    def json(self, value: object, status: str = "200 OK") -> None:
        body = json.dumps(value)
        self.write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}")

    def start_stream(self, content_type: str = "text/event-stream") -> None:
        self.write(f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n")

    def piece(self, text: str) -> None:
        self.write(f"{len(text.encode()):x}\r\n{text}\r\n")

    def end_stream(self) -> None:
        self.write("0\r\n\r\n")


Answer = Callable[[Connection, dict], Awaitable[None]]


@dataclass
class ScriptedServer:
    """The scripted routes, and the requests received so far."""

    routes: dict[str, Answer]
    requests: list[tuple[str, dict]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                start, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = start.split()[1]
                self.headers.append(headers)
                if path in self.routes:
                    question = json.loads(body or b"{}")
                    self.requests.append((path, question))
                    await self.routes[path](Connection(writer), question)
                else:
                    Connection(writer).json({"error": "not found"}, "404 Not Found")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(routes: dict[str, Answer]) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(routes)
    server = await asyncio.start_server(scripted.serve, "0.0.0.0", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        await asyncio.sleep(0)


async def openai_models(connection: Connection, _: dict) -> None:
    connection.json({"object": "list", "data": [{"id": "tiny", "object": "model"}]})


async def openai_completion(connection: Connection, question: dict) -> None:
    """Answer with `max_tokens` events and a usage of one token per word and three more."""
    connection.start_stream()
    for _ in range(question["max_tokens"]):
        connection.piece('data: {"choices": [{"index": 0, "text": " la"}]}\n\n')
        await asyncio.sleep(0)
    usage = {"prompt_tokens": 3 + 2 * len(question["prompt"].split()), "completion_tokens": question["max_tokens"]}
    connection.piece(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
    connection.piece("data: [DONE]\n\n")
    connection.end_stream()
