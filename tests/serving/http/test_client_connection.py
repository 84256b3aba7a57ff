"""A client's connection: chunk boundaries, the ends of responses, back-pressure."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.http.client_connection import (
    HIGH_WATER_BYTES,
    MAX_HEAD_BYTES,
    MAX_PART_BYTES,
    ClientConnection,
    NoResponse,
    ResponseBroken,
    ResponseHeadBroken,
    ResponseTooLarge,
)

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return "abort" in self.calls

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


def connected() -> tuple[ClientConnection, Wire]:
    connection = ClientConnection(on_release=lambda _: None, on_lost=lambda _: None)
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire


def chunked(chunks: list[bytes]) -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Data in the pieces in which a socket might bring it."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


async def collected(response, *, says_no: list[bool] | None = None) -> list[bytes]:
    parts: list[bytes] = []
    answers = iter(says_no or [])

    def put(part: bytes) -> bool:
        parts.append(part)
        return next(answers, True)

    async def drain() -> None:
        await asyncio.sleep(0)

    await response.relay(put, drain)
    return parts


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    st.lists(st.integers(0, 1000), max_size=20),
    st.lists(st.booleans(), max_size=20),
)
def test_one_chunk_is_one_part_however_it_comes_and_however_slow_the_client_is(chunks, cuts, says_no):
    async def main() -> list[bytes]:
        connection, _ = connected()
        response = connection.send(b"", b"")
        reading = asyncio.create_task(collected(response, says_no=says_no))
        for piece in pieces(chunked(chunks), cuts):
            connection.data_received(piece)
            if len(piece) % 2:
                await asyncio.sleep(0)
        assert connection.is_idle
        return await reading

    assert asyncio.run(main()) == chunks


async def test_a_huge_chunk_is_passed_on_in_several_parts():
    connection, _ = connected()
    response = connection.send(b"", b"")
    chunk = b"x" * (3 * MAX_PART_BYTES)
    for piece in pieces(chunked([chunk]), list(range(0, len(chunk), 65536))):
        connection.data_received(piece)
    parts = await collected(response)
    assert b"".join(parts) == chunk
    assert 2 <= len(parts) <= 4


async def test_a_body_with_a_length_is_whole_only_with_all_of_it():
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(head + b"ab")
    connection.data_received(b"cd")
    assert await response.read(10) == b"abcd"
    response = connection.send(b"", b"")
    connection.data_received(head + b"ab")
    connection.connection_lost(None)
    with pytest.raises(ResponseBroken, match="closed"):
        await response.read(10)


async def test_a_body_without_a_length_ends_with_its_connection_unless_that_was_reset():
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(head + b"ab")
    connection.connection_lost(None)
    assert await response.read(10) == b"ab"
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(head + b"ab")
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(ResponseBroken, match="reset"):
        await response.read(10)


async def test_the_parts_before_a_break_are_passed_on():
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(CHUNKED + b"3\r\none\r\n5\r\nhal")
    connection.connection_lost(None)
    parts: list[bytes] = []
    with pytest.raises(ResponseBroken):
        await response.relay(lambda part: parts.append(part) or True, lambda: asyncio.sleep(0))
    assert parts == [b"one"]


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200", b"SMTP\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_connection_that_ends_before_an_answer_has_failed(data):
    connection, _ = connected()
    response = connection.send(b"", b"")
    if data:
        connection.data_received(data)
    connection.connection_lost(None)
    with pytest.raises(NoResponse):
        await response.started()


async def test_interim_answers_and_trailers_are_passed_over():
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    connection.data_received(CHUNKED + b"1\r\na\r\n0\r\nlate: 1\r\n\r\n")
    await response.started()
    assert response.status == 200
    assert response.headers == {"content-type": "text/plain", "transfer-encoding": "chunked"}
    assert await response.read(10) == b"a"


async def test_a_worker_that_wants_to_close_is_not_asked_again():
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert await response.read(0) == b""
    assert not connection.is_idle


@pytest.mark.parametrize("line", [b"X-%d: y\r\n", b"HTTP/1.1 103 Early Hints\r\nX-%d: y\r\n\r\n"])
async def test_a_head_without_end_is_no_response(line):
    connection, wire = connected()
    response = connection.send(b"", b"")
    connection.data_received(b"" if line.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n")
    for start in range(0, MAX_HEAD_BYTES // 8, 100):
        connection.data_received(b"".join(line % number for number in range(start, start + 100)))
        if not connection.is_open:
            break
    with pytest.raises(ResponseHeadBroken, match="more than 262144 bytes"):
        await response.started()
    assert "abort" in wire.calls


@pytest.mark.parametrize("start", [b"0\r\nX: ", b"0\r\nX", b"1;", b"1\r\na\r\n0\r\nA: b\r\nX: "])
async def test_a_line_without_end_after_the_head_breaks_the_response(start):
    connection, wire = connected()
    response = connection.send(b"", b"")
    connection.data_received(CHUNKED + start)
    for _ in range(5):
        connection.data_received(b"a" * (MAX_HEAD_BYTES // 4))
    with pytest.raises(ResponseBroken, match="framing of the server's response has more than 262144 bytes"):
        await response.read(10)
    assert "abort" in wire.calls


@pytest.mark.parametrize("status", [b"099", b"600", b"999"])
async def test_a_status_that_http_does_not_have_is_no_response(status):
    connection, wire = connected()
    response = connection.send(b"", b"")
    connection.data_received(b"HTTP/1.1 %b Odd\r\ncontent-length: 1\r\n\r\na" % status)
    with pytest.raises(ResponseHeadBroken, match=f"status {int(status)}"):
        await response.started()
    assert wire.calls[0] == "abort"


async def test_unsolicited_bytes_close_the_connection():
    connection, wire = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert wire.calls == ["abort"]
    assert not connection.is_idle


async def test_a_worker_is_not_read_faster_than_the_client_takes():
    connection, wire = connected()
    response = connection.send(b"", b"")
    connection.data_received(CHUNKED)
    chunk = b"x" * (HIGH_WATER_BYTES // 4)
    may_go_on = asyncio.Event()
    got: list[bytes] = []
    relaying = asyncio.create_task(response.relay(lambda part: got.append(part) or False, may_go_on.wait))
    await asyncio.sleep(0)
    for _ in range(8):
        connection.data_received(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await asyncio.sleep(0)
    assert got == [chunk]
    assert wire.calls == ["pause_reading"]
    may_go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert wire.calls == ["pause_reading", "resume_reading"]
    connection.data_received(b"0\r\n\r\n")
    await relaying
    assert got == [chunk] * 8


async def test_an_answer_that_is_too_long_is_not_read_to_its_end():
    connection, _ = connected()
    response = connection.send(b"", b"")
    connection.data_received(chunked([b"x" * 6, b"y" * 6]))
    with pytest.raises(ResponseTooLarge):
        await response.read(11)


async def test_small_requests_leave_in_one_write():
    connection, wire = connected()
    connection.send(b"head", b"body")
    assert wire.written == [b"headbody"]


async def test_a_paused_connection_reads_on_before_it_carries_its_next_request():
    released = []
    connection = ClientConnection(on_release=released.append, on_lost=lambda _: None)
    wire = Wire()
    connection.connection_made(wire)
    response = connection.send(b"", b"")
    connection.data_received(chunked([b"x" * (HIGH_WATER_BYTES + 1)]))
    assert wire.calls == ["pause_reading"]
    response.close()
    assert wire.calls == ["pause_reading", "resume_reading"]
    assert released == [connection]
    response.close()
    assert released == [connection]
