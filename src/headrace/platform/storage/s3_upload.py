"""
Request bodies in the S3 proxy: their framing, and the check against the signature.

Bodies are forwarded in parts. The last part is held back until the whole body has been checked, so that the storage
never stores a complete body that differs from the one that the client signed.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.platform.storage.s3_signing import UNSIGNED_PAYLOAD
from headrace.serving.http.asgi import Receive, Scope
from headrace.serving.http.body import body_parts
from headrace.serving.wire.aws.chunk_signatures import ChunkVerifier
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.sigv4 import Identity

_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})(?:;(?:chunk-signature=([0-9a-f]{64})\Z)?[^\r\n]*)?")
_MAX_LINE_BYTES = 4096
_MAX_TRAILERS = 32


class BadChunk(ValueError):
    """The body is not in AWS's chunked coding; the message says where."""


class BadSignature(BadChunk):
    """A chunk, or the trailer, has another signature than its content."""


class AwsChunkedReader:
    r"""
    Decodes AWS's chunked coding (`Content-Encoding: aws-chunked`) from parts of any size; can verify the signatures.

    A chunk is `<size in hex>[;chunk-signature=...]\r\n<bytes>\r\n`; the one of size 0 is the last, trailers may follow.
    Source: "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks" in the Amazon
    S3 API reference.
    """

    def __init__(self, verifier: ChunkVerifier | None = None, *, signs_trailer: bool = False) -> None:
        """Prepare for a body; without a verifier the signatures of its chunks are not looked at."""
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
        """Decode the next bytes; return the content decoded so far and not yet returned. Raises `BadChunk`."""
        self._buffer += data
        content = bytearray()
        while not self.is_complete and self._step(content):
            pass
        if self.is_complete and self._buffer:
            raise BadChunk("there are bytes after the last chunk")
        return bytes(content)

    def finish(self) -> None:
        """Raise `BadChunk` unless the body is complete."""
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

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self.is_complete = True
            return
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or len(self.trailers) >= _MAX_TRAILERS:
            raise BadChunk("a trailer is malformed")
        self.trailers[name.strip().lower()] = value.strip()

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > _MAX_LINE_BYTES or (end < 0 and len(self._buffer) > _MAX_LINE_BYTES):
            raise BadChunk("a line is too long")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_SIGNED_CHUNKS = re.compile(r"STREAMING-AWS4-[A-Z0-9]+-[A-Z0-9]+-PAYLOAD(-TRAILER)?")
_SIGNED_PAYLOAD = "headrace.signed_payload"
_MAX_DIGITS = 18
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_EMPTY_DIGEST = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Upload:
    """A request body to forward, with its framing."""

    headers: tuple[tuple[str, str], ...]
    """Headers that frame the body."""
    payload_hash: str
    """The `x-amz-content-sha256` header of the forwarded request."""
    body: AsyncIterator[bytes] | None
    """The parts of the body; None if there is none."""


def set_signed_payload(scope: Scope, identity: Identity | None) -> None:
    """Pass on what the signature of a request says of its body, for `signed_payload_of`."""
    scope[_SIGNED_PAYLOAD] = identity


def signed_payload_of(scope: Scope) -> Identity | None:
    """Return what the signature of a request says of its body; None if no signature is required."""
    identity: Identity | None = scope.get(_SIGNED_PAYLOAD)
    return identity


def open_upload(headers: Mapping[str, str], receive: Receive, signed: Identity | None = None) -> Upload:
    """
    Read the framing of a request body, which `signed` describes if the request has a verified signature.

    Raises `AwsError` if its length is missing or not a number.
    """
    declared = headers.get("x-amz-content-sha256", "")
    if _SIGNED_CHUNKS.fullmatch(declared):
        return _open_signed_chunks(headers, receive, signed)
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length")
    expected = declared if _HEX_DIGEST.fullmatch(declared) else signed.body_sha256 if signed is not None else None
    if not is_chunked and (length is None or _number(length) == 0):
        if expected not in (None, _EMPTY_DIGEST):
            raise _other_digest()
        framing = (("content-length", "0"),) if length is not None else ()
        return Upload(framing, UNSIGNED_PAYLOAD, None)
    framing = (("transfer-encoding", "chunked"),) if is_chunked else (("content-length", str(length)),)
    if declared == UNSIGNED_TRAILER:
        return Upload((*framing, *_other_codings(headers)), UNSIGNED_TRAILER, _checked(receive, None))
    return Upload(framing, UNSIGNED_PAYLOAD, _checked(receive, expected))


