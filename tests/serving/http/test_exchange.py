"""Parts of a stream, written straight to the transport or by ASGI: the same bytes, in order, within flow control."""

import asyncio
import json
import socket

import pytest

from headrace.serving.http.asgi import WRITE_PART, part_writer
from headrace.serving.http.body import ClientGone
from headrace.serving.http.exchange import Exchange
from headrace.testing.echo import EchoBackend, EchoScript
from tests.serving.server.conftest import serving
from tests.waiting import WAIT_S

BODY = {"model": "echo", "prompt": " ".join(map(str, range(200))), "max_tokens": 200, "stream": True}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate_stream"])
def test_a_stream_has_the_same_events_with_and_without_the_write_extension(path):
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


def test_the_installed_uvicorn_offers_the_write_extension():
    seen = []
    with serving(watch_scope=seen.append) as echo:
        echo.post("/v1/completions", BODY)
        echo.post("/v1/completions", BODY)
    assert len(seen) == 2
    assert all(callable(part_writer(scope)) for scope in seen)
    assert part_writer({"type": "http"}) is None


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
    """Tokens after which the backend stops, because the client does not read them."""
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
    """An ASGI server that takes messages when it is allowed to, and its write extension."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.has_left = asyncio.Event()

    async def send(self, message) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.body":
            self.pieces.append(message["body"])

    def write(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return self.may_send.is_set()

    async def receive(self):
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    def exchange(self, *, has_extension: bool = True, **options) -> Exchange:
        scope = {"type": "http", "method": "POST", "headers": []}
        if has_extension:
            scope["extensions"] = {WRITE_PART: self.write}
        return Exchange(scope, self.receive, self.send, **options)

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)


async def test_pieces_that_come_while_others_wait_stay_behind_them():
    server = Sent()
    exchange = server.exchange()
    exchange.begin_stream(())
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


async def test_parts_take_the_way_of_asgi_without_the_extension():
    server = Sent()
    exchange = server.exchange(has_extension=False)
    exchange.begin_stream(())
    for piece in (b"a", b"b"):
        assert not exchange.put(piece)
    await exchange.finish()
    assert server.text == b"ab"


async def test_a_piece_left_behind_by_a_cancelled_wait_still_goes_first():
    server = Sent()
    exchange = server.exchange()
    exchange.begin_stream(())
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


async def test_a_client_that_disconnects_cancels_the_block():
    server = Sent()
    exchange = server.exchange()
    server.has_left.set()

    async def answer() -> None:
        async with exchange.cancelled_on_disconnect():
            await asyncio.Event().wait()

    with pytest.raises(ClientGone):
        await answer()
    assert asyncio.current_task().cancelling() == 0


async def test_a_disconnect_after_the_end_of_the_response_cancels_nothing():
    server = Sent()
    exchange = server.exchange()
    async with exchange.cancelled_on_disconnect():
        await exchange.respond(200, (), b"ok")
        server.has_left.set()
        for _ in range(3):
            await asyncio.sleep(0)
    assert server.text == b"ok"
    assert exchange.num_bytes == 2


async def test_a_block_that_its_owner_cancels_is_not_taken_for_a_disconnect():
    server = Sent()

    async def answer() -> None:
        async with server.exchange().cancelled_on_disconnect():
            await asyncio.Event().wait()

    task = asyncio.create_task(answer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_silent_stream_gets_its_keep_alive_bytes_until_it_ends():
    server = Sent()
    exchange = server.exchange(keep_alive_s=0.001)
    exchange.begin_stream((), keep_alive=b":\n")
    async with asyncio.timeout(WAIT_S), exchange.cancelled_on_disconnect():
        while server.text.count(b":") < 3:
            await asyncio.sleep(0.001)
        await exchange.finish()
    assert set(server.pieces) == {b":\n", b""}


async def test_a_head_request_gets_no_body():
    server = Sent()
    exchange = Exchange({"type": "http", "method": "HEAD", "headers": []}, server.receive, server.send)
    await exchange.respond(200, (), b"content")
    assert server.text == b""


async def test_a_header_that_cannot_be_encoded_leaves_room_for_an_error():
    server = Sent()
    exchange = server.exchange()
    with pytest.raises(UnicodeEncodeError):
        await exchange.respond(200, [("x-name", "漢")], b"content")
    with pytest.raises(UnicodeEncodeError):
        await exchange.start(200, [("x-name", "漢")])
    assert not exchange.is_started
    assert not exchange.is_finished
    await exchange.respond(500, (), b"error")
    assert server.text == b"error"
