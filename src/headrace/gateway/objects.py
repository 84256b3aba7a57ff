"""Object storage for asynchronous invocations: the protocol, and its implementation for S3 by boto3."""

import asyncio
import re
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

_VIRTUAL_HOST = re.compile(r"^(?P<bucket>[^/]+?)\.s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")
_PATH_HOST = re.compile(r"^s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")

_TRY_AGAIN = frozenset({"RequestTimeout", "SlowDown", "Throttling", "TooManyRequests"})
"""Error codes of S3 below status 500 after which the same request can succeed."""


class ObjectFailed(Exception):
    """An object cannot be read or written; the message names it and the reason."""


class ObjectsUnavailable(ObjectFailed):
    """The object storage cannot be reached, or cannot serve now; the same call can succeed later."""


class ObjectStore(Protocol):
    """A store of objects with `s3://bucket/key` addresses. Its calls raise `ObjectFailed`."""

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        """Read an object of at most `max_bytes`."""
        ...

    async def put(self, uri: str, body: bytes, *, content_type: str) -> None:
        """Write an object."""
        ...


def split_uri(uri: str) -> tuple[str, str]:
    """
    Split `s3://bucket/key`, or the https URL of an object on AWS, into bucket and key.

    Raises:
        ObjectFailed: `uri` is neither.
    """
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


class S3Objects:
    """The objects of an S3 endpoint. boto3 is synchronous, so all calls run in threads."""

    def __init__(self, client_options: Mapping[str, Any]) -> None:
        """
        Prepare the store; the client is created on first use, as importing boto3 is slow.

        Args:
            client_options: options of `boto3.client("s3", ...)`: `endpoint_url`, `aws_access_key_id`, ...
        """
        self._options = dict(client_options)
        self._client: Any = None
        self._making = threading.Lock()

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        """Read an object."""
        return await asyncio.to_thread(self._get, uri, max_bytes)

    async def put(self, uri: str, body: bytes, *, content_type: str) -> None:
        """Write an object."""
        await asyncio.to_thread(self._put, uri, body, content_type)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    def _get(self, uri: str, max_bytes: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = split_uri(uri)
        try:
            response = self._s3().get_object(Bucket=bucket, Key=key)
            with response["Body"] as stream:
                if response["ContentLength"] > max_bytes:
                    raise ObjectFailed(f"{uri} has {response['ContentLength']} bytes; expected at most {max_bytes}.")
                body: bytes = stream.read()
        except (BotoCoreError, ClientError) as error:
            raise _failure_of(error, f"{uri} cannot be read: {error}") from error
        return body

    def _put(self, uri: str, body: bytes, content_type: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = split_uri(uri)
        try:
            self._s3().put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type)
        except (BotoCoreError, ClientError) as error:
            raise _failure_of(error, f"{uri} cannot be written: {error}") from error

    def _s3(self) -> Any:
        with self._making:  # a client may be used, but not created, in several threads at once
            if self._client is None:
                import boto3

                self._client = boto3.client("s3", **self._options)
        return self._client


def _failure_of(error: Exception, message: str) -> ObjectFailed:
    """Convert an error of botocore."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        is_unavailable = status >= 500 or error.response["Error"]["Code"] in _TRY_AGAIN
    else:
        temporary = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError)
        is_unavailable = isinstance(error, temporary)  # timeouts are among them
    return ObjectsUnavailable(message) if is_unavailable else ObjectFailed(message)