def _open_signed_chunks(headers: Mapping[str, str], receive: Receive, signed: Identity | None) -> Upload:
    """Remove the chunk framing; verify the signatures of the chunks, and the checksum in the trailer."""
    length = headers.get("x-amz-decoded-content-length")
    if length is None:
        raise AwsError("MissingContentLength", "x-amz-decoded-content-length is missing.", status=411)
    framing = (("content-length", str(_number(length))), *_other_codings(headers))
    trailer = headers.get("x-amz-trailer", "").strip().lower()
    verifier = ChunkVerifier(signed.chunks) if signed is not None and signed.chunks is not None else None
    signs_trailer = headers["x-amz-content-sha256"].endswith("-TRAILER")
    reader = AwsChunkedReader(verifier, signs_trailer=signs_trailer)
    return Upload(framing, UNSIGNED_PAYLOAD, _decoded(receive, reader, _number(length), trailer))


def _other_codings(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the `Content-Encoding` of the object itself, without `aws-chunked`, which is only its framing."""
    codings = [name.strip() for name in headers.get("content-encoding", "").split(",")]
    rest = ",".join(name for name in codings if name and name.lower() != "aws-chunked")
    return (("content-encoding", rest),) if rest else ()


async def begun(upload: Upload) -> Upload:
    """
    Wait for the first part of the body before the request is forwarded.

    SeaweedFS 4.48 stores an empty object if the connection breaks before the first byte of the body. A body of one part
    has been checked by then, too. Raises `AwsError` if it is not the signed one, `ClientGone`.
    """
    if upload.body is None:
        return upload
    rest = upload.body
    first = await anext(rest, b"")

    async def joined() -> AsyncIterator[bytes]:
        yield first
        async for part in rest:
            yield part

    return replace(upload, body=joined())


async def _checked(receive: Receive, expected: str | None) -> AsyncIterator[bytes]:
    """Yield the body unchanged; the last part once its digest was compared, if one is expected."""
    digest = hashlib.sha256() if expected is not None else None
    held = b""
    async for part in body_parts(receive):
        if digest is not None:
            digest.update(part)
        if held:
            yield held
        held = part
    if digest is not None and digest.hexdigest() != expected:
        raise _other_digest()
    if held:
        yield held


def _other_digest() -> AwsError:
    message = "The provided 'x-amz-content-sha256' header does not match what was computed."
    return AwsError("XAmzContentSHA256Mismatch", message)


async def _decoded(receive: Receive, reader: AwsChunkedReader, length: int, trailer: str) -> AsyncIterator[bytes]:
    """Yield the content of the chunks; the last part once length and checksum were compared."""
    held, num_bytes = b"", 0
    checksum = _checksum_of(trailer)
    try:
        async for part in body_parts(receive):
            content = reader.feed(part)
            if not content:
                continue
            num_bytes += len(content)
            if num_bytes > length:
                break
            if checksum is not None:
                checksum.update(content)
            if held:
                yield held
            held = content
        else:
            reader.finish()
    except BadSignature as error:
        raise AwsError("SignatureDoesNotMatch", f"The body is not the signed one: {error}.", status=403) from error
    except BadChunk as error:
        raise AwsError("IncompleteBody", f"The body is not aws-chunked: {error}.") from error
    if num_bytes != length:
        raise AwsError(
            "IncompleteBody",
            f"The body has at least {num_bytes} bytes; expected {length} by x-amz-decoded-content-length.",
        )
    if checksum is not None and checksum.b64digest() != reader.trailers.get(trailer):
        raise AwsError("BadDigest", f"The {trailer} you specified did not match what we received.")
    if held:
        yield held


def _checksum_of(trailer: str) -> Any:
    """Return botocore's checksum for a trailer, to be updated; None if it has none."""
    from botocore.httpchecksum import Crc32Checksum, Sha1Checksum, Sha256Checksum  # 5 ms of a platform's start

    kinds = {
        "x-amz-checksum-crc32": Crc32Checksum,
        "x-amz-checksum-sha1": Sha1Checksum,
        "x-amz-checksum-sha256": Sha256Checksum,
    }
    return kinds[trailer]() if trailer in kinds else None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise AwsError("InvalidArgument", f"The length of the body is {text[:100]!r}; expected a number of bytes.")
    return int(text)
