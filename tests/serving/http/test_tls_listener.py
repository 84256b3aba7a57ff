"""TLS handshakes count among the connections of a server and end in time, on both event loops."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import trustme
import uvloop

from headrace.serving.http.asgi import Receive, Scope, Send, send_response
from headrace.serving.http.protocol import HttpLimits
from headrace.serving.http.server import http_server
from headrace.serving.http.tls import bind
from tests.waiting import WAIT_S

LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(scope, send, 200, (("x-scheme", scope["scheme"]),), b"ok")


@contextmanager
def tls_server(authority: trustme.CA, make_loop: MakeLoop, **limits: float) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    values = {"max_connections": 10, "receive_timeout_s": WAIT_S, "send_timeout_s": WAIT_S, **limits}
    server = http_server(app, limits=HttpLimits(**values), tls=context)
    with bind("127.0.0.1", 0) as listener:

        def run() -> None:
            with asyncio.Runner(loop_factory=make_loop) as runner:
                runner.run(server.serve(sockets=[listener]))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop(grace_s=1)
            thread.join()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def get(port: int, authority: trustme.CA) -> bytes:
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    with trusting(authority).wrap_socket(plain, server_hostname="127.0.0.1") as client:
        client.sendall(GET)
        with client.makefile("rb") as received:
            return received.read()


def answer_once_free(port: int, authority: trustme.CA) -> bytes:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        with suppress(OSError):  # no place yet
            return get(port, authority)
    raise TimeoutError("No place became free.")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def is_dropped(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_handshake_that_does_not_end_is_dropped_in_time(authority: trustme.CA, make_loop: MakeLoop) -> None:
    silent_server = tls_server(authority, make_loop, handshake_timeout_s=0.2)
    with silent_server as port, connect(port) as silent, connect(port) as half:
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert is_dropped(silent)
        assert is_dropped(half)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_handshakes_count_among_the_connections(authority: trustme.CA, make_loop: MakeLoop) -> None:
    with tls_server(authority, make_loop, max_connections=2) as port, connect(port), connect(port) as second:
        with connect(port) as third:
            assert is_dropped(third)
        second.sendall(b"this is no handshake")
        assert answer_once_free(port, authority).endswith(b"ok")


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_request_in_the_same_segment_as_the_end_of_the_handshake_is_answered(
    authority: trustme.CA, make_loop: MakeLoop
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with tls_server(authority, make_loop) as port, connect(port) as plain:
        is_done = False
        while not is_done:
            try:
                client.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65536))
        client.write(GET)
        plain.sendall(outgoing.read())  # the client's Finished and its request
        answer = b""
        while not answer.endswith(b"ok"):
            try:
                answer += client.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-scheme: https" in answer
