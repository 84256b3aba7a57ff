"""
A worker that costs little CPU: `python worker.py PORT FOLDER` answers with the same few bytes, or with a stream.

A body `{"id": "…", "pieces": 128, "gap_ms": 5}` is answered with a stream of events `id-number`; any other body with a
short JSON document at once. FOLDER only tells the workers of several platforms apart.
"""

import asyncio
import json
import re
import sys

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SHORT = b'{"text": "the answer of a worker that does nothing"}'
_ANSWER = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_SHORT)) + _SHORT
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def piece_of(request_id: str, number: int) -> bytes:
    return b"data: %s-%d\n\n" % (request_id.encode(), number)


class Echo(asyncio.Protocol):
    """A connection of the gateway."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._received, 0, end)
            stop = end + 4 + (int(found[1]) if found else 0)
            if len(self._received) < stop:
                return
            body, self._received = self._received[end + 4 : stop], self._received[stop:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"pieces"' not in body:
            self._transport.write(_ANSWER)
            return
        asked = json.loads(body)
        self._transport.write(_STREAM)
        self._write_piece(asked["id"], 0, asked["pieces"], asked["gap_ms"] / 1000)

    def _write_piece(self, request_id: str, number: int, num_pieces: int, gap_s: float) -> None:
        if self._transport.is_closing():
            return
        if number == num_pieces:
            self._transport.write(b"0\r\n\r\n")
            return
        piece = piece_of(request_id, number)
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        loop = asyncio.get_running_loop()
        loop.call_later(gap_s, self._write_piece, request_id, number + 1, num_pieces, gap_s)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
