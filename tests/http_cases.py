"""Raw HTTP requests that every server must refuse, with the expected answers."""

import socket
from dataclasses import dataclass

from tests.waiting import WAIT_S

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /health HTTP/1.1\r\n"
POST = b"POST /health HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

MALFORMED: dict[str, tuple[bytes, int]] = {
    "bytes that are no HTTP": (b"\x00\x01\x02\r\n\r\n", 400),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "two Host headers": (GET + HOST + HOST + b"\r\n", 400),
    "no Host header": (GET + b"\r\n", 400),
    "a Host header with a path": (GET + b"Host: a/b\r\n\r\n", 400),
    "a Host header with a user": (GET + b"Host: a@b\r\n\r\n", 400),
    "length and chunks": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", 400),
    "a negative length": (POST + b"Content-Length: -5\r\n\r\n", 400),
    "a length over 64 bits": (POST + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "a negative chunk": (CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n", 400),
    "a chunk over 64 bits": (CHUNKED + b"ffffffffffffffffff\r\nabcde\r\n0\r\n\r\n", 400),
    "a chunk longer than it says": (CHUNKED + b"3\r\nabcde\r\n0\r\n\r\n", 400),
    "a chunk size without CR": (CHUNKED + b"3\nabc\n0\n\n", 400),
    "a coding that is not chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunks in HTTP/1.0": (b"POST /health HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded header": (GET + HOST + b"X-A: b\r\n c\r\n\r\n", 400),
    "lines without CR": (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
    "a CR in a header": (GET + HOST + b"X: a\rb\r\n\r\n", 400),
    "a NUL in a header": (GET + HOST + b"X: a\x00b\r\n\r\n", 400),
    "a NUL in the target": (b"GET /he\x00alth HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a space before the colon": (GET + b"Host : x\r\n\r\n", 400),
    "a header without colon": (GET + HOST + b"Nonsense\r\n\r\n", 400),
    "a header without name": (GET + HOST + b": x\r\n\r\n", 400),
    "a path without slash": (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "an asterisk where it means nothing": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "another scheme": (b"GET ftp://x/health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "CONNECT": (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 501),
    "a method that is none": (b"BREW /health HTTP/1.1\r\n" + HOST + b"\r\n", 501),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 505),
    "HTTP/1.2": (b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n", 505),
    "HTTP/2 in words": (b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", 505),
    "a target of 20 KB": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "a header of 64 KB": (GET + HOST + b"X: " + b"a" * 65_536 + b"\r\n\r\n", 431),
    "1,000 headers": (GET + HOST + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n", 431),
    "a megabyte of trailers": (CHUNKED + b"0\r\n" + b"X: %b\r\n" % (b"a" * 1000) * 1000 + b"\r\n", 431),
}


@dataclass(frozen=True)
class RawAnswer:
    """One HTTP response with a Content-Length, as bytes."""

    status: int
    headers: dict[str, str]
    body: bytes


def exchange(url: str, *parts: bytes) -> bytes:
    """Send bytes, and return everything until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(1 << 16):
            received += data
    return bytes(received)


def answers_in(received: bytes) -> list[RawAnswer]:
    """Split the bytes of a connection into answers; fail on left-over or missing bytes."""
    answers = []
    while received:
        head, mark, rest = received.partition(b"\r\n\r\n")
        assert mark, received
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        assert len(rest) >= length, received
        answers.append(RawAnswer(int(status.split(" ")[1]), headers, rest[:length]))
        received = rest[length:]
    return answers
