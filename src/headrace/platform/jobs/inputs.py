"""
The input objects of a job: which there are, where their outputs go, and their content, split into request bodies.

An output has the key of its input below the prefix, with the suffix `.out`. Source: SageMaker developer guide, "Use
batch transform to get inferences from large datasets".
"""

import json
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from headrace.platform.gateway.objects import FoundObject, retry_unavailable, split_uri
from headrace.platform.jobs.splitting import InputBroken, Splitter
from headrace.platform.state.records import Json

PART_BYTES: Final = 4 << 20
"""Bytes of an object that are read at once: each by a request of its own, as a slow model would outlast one stream."""
_MAX_MANIFEST_BYTES: Final = 32 << 20
MAX_SAMPLE_BYTES: Final = 64 << 20
"""Bytes of sample payloads or of a data set, unpacked: they are kept in memory."""
_GZIP: Final = 31
"""`wbits` of zlib for gzip."""


class Objects(Protocol):
    """The part of an object storage that a job needs."""

    async def get(self, uri: str, *, max_bytes: int) -> bytes: ...
    async def list(self, bucket: str, prefix: str) -> Sequence[FoundObject]: ...
    async def part(self, uri: str, *, first: int, num_bytes: int, etag: str) -> bytes: ...
    async def put(self, uri: str, body: bytes | BinaryIO, *, content_type: str) -> None: ...


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """An input object as it was listed, and the address of its output."""

    uri: str
    output_uri: str
    num_bytes: int
    etag: str


def read_samples(folder: Path, pattern: str, uri: str) -> list[bytes]:
    """Return the contents of the files that match below a folder. Raises `InputBroken`: they are too large."""
    found = [path for path in sorted(folder.rglob(pattern)) if path.is_file()]
    if (num_bytes := sum(path.stat().st_size for path in found)) > MAX_SAMPLE_BYTES:
        raise InputBroken(f"The files of {uri} have {num_bytes} bytes; expected at most {MAX_SAMPLE_BYTES}.")
    return [path.read_bytes() for path in found]


async def find_inputs(members: Json, objects: Objects) -> list[InputFile]:
    """List the inputs of a job once. Raises `ObjectFailed`, or `InputBroken` if there are none or their list is bad."""
    source = members["TransformInput"]["DataSource"]["S3DataSource"]
    uri, output = source["S3Uri"], members["TransformOutput"]["S3OutputPath"].rstrip("/")
    if source["S3DataType"] == "ManifestFile":
        read = partial(objects.get, uri, max_bytes=_MAX_MANIFEST_BYTES)
        folder, names = _manifest(await retry_unavailable(read))
        bucket, prefix = _bucket_and_prefix(folder)
        wanted = [(prefix + name, name) for name in names]
        listed = {found.key: found for found in await retry_unavailable(partial(objects.list, bucket, prefix))}
        if missing := [key for key, _ in wanted if key not in listed]:
            raise InputBroken(f"The manifest {uri} names s3://{bucket}/{missing[0]}, which does not exist.")
        chosen = [(listed[key], name) for key, name in wanted]
    else:
        bucket, prefix = _bucket_and_prefix(uri)
        listing = await retry_unavailable(partial(objects.list, bucket, prefix))
        chosen = [(found, _below(prefix, found.key)) for found in listing if not found.key.endswith("/")]
    if not chosen:
        raise InputBroken(f"No objects found under {uri}.")
    return [
        InputFile(
            uri=f"s3://{bucket}/{found.key}",
            output_uri=f"{output}/{name}.out",
            num_bytes=found.num_bytes,
            etag=found.etag,
        )
        for found, name in chosen
    ]


def _below(prefix: str, key: str) -> str:
    """Return a key relative to a prefix, or to its folder if the prefix ends in the middle of a name."""
    rest = key[len(prefix) :]
    if rest.startswith("/") or (rest and (prefix.endswith("/") or not prefix)):
        return rest.lstrip("/")
    return key[prefix.rfind("/") + 1 :]


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    bucket, key = split_uri(f"{uri.rstrip('/')}/*")  # which refuses an address without a key
    prefix = key.removesuffix("/*").removesuffix("*")
    return bucket, f"{prefix}/" if uri.endswith("/") and prefix else prefix


def _manifest(content: bytes) -> tuple[str, list[str]]:
    """Return prefix and relative names of `[{"prefix": "s3://bucket/folder/"}, "name", ...]`."""
    try:
        first, *names = json.loads(content)
        prefix = first["prefix"]
    except (ValueError, TypeError, LookupError, RecursionError):
        prefix, names = None, []
    if not isinstance(prefix, str) or not all(isinstance(name, str) and name for name in names):
        raise InputBroken('The manifest is malformed; expected [{"prefix": "s3://bucket/folder/"}, "name", ...].')
    return prefix, list(dict.fromkeys(names))


async def read_bodies(file: InputFile, objects: Objects, splitter: Splitter, *, is_gzip: bool) -> AsyncIterator[bytes]:
    """Yield the bodies of the requests for an object, in its order. Raises `ObjectFailed` and `InputBroken`."""
    unpack = _Gunzip() if is_gzip else None
    for first in range(0, file.num_bytes, PART_BYTES):
        read = partial(objects.part, file.uri, first=first, num_bytes=PART_BYTES, etag=file.etag)
        part = await retry_unavailable(read)
        for piece in [part] if unpack is None else unpack.feed(part):
            for body in splitter.feed(piece):
                yield body
    if unpack is not None and not unpack.is_complete:
        raise InputBroken("It is not a complete gzip file.")
    for body in splitter.feed(b"", is_end=True):
        yield body


class _Gunzip:
    """Unpacks the members of a gzip file, at most `PART_BYTES` at once: a short file may be long when unpacked."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)

    @property
    def is_complete(self) -> bool:
        return self._member.eof

    def feed(self, part: bytes) -> Iterator[bytes]:
        piece = b""
        while part or len(piece) == PART_BYTES:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            try:
                piece = self._member.decompress(part, PART_BYTES)
            except zlib.error as error:
                raise InputBroken(f"It is not a gzip file: {error}.") from None
            yield piece
            part = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof:
                piece = b""
