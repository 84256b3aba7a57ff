"""
The body of a request to S3 on its way through the proxy: how it is framed, and that it is what was signed.

Bodies pass in pieces. The last piece is held back until the whole was checked, so that the server behind never takes a
body for complete that is not the one that the client signed.
"""

import base64
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.http.asgi import Receive
from headrace.http.body import body_parts
from headrace.platform.aws_chunked import AwsChunkedReader, BadChunk
from headrace.platform.s3_signing import UNSIGNED_PAYLOAD
from headrace.wire.aws.errors import AwsError

UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_SIGNED_CHUNKS = re.compile(r"STREAMING-AWS4-[A-Z0-9]+-[A-Z0-9]+-PAYLOAD(-TRAILER)?")
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_TRAILER_DIGESTS: Mapping[str, Callable[[], _Digest]] = {
    "x-amz-checksum-crc32": _Crc32,
    "x-amz-checksum-sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "x-amz-checksum-sha256": hashlib.sha256,
}


@dataclass(frozen=True, slots=True)
class Upload:
    """What to send on."""

    headers: tuple[tuple[str, str], ...]
    """That frame the body."""
    payload_hash: str
    """`x-amz-content-sha256` of the request that is sent on."""
    body: AsyncIterator[bytes] | None
    """None: there is none."""


def open_upload(headers: Mapping[str, str], receive: Receive) -> Upload:
    """
    Find out how the body comes.

    Raises:
        AwsError: its length is not told, or not a number.
    """
    declared = headers.get("x-amz-content-sha256", "")
    if _SIGNED_CHUNKS.fullmatch(declared):
        return _open_signed_chunks(headers, receive)
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length")
    if not is_chunked and (length is None or _number(length) == 0):
        framing = (("content-length", "0"),) if length is not None else ()
        return Upload(framing, UNSIGNED_PAYLOAD, None)
    framing = (("transfer-encoding", "chunked"),) if is_chunked else (("content-length", str(length)),)
    if declared == UNSIGNED_TRAILER:
        return Upload((*framing, *_other_codings(headers)), UNSIGNED_TRAILER, _checked(receive, None))
    wanted = declared if _HEX_DIGEST.fullmatch(declared) else None
    return Upload(framing, UNSIGNED_PAYLOAD, _checked(receive, wanted))


def _open_signed_chunks(headers: Mapping[str, str], receive: Receive) -> Upload:
    """
    Take the chunk framing away.

    The signature of the request covers its headers; those of the chunks are not looked at, the checksum in the trailer
    is where there is one.
    """
    length = headers.get("x-amz-decoded-content-length")
    if length is None:
        raise AwsError("MissingContentLength", "x-amz-decoded-content-length is missing.", status=411)
    framing = (("content-length", str(_number(length))), *_other_codings(headers))
    trailer = headers.get("x-amz-trailer", "").strip().lower()
    return Upload(framing, UNSIGNED_PAYLOAD, _decoded(receive, _number(length), trailer))


def _other_codings(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """`Content-Encoding` of the object itself: servers keep what is there, and `aws-chunked` is only how it came."""
    codings = [name.strip() for name in headers.get("content-encoding", "").split(",")]
    rest = ",".join(name for name in codings if name and name.lower() != "aws-chunked")
    return (("content-encoding", rest),) if rest else ()


async def begun(upload: Upload) -> Upload:
    """
    Wait until the body has begun.

    Nothing of a request is sent on before: SeaweedFS 4.48 stores an empty object if a body breaks off before its
    first byte. A body of one piece has been checked then, too.

    Raises:
        AwsError: the body is not what was signed.
        ClientGone: nobody is there any more.
    """
    if upload.body is None:
        return upload
    first = await anext(upload.body, b"")
    return replace(upload, body=_joined(first, upload.body))


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def _checked(receive: Receive, wanted: str | None) -> AsyncIterator[bytes]:
    """The body as it is; the last piece after the digest was compared, if one is wanted."""
    digest = hashlib.sha256() if wanted is not None else None
    held = b""
    async for piece in body_parts(receive):
        if digest is not None:
            digest.update(piece)
        if held:
            yield held
        held = piece
    if digest is not None and digest.hexdigest() != wanted:
        raise AwsError(
            "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed."
        )
    if held:
        yield held


async def _decoded(receive: Receive, length: int, trailer: str) -> AsyncIterator[bytes]:
    """The content of the chunks; the last piece after length and checksum were compared."""
    reader, held, seen = AwsChunkedReader(), b"", 0
    digest = _TRAILER_DIGESTS[trailer]() if trailer in _TRAILER_DIGESTS else None
    try:
        async for piece in body_parts(receive):
            content = reader.feed(piece)
            if not content:
                continue
            seen += len(content)
            if seen > length:
                break
            if digest is not None:
                digest.update(content)
            if held:
                yield held
            held = content
        else:
            reader.finish()
    except BadChunk as error:
        raise AwsError("IncompleteBody", f"The body is not in the aws-chunked coding: {error}.") from error
    if seen != length:
        raise AwsError("IncompleteBody", f"The body has {seen} bytes or more, {length} were announced.")
    if digest is not None and base64.b64encode(digest.digest()).decode() != reader.trailers.get(trailer):
        raise AwsError("BadDigest", f"The {trailer} you specified did not match what we received.")
    if held:
        yield held


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise AwsError("InvalidArgument", f"The length of the body is {text!r}; wanted: a number of bytes.")
    return int(text)
