"""Reads objects of an S3 service, for workers. The only file that knows boto3's errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.cluster.fetch_bounds import Deadline, FetchFailed
from headrace.state.records import Json

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

_CONNECT_S: Final = 10.0
_READ_S: Final = 60.0
_ATTEMPTS: Final = 3
_MISSING: Final = {"404", "NoSuchKey", "NotFound"}
_DENIED: Final = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """An address in object storage."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object, in the version that was found."""

    location: ObjectLocation
    etag: str
    num_bytes: int


class ObjectSource:
    """Objects behind one endpoint with one pair of keys."""

    def __init__(self, s3: Json, deadline: Deadline) -> None:
        """
        Connect to an S3 service.

        Args:
            s3: `endpoint_url`, `access_key`, `secret_key`, `region`; what is missing is found as boto3 does.
            deadline: of the fetch.
        """
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=max(min(_READ_S, deadline.remaining_s()), 1.0),
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            s3={"addressing_style": "path"} if s3.get("endpoint_url") else None,
            proxies={} if _is_here(s3.get("endpoint_url") or "") else None,
        )
        self._deadline = deadline
        with self._translate_errors("The object storage"):
            self._client = boto3.client(
                "s3",
                endpoint_url=s3.get("endpoint_url"),
                aws_access_key_id=s3.get("access_key"),
                aws_secret_access_key=s3.get("secret_key"),
                region_name=s3.get("region") or "us-east-1",
                config=config,
            )

    def head(self, location: ObjectLocation) -> StoredObject:
        """Find one object."""
        with self._translate_errors(str(location)):
            facts = self._client.head_object(Bucket=location.bucket, Key=location.key)
        return StoredObject(location=location, etag=facts["ETag"], num_bytes=facts["ContentLength"])

    def below(self, location: ObjectLocation) -> Iterator[StoredObject]:
        """All objects whose keys begin like the location's, without the markers of folders."""
        with self._translate_errors(str(location)):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=location.bucket, Prefix=location.key)
            for page in pages:
                self._deadline.check()
                for found in page.get("Contents", ()):
                    if not found["Key"].endswith("/"):
                        here = ObjectLocation(location.bucket, found["Key"])
                        yield StoredObject(location=here, etag=found["ETag"], num_bytes=found["Size"])

    def read(self, found: StoredObject, use: Callable[[Callable[[int], bytes]], None]) -> None:
        """Hand the reader of an object's bytes, front to back, to `use`."""
        location = found.location
        with self._translate_errors(str(location)):
            answer = self._client.get_object(Bucket=location.bucket, Key=location.key, IfMatch=found.etag)
            body = answer["Body"]
            try:
                use(body.read)
            finally:
                body.close()

    def download(self, found: StoredObject, target: Path, count: Callable[[int], None]) -> None:
        """Write an object to a file, large ones in parts side by side; `count` is told of bytes, in any thread."""
        location = found.location
        with self._translate_errors(str(location)):
            self._client.download_file(location.bucket, location.key, str(target), Callback=count)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ClientError as error:
            raise FetchFailed(_sentence(error, what)) from error
        except (BotoCoreError, Boto3Error, HTTPError, ValueError) as error:
            self._deadline.check()
            reason = str(error).rstrip(".") or type(error).__name__
            raise FetchFailed(f"{what} cannot be read: {reason}. Can the object storage be reached?") from error


def parse_location(uri: str) -> ObjectLocation:
    """
    Read `s3://bucket/key`.

    Raises:
        FetchFailed: it is something else.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise FetchFailed(f"{uri!r} is no address in object storage; wanted: s3://BUCKET/KEY.")
    return ObjectLocation(bucket, key)


def _is_here(url: str) -> bool:
    """On this machine no proxy stands between."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _sentence(error: "ClientError", what: str) -> str:
    facts: dict[str, Any] = error.response.get("Error", {})
    code, message = str(facts.get("Code", "")), str(facts.get("Message", "")).rstrip(".")
    if code == "NoSuchBucket":
        return f"{what} is not there: there is no such bucket. Check ModelDataUrl or S3Uri."
    if code in _MISSING:
        return f"{what} is not there. Check ModelDataUrl or S3Uri, and that the file was uploaded."
    if code in _DENIED:
        return f"{what} may not be read ({code}). Check the keys of the object storage and the bucket's policy."
    if code == "PreconditionFailed":
        return f"{what} was changed while it was read. Try again."
    return f"{what} cannot be read: {message or 'no reason was given'} ({code})."
