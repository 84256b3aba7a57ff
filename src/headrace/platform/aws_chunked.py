r"""
A decoder of AWS's chunked coding (`Content-Encoding: aws-chunked`), which can verify signatures of chunks. Pure.

A chunk is `<size in hex>[;chunk-signature=...]\r\n<bytes>\r\n`; the one of size 0 is the last, trailers may follow.
Source: "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks" in the Amazon S3
API reference.
"""

import re

from headrace.wire.aws.chunk_signatures import ChunkVerifier

_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})(?:;(?:chunk-signature=([0-9a-f]{64})\Z)?[^\r\n]*)?")
_MAX_LINE_BYTES = 4096
_MAX_TRAILERS = 32


class BadChunk(ValueError):
    """The body is not in AWS's chunked coding; the message says where."""


class BadSignature(BadChunk):
    """A chunk, or the trailer, has another signature than its content."""


class AwsChunkedReader:
    """Decodes a body from parts of any size."""

    def __init__(self, verifier: ChunkVerifier | None = None, *, signs_trailer: bool = False) -> None:
        """
        Prepare for a body.

        Args:
            verifier: verifies the signatures of chunks; None: they are not looked at.
            signs_trailer: whether the trailer must have a signature.
        """
        self._verifier = verifier
        self._signs_trailer = signs_trailer
        self.is_complete = False
        self.trailers: dict[str, str] = {}
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the current chunk that have not arrived."""
        self._wants_line_end = False
        self._is_in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """
        Decode the next bytes; return the content decoded so far and not yet returned.

        Raises:
            BadChunk: they are malformed.
        """
        self._buffer += data
        content = bytearray()
        while not self.is_complete and self._step(content):
            pass
        if self.is_complete and self._buffer:
            raise BadChunk("there are bytes after the last chunk")
        return bytes(content)

    def finish(self) -> None:
        """
        Check that the body is complete at its end.

        Raises:
            BadChunk: it ended in the middle of a chunk.
        """
        if self._is_in_trailers and not self._buffer:
            self.is_complete = True  # some clients omit the last empty line
        if not self.is_complete:
            raise BadChunk("it ends before its last chunk")
        if self._verifier is not None and self._signs_trailer and not self._verifier.is_trailer_right(self.trailers):
            raise BadSignature("the trailer does not have the right signature")

    def _step(self, content: bytearray) -> bool:
        """Read a line or the rest of a chunk; return False if more bytes are needed."""
        if self._left:
            part = self._buffer[: self._left]
            content += part
            if self._verifier is not None:
                self._verifier.update(part)
            del self._buffer[: len(part)]
            self._left -= len(part)
            self._wants_line_end = not self._left
            if self._wants_line_end:
                self._check_signature()
            return bool(part)
        line = self._line()
        if line is None:
            return False
        if self._wants_line_end:
            if line:
                raise BadChunk("a chunk is longer than its size")
            self._wants_line_end = False
        elif self._is_in_trailers:
            self._read_trailer(line)
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise BadChunk("a chunk does not begin with its size")
            self._left = int(match[1], 16)
            self._is_in_trailers = not self._left
            if self._verifier is not None:
                self._verifier.begin((match[2] or b"").decode("ascii"))
            if self._is_in_trailers:
                self._check_signature()
        return True

    def _check_signature(self) -> None:
        if self._verifier is not None and not self._verifier.is_right():
            raise BadSignature("a chunk does not have the right signature")

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > _MAX_LINE_BYTES or (end < 0 and len(self._buffer) > _MAX_LINE_BYTES):
            raise BadChunk("a line is too long")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self.is_complete = True
            return
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or len(self.trailers) >= _MAX_TRAILERS:
            raise BadChunk("a trailer is malformed")
        self.trailers[name.strip().lower()] = value.strip()
