"""Object storage for asynchronous invocations: S3 by boto3."""

import asyncio
import itertools
import math
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import unquote

from headrace.core.aws_buckets import explain_missing_bucket
from headrace.core.telemetry import get_logger

_VIRTUAL_HOST = re.compile(r"^(?P<bucket>[^/]+?)\.s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")
_PATH_HOST = re.compile(r"^s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")

_TRY_AGAIN = frozenset({"RequestTimeout", "SlowDown", "Throttling", "TooManyRequests"})
"""Error codes of S3 below status 500 after which the same request can succeed."""

MAX_CALLS = 10
"""Calls at the same time; further ones wait for a thread. botocore keeps as many connections."""
_CONNECT_S = 5.0
_READ_S = 30.0
"""Longest silence of the storage. One that accepts a connection and never answers holds a thread for so long."""
_MAX_SINGLE_BYTES = 1 << 30
"""Larger files are uploaded in parts: S3 takes at most 5 GB at once."""
_ATTEMPTS = 2
"""The second attempt is for a kept connection that the storage has closed. Callers retry beyond that."""
RETRY_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a retry while the object storage is unavailable; the last one repeats."""

_T = TypeVar("_T")


UNTYPED: Final = "binary/octet-stream"
"""The content type of objects that were stored without one. Source: API reference of S3, PutObject."""


class ObjectFailed(Exception):
    """An object cannot be read or written; the message names it and the reason."""


class ObjectsUnavailable(ObjectFailed):
    """The object storage cannot be reached, or cannot serve now; the same call can succeed later."""


async def retry_unavailable(
    attempt: Callable[[], Awaitable[_T]], *, until_s: float = math.inf, now: Callable[[], float] = time.time
) -> _T:
    """
    Call the object storage, and retry while it is unavailable.

    Raises `ObjectFailed` if the call fails, or the storage is still unavailable at `until_s` on the clock `now`.
    """
    for pause_s in itertools.chain(RETRY_PAUSES_S, itertools.repeat(RETRY_PAUSES_S[-1])):
        try:
            return await attempt()
        except ObjectsUnavailable as error:
            if now() >= until_s:
                raise
            get_logger().warning("async.storage_unavailable", reason=str(error), retry_s=pause_s)
        await asyncio.sleep(pause_s)
    raise AssertionError("unreachable")


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of `s3://bucket/key`, or of an https URL on AWS; raise `ObjectFailed` for others."""
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    if scheme == "s3":
        bucket, key = host, path
    elif scheme == "https" and (virtual := _VIRTUAL_HOST.match(host)) is not None:
        bucket, key = virtual["bucket"], unquote(path)
    elif scheme == "https" and _PATH_HOST.match(host):
        bucket, _, key = unquote(path).partition("/")
    else:
        raise ObjectFailed(f"{uri} is not the address of an object; expected s3://bucket/key.")
    if not bucket or not key:
        raise ObjectFailed(f"{uri} has no bucket or no key; expected s3://bucket/key.")
    return bucket, key


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object of a listing; its ETag changes with its content."""

    key: str
    num_bytes: int
    etag: str


class S3Objects:
    """
    The objects of an S3 endpoint, with `s3://bucket/key` addresses. Calls raise `ObjectFailed`.

    boto3 is synchronous, so the calls run in threads. They are the store's own: a storage that hangs would occupy all
    threads of the event loop, which the rest of the program needs.
    """

    def __init__(self, client_options: Mapping[str, Any], *, own_bucket: str | None = None) -> None:
        """
        Prepare the store; the client is created on first use, as importing boto3 is slow.

        The options are those of `boto3.client("s3", ...)`; a `config` overrides the store's own timeouts and retries.
        Objects in `own_bucket`, the platform's, are refused: the addresses are those of clients.
        """
        self._options = dict(client_options)
        self._own_bucket = own_bucket
        self._client: Any = None
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="objects")

    async def describe(self, uri: str) -> tuple[int, str]:
        """Return the number of bytes of an object, and the content type that it was stored with, or an empty one."""
        found = await self._call("read", uri, lambda s3: _found(s3.head_object, uri))
        stored = found.get("ContentType", "")
        return int(found["ContentLength"]), "" if stored == UNTYPED else stored

    async def metadata(self, uri: str) -> Mapping[str, str]:
        """Return the metadata that an object was stored with."""
        found = await self._call("read", uri, lambda s3: _found(s3.head_object, uri))
        metadata: Mapping[str, str] = found.get("Metadata", {})
        return metadata

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        """Read an object of at most `max_bytes`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read, uri, max_bytes)

    def read(self, uri: str, max_bytes: int) -> bytes:
        """Read an object of at most `max_bytes`; blocks."""

        def get(s3: Any) -> bytes:
            response = _found(s3.get_object, uri)
            with response["Body"] as stream:
                if response["ContentLength"] > max_bytes:
                    raise ObjectFailed(f"{uri} has {response['ContentLength']} bytes; expected at most {max_bytes}.")
                body: bytes = stream.read()
                return body

        return self._run("read", uri, get)

    async def list(self, bucket: str, prefix: str) -> "Sequence[FoundObject]":
        """Return the objects whose keys begin with a prefix, by key."""

        def find(s3: Any) -> "list[FoundObject]":
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            return [
                FoundObject(key=entry["Key"], num_bytes=entry["Size"], etag=entry["ETag"])
                for page in pages
                for entry in page.get("Contents", ())
            ]

        return await self._call("listed", f"s3://{bucket}/{prefix or '*'}", find)

    async def part(self, uri: str, *, first: int, num_bytes: int, etag: str) -> bytes:
        """Read bytes of an object; fails if it was replaced since it was listed."""

        def get(s3: Any) -> bytes:
            bucket, key = split_uri(uri)
            span = f"bytes={first}-{first + num_bytes - 1}"
            with s3.get_object(Bucket=bucket, Key=key, Range=span, IfMatch=etag)["Body"] as stream:
                content: bytes = stream.read()
                return content

        return await self._call("read", uri, get)

    async def put(
        self, uri: str, body: bytes | BinaryIO, *, content_type: str, metadata: Mapping[str, str] = {}
    ) -> None:
        """Write an object; of a file all of its content."""

        def put(s3: Any) -> None:
            bucket, key = split_uri(uri)
            facts = {"ContentType": content_type, "Metadata": dict(metadata)}
            if not isinstance(body, bytes):
                num_bytes = body.seek(0, os.SEEK_END)
                body.seek(0)  # an earlier attempt may have read it
                if num_bytes > _MAX_SINGLE_BYTES:
                    s3.upload_fileobj(body, bucket, key, ExtraArgs=facts)
                    return
            s3.put_object(Bucket=bucket, Key=key, Body=body, **facts)

        await self._call("written", uri, put)

    async def close(self) -> None:
        """Cancel the calls that wait for a thread, and close the idle connections; running calls end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _call(self, verb: str, uri: str, use: Callable[[Any], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, verb, uri, use)

    def _run(self, verb: str, uri: str, use: Callable[[Any], _T]) -> _T:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _ = split_uri(uri)
        if bucket == self._own_bucket:
            raise ObjectFailed(f"{uri} is in the platform's own bucket. Use another one.")
        try:
            return use(self.client())
        except (BotoCoreError, ClientError) as error:
            raise _failure_of(error, f"{uri} cannot be {verb}: {error}", bucket) from error

    def client(self) -> Any:
        """Return boto3's client, whose calls block."""
        with self._making:  # a client may be used, but not created, in several threads at once
            if self._client is None:
                import boto3
                from botocore.config import Config

                config = Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    max_pool_connections=MAX_CALLS,
                    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                ).merge(self._options.get("config") or Config())
                self._client = boto3.client("s3", **{**self._options, "config": config})
        return self._client


def _found(read: Callable[..., Any], uri: str) -> Any:
    """Read an object by its key as it is given, or else percent-decoded, as `OutputLocation` encodes it."""
    from botocore.exceptions import ClientError

    bucket, key = split_uri(uri)
    try:
        return read(Bucket=bucket, Key=key)
    except ClientError as error:
        decoded = unquote(key)
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.NOT_FOUND or decoded == key:
            raise
    return read(Bucket=bucket, Key=decoded)


def _failure_of(error: Exception, message: str, bucket: str) -> ObjectFailed:
    """Convert an error of botocore; that of a missing object says what a bucket of AWS is."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        code = error.response["Error"]["Code"]  # the status for HEAD, whose response has no body
        why = explain_missing_bucket(bucket) if status == HTTPStatus.NOT_FOUND else None
        message = f"{message}. {why}" if why is not None else message
        is_unavailable = status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS or code in _TRY_AGAIN
    else:
        temporary = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError)
        is_unavailable = isinstance(error, temporary)  # timeouts are among them
    return ObjectsUnavailable(message) if is_unavailable else ObjectFailed(message)
