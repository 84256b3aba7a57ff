"""Pieces that go straight to the transport: the same bytes, in order, and never more than a client reads."""

import asyncio
import json
import socket

import pytest

from headrace.engine.echo import EchoBackend, EchoScript
from headrace.http.exchange import Exchange
from headrace.http.protocol import piece_writer
from tests.server.conftest import serving
from tests.waiting import WAIT_S

BODY = {"model": "echo", "prompt": " ".join(map(str, range(200))), "max_tokens": 200, "stream": True}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate_stream"])
def test_with_and_without_the_short_way_a_stream_has_the_same_events(path):
    answers = []
    for http in ("headrace", "httptools"):
        with serving(http=http) as echo:
            body = {"inputs": BODY["prompt"]}
            if path.startswith("/v1"):
                body = {**BODY, "messages": [{"role": "user", "content": BODY["prompt"]}]}
                del body["messages" if path == "/v1/completions" else "prompt"]
            response = echo.post(path, body)
            assert response.headers["transfer-encoding"] == "chunked"
            answers.append([_without_ids(line) for line in response.text.splitlines()])
    assert answers[0] == answers[1]
    assert len(answers[0]) > 100


def _without_ids(line: str) -> str:
    """An event without what differs from request to request."""
    before, _, after = line.partition('"model"')
    return after or before


def test_the_installed_uvicorn_offers_the_short_way():
    seen = []
    with serving(watch_scope=seen.append) as echo:
        echo.post("/v1/completions", BODY)
        echo.post("/v1/completions", BODY)
    assert len(seen) == 2
    assert all(callable(piece_writer(scope)) for scope in seen)
    assert piece_writer({"type": "http"}) is None


def test_a_client_that_does_not_read_holds_up_its_own_stream_only_and_loses_nothing():
    num_words = 30_000
    prompt = " ".join("w" for _ in range(num_words))
    with serving(EchoBackend(max_model_len=200_000, script=EchoScript())) as echo, _raw(echo.url) as lazy:
        lazy.sendall(_request({"model": "echo", "prompt": prompt, "max_tokens": num_words, "stream": True}))
        echo.until(lambda: echo.backend.stats().output_tokens_total > 0, "a first token")
        assert echo.post("/v1/completions", BODY).text.endswith("data: [DONE]\n\n")
        stuck_at = _settled(echo)
        assert stuck_at < num_words
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += lazy.recv(1 << 20)
    assert received.count(b'"text"') == num_words


def _settled(echo) -> int:
    """Tokens after which the backend stands still, because nobody reads them."""
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(echo.backend.stats().output_tokens_total)
        return len(seen) > 20 and seen[-20] == seen[-1]

    echo.until(stands_still, "the stream held up")
    return seen[-1]


def _raw(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT_S)
    connection.connect((host, int(port)))
    return connection


def _request(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Sent:
    """An ASGI server that takes messages when it is allowed to, and the short way beside it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def send(self, message) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.body":
            self.pieces.append(message["body"])

    def write(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return self.may_send.is_set()

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)


async def test_pieces_that_come_while_others_wait_stay_behind_them():
    server = Sent()
    exchange = Exchange(server.send, write_piece=server.write)
    exchange.begin_stream((), keep_alive=b"")
    assert not exchange.put(b"a")
    await exchange.drain()
    assert exchange.put(b"b")
    server.may_send.clear()
    assert not exchange.put(b"c")
    draining = [asyncio.create_task(exchange.drain()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not exchange.put(b"d")
    assert not exchange.put(b"e")
    assert server.text == b"abc"
    server.may_send.set()
    await asyncio.gather(*draining)
    assert exchange.put(b"f")
    await exchange.finish()
    assert server.text == b"abcdef"


async def test_nothing_waits_for_the_short_way_when_there_is_none():
    server = Sent()
    exchange = Exchange(server.send)
    exchange.begin_stream((), keep_alive=b"")
    for piece in (b"a", b"b"):
        assert not exchange.put(piece)
    await exchange.finish()
    assert server.text == b"ab"


async def test_a_piece_left_behind_by_a_cancelled_wait_still_goes_first():
    server = Sent()
    exchange = Exchange(server.send, write_piece=server.write)
    exchange.begin_stream((), keep_alive=b"")
    server.may_send.clear()
    exchange.put(b"a")
    draining = asyncio.create_task(exchange.drain())
    await asyncio.sleep(0)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    server.may_send.set()
    assert not exchange.put(b"b")
    await exchange.finish()
    assert server.text == b"ab"
