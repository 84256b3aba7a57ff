"""Writes of a response past uvicorn's `send`: the parts of a stream, and a head together with the start of its body."""

import sys
from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.serving.http.asgi import BODILESS, Headers, Message, WritePart, has_length

PART_BYTES = 64 * 1024
"""A larger part of a body is written in pieces of this size, each when the client has read most of the one before."""

_UNKNOWN_LENGTH = sys.maxsize
_LAST_CHUNK = b"0\r\n\r\n"


class HeadJoiner:
    """
    Writes the head of a response together with the start of its body.

    Most responses are then sent by one system call. A server that is killed has sent all of such a response or nothing
    of it, and a gateway may send the request to another server in the latter case.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""

    def close(self) -> None:
        """Close the connection of a response that has failed; a head without a body is not sent."""
        self._transport.close()

    def write(self, data: bytes) -> None:
        """Keep the head; write it with what follows."""
        if not self._head:
            self._head = data
            return
        self._cycle.transport = self._transport
        self._transport.write(self._head + data)


class TrailerWriter:
    """Writes the end of a chunked body with trailers, which uvicorn does not know (RFC 9112, section 7.1.2)."""

    def __init__(self, cycle: RequestResponseCycle, trailers: Headers) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        fields = "".join(f"{name}: {value}\r\n" for name, value in trailers)
        self._end = f"0\r\n{fields}\r\n".encode("latin-1")

    def close(self) -> None:
        """Close the connection of a response that has failed."""
        self._transport.close()

    def write(self, data: bytes) -> None:
        """Write the last chunks, with the trailers before the end."""
        self._cycle.transport = self._transport
        self._transport.write(data.removesuffix(_LAST_CHUNK) + self._end if data.endswith(_LAST_CHUNK) else data)


def pieces_of(message: Message) -> Iterable[Message]:
    """
    Return a message of a response; a large part of a body in pieces.

    The application then waits, and holds what it counts, until its client has read most of the body.
    """
    rest = memoryview(message.get("body", b""))
    if len(rest) <= PART_BYTES:
        return (message,)
    pieces = [rest[start : start + PART_BYTES] for start in range(0, len(rest), PART_BYTES)]
    more = [True] * (len(pieces) - 1) + [message.get("more_body", False)]
    return [{**message, "body": piece, "more_body": has_more} for piece, has_more in zip(pieces, more, strict=True)]


def end_by_close(cycle: RequestResponseCycle, message: Message) -> None:
    """
    Let the end of the connection end the body of a response to HTTP/1.0, which has no chunks (RFC 9112, section 6.3).

    uvicorn frames a body by its length or by chunks: it gets a length that no body has, and the true one at the end.
    """
    if message["type"] == "http.response.start":
        is_bodiless = cycle.scope["method"] == "HEAD" or message["status"] in BODILESS
        if not is_bodiless and not has_length(message):
            cycle.chunked_encoding, cycle.expected_content_length = False, _UNKNOWN_LENGTH
    elif cycle.expected_content_length > _UNKNOWN_LENGTH // 2 and not message.get("more_body", False):
        cycle.expected_content_length = len(message.get("body", b""))


def part_writer_of(cycle: RequestResponseCycle) -> WritePart:
    write, flow = cycle.transport.write, cycle.flow

    def write_part(part: bytes) -> bool:
        if cycle.disconnected:
            return True
        if cycle.chunked_encoding:
            write(b"%x\r\n%b\r\n" % (len(part), part))
        elif cycle.expected_content_length:  # not for HEAD, 204 and 304, which have no body
            write(part)
        return not flow.write_paused

    return write_part
