"""Writes of a response past uvicorn's `send`: the parts of a stream, and a head together with the start of its body."""

from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.http.asgi import Message, WritePart

PART_BYTES = 64 * 1024
"""A larger part of a body is written in pieces of this size, each when the client has read most of the one before."""


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


def has_length(head: Message) -> bool:
    """Return whether the head of a response has a Content-Length."""
    return any(name.lower() == b"content-length" for name, _ in head.get("headers", ()))


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


def part_writer_of(cycle: RequestResponseCycle) -> WritePart:
    """Return the writer for the parts of a response; see `WritePart`."""
    write, flow = cycle.transport.write, cycle.flow

    def write_part(part: bytes) -> bool:
        if cycle.disconnected or not cycle.chunked_encoding:  # the response to HEAD, 204 and 304 have no body
            return True
        write(b"%x\r\n%b\r\n" % (len(part), part))
        return not flow.write_paused

    return write_part
