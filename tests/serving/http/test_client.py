"""The HTTP client: connections are kept, replaced when the server has closed them, and aborted with their response."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from headrace.serving.http.client import SILENCE_S, ClientRequest, HttpClient, break_when_silent, send_once
from headrace.serving.http.client_connection import ConnectFailed, NoResponse, ResponseHeadBroken
from tests.waiting import WAIT_S

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
GET = ClientRequest(method="GET", path="/ping")


class Server:
    """A server that answers the requests of each connection with given bytes, and then closes it."""

    def __init__(self, *connections: tuple[bytes, ...]) -> None:
        self.connections = list(connections)
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in self.connections.pop(0):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if self.connections:
                return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            writer.close()


@asynccontextmanager
async def serving(*connections: tuple[bytes, ...]) -> AsyncIterator[Server]:
    made = Server(*connections)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


async def answered(client: HttpClient, url: str) -> bytes:
    response = await client.send(url, GET)
    try:
        return await response.read(100)
    finally:
        response.close()


async def test_a_connection_is_kept_for_the_next_request() -> None:
    client = HttpClient()
    async with serving((OK, OK)) as server:
        assert [await answered(client, server.url) for _ in range(2)] == [b"ok", b"ok"]
        await client.close()
        assert len(server.heads) == 2


async def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    client = HttpClient()
    async with serving((OK,), (OK,)) as server:
        assert await answered(client, server.url) == b"ok"
        assert await answered(client, server.url) == b"ok"
        await client.close()


async def test_a_response_closed_before_its_end_closes_the_connection() -> None:
    client = HttpClient()
    async with serving((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",)) as server:
        response = await client.send(server.url, GET)
        response.close()
        await asyncio.wait_for(server.closed.wait(), WAIT_S)
        await client.close()


async def test_a_response_to_head_ends_with_its_headers_and_closes_the_connection() -> None:
    client = HttpClient()
    async with serving((b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",), (OK,)) as server:
        response = await client.send(server.url, ClientRequest(method="HEAD", path="/ping"))
        assert (await asyncio.wait_for(response.read(100), WAIT_S), response.status) == (b"", 200)
        assert response.headers == {"content-length": "1000"}
        response.close()
        assert await answered(client, server.url) == b"ok", "over another connection: a body could still arrive"
        await client.close()


async def test_a_head_that_breaks_off_is_not_sent_again() -> None:
    client = HttpClient()
    async with serving((b"HTTP/1.1 20",), (OK,)) as server:
        with pytest.raises(ResponseHeadBroken):
            await client.send(server.url, GET)
        await client.close()
        assert len(server.heads) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://"])
async def test_a_server_that_is_not_there_has_seen_nothing(url: str) -> None:
    with pytest.raises(ConnectFailed):
        await HttpClient().send(url, GET)


async def test_a_single_request_asks_the_server_to_close_and_closes_itself() -> None:
    async with serving((OK,)) as server:
        async with send_once(server.url, GET) as response:
            assert (response.status, await response.read(2)) == (200, b"ok")
        await asyncio.wait_for(server.closed.wait(), WAIT_S)
        assert b"Connection: close\r\n" in server.heads[0]


async def test_a_single_request_without_a_response_fails() -> None:
    async with serving((b"",), ()) as server:
        with pytest.raises(NoResponse):
            async with send_once(server.url, GET):
                pass


class Options:
    """The options that a socket with a given peer was asked for."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.set: dict[tuple[int, int], int] = {}

    def getpeername(self) -> tuple[str, int]:
        return self.peer, 80

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.set[level, option] = value


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.77.0.1", "fe80::1%eth0"])
def test_only_a_connection_to_another_machine_breaks_when_it_is_silent(peer: str) -> None:
    options = Options(peer)
    break_when_silent(cast("socket.socket", options))
    is_watched = peer not in {"127.0.0.1", "::1"}
    assert options.set.get((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 0) == is_watched
    assert options.set.get((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 0) == is_watched * SILENCE_S * 1000


@pytest.mark.parametrize("pin", ["#sha256=00", "#", ""])
async def test_a_server_that_does_not_encrypt_gets_no_request_of_an_encrypted_connection(monkeypatch, pin) -> None:
    monkeypatch.setattr("headrace.serving.http.client.HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving((OK,)) as server:
        with pytest.raises(ConnectFailed, match="does not accept connections"):
            await HttpClient().send(f"{server.url.replace('http:', 'https:')}{pin}", GET)
    assert server.heads == []
