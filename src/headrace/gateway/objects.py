"""Object storage for asynchronous invocations: the seam, and S3 by boto3."""

import asyncio
import re
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

_VIRTUAL_HOST = re.compile(r"^(?P<bucket>[^/]+?)\.s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")
_PATH_HOST = re.compile(r"^s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$")


class ObjectFailed(Exception):
    """An object cannot be read or written; the message says which and why."""


class ObjectStore(Protocol):
    """Objects by their `s3://bucket/key`."""

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        """Read an object of at most `max_bytes`. Raises `ObjectFailed`."""
        ...

    async def put(self, uri: str, body: bytes, *, content_type: str) -> None:
        """Write an object. Raises `ObjectFailed`."""
        ...


def split_uri(uri: str) -> tuple[str, str]:
    """
    Bucket and key of `s3://bucket/key`, or of the https URL of an object on AWS.

    Raises:
        ObjectFailed: it is neither.
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
        raise ObjectFailed(f"{uri} is not the place of an object. Wanted: s3://bucket/key.")
    if not bucket or not key:
        raise ObjectFailed(f"{uri} names no object. Wanted: s3://bucket/key.")
    return bucket, key


class S3Objects:
    """Any S3 endpoint. boto3 works in threads: it has no other way."""

    def __init__(self, client_options: Mapping[str, Any]) -> None:
        """
        Make the store; the client is made on first use, as importing boto3 takes a while.

        Args:
            client_options: of `boto3.client("s3", ...)`: `endpoint_url`, `aws_access_key_id`, `region_name`, ...
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
                    raise ObjectFailed(f"{uri} has {response['ContentLength']} bytes, at most {max_bytes} are taken.")
                body: bytes = stream.read()
        except (BotoCoreError, ClientError) as error:
            raise ObjectFailed(f"{uri} cannot be read: {error}") from error
        return body

    def _put(self, uri: str, body: bytes, content_type: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = split_uri(uri)
        try:
            self._s3().put_object(Bucket=bucket, Key=key, Body=body, ContentType=content_type)
        except (BotoCoreError, ClientError) as error:
            raise ObjectFailed(f"{uri} cannot be written: {error}") from error

    def _s3(self) -> Any:
        with self._making:  # making one is not safe in two threads at once, using one is
            if self._client is None:
                import boto3

                self._client = boto3.client("s3", **self._options)
        return self._client
