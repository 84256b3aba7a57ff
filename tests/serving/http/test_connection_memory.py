"""The memory that clients without a key make a server hold: unread responses, pipelined requests, unfinished heads."""

import socket
from contextlib import ExitStack

import pytest

from headrace.serving.http.connection_memory import ConnectionMemory, ConnectionShare
from tests.http_cases import GET, HOST
from tests.serving.server.conftest import serving

MAX_BYTES = 400_000
PAGE_FILE = b"GET /web/vendor/katex/katex.min.js HTTP/1.1\r\n" + HOST + b"\r\n"
BODY = b"POST /generate HTTP/1.1\r\n" + HOST + b"Content-Length: 50000\r\n\r\n" + b" " * 50_000
REQUESTS = {
    "unread responses": PAGE_FILE * 20,
    "pipelined requests": PAGE_FILE * 33,
    "pipelined bodies": PAGE_FILE * 20 + BODY,
    "unfinished heads": GET + HOST + b"X: " + b"a" * 50_000,
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_clients_without_a_key_make_a_server_hold_is_bounded(name):
    memory = ConnectionMemory(max_address_bytes=MAX_BYTES)
    with serving(memory=memory, api_key="secret") as echo, ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(_unread(echo))
            client.sendall(REQUESTS[name])
        echo.until(lambda: "http.connection_dropped" in echo.log.getvalue(), "connections are dropped")
        echo.until(lambda: 0 < memory.num_bytes <= MAX_BYTES, "the others are kept within the limit")
        assert echo.client.get("/health").status_code == 200
        stack.close()
        echo.until(lambda: memory.num_bytes == 0, "nothing is held any more")


def _unread(echo):
    """Return a connection whose client takes a few kilobytes of responses at most."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(echo.url.rpartition(":")[2])))
    return client


def test_a_limit_is_for_an_ipv4_address_or_a_network_of_ipv6():
    cases = [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("2001:db8::1", 1), ("2001:db8::ffff:1", 1), True),
        (("2001:db8::1", 1), ("2001:db8:0:1::1", 1), False),
        (("fe80::1%eth0", 1), ("fe80::2%eth0", 1), True),
        (None, None, True),
    ]
    for first, second, is_same in cases:
        memory = ConnectionMemory(max_bytes=100, max_address_bytes=10)
        assert ConnectionShare(memory, first).set(6)
        assert ConnectionShare(memory, second).set(6) is not is_same, (first, second)


def test_all_addresses_together_have_a_limit_and_shares_are_given_back():
    memory = ConnectionMemory(max_bytes=100, max_address_bytes=60)
    first, second = (ConnectionShare(memory, (host, 1)) for host in ("10.0.0.1", "10.0.0.2"))
    assert first.set(60)
    assert not second.set(41)
    assert second.set(40)
    assert first.set(30)
    assert second.set(60)
    first.set(0)
    second.set(0)
    assert memory.num_bytes == 0
