"""Read objects of an S3 service with its keys. The only module of this package that handles boto3's errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from headrace.core.aws_buckets import explain_missing_bucket
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed

_CONNECT_S: Final = 10.0
_READ_S: Final = 60.0
_ATTEMPTS: Final = 3
_MISSING: Final = {"404", "NoSuchKey", "NotFound"}
_DENIED: Final = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The bucket and key of an object, or of a prefix."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in the version that was found."""

    location: ObjectLocation
    etag: str
    num_bytes: int


class Objects(Protocol):
    """Objects of an S3 service, as far as the caller may read them. Methods raise `FetchFailed`."""

    @property
    def endpoint(self) -> str | None:
        """URL of the service; None: AWS."""
        ...

    def head(self, location: ObjectLocation) -> StoredObject:
        """Look up one object."""
        ...

    def list_prefix(self, location: ObjectLocation) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin with the location's key, without folder markers."""
        ...

    def read(self, stored: StoredObject, use: Callable[[Callable[[int], bytes]], None]) -> None:
        """Call `use` with a sequential reader of an object's bytes."""
        ...

    def download(self, stored: StoredObject, target: Path, count: Callable[[int], None]) -> None:
        """Download an object to a file; `count` gets the numbers of bytes, in any thread."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


OpenObjects = Callable[[Deadline], Objects]
"""Opens the object storage for a fetch with a deadline."""


class ObjectSource:
    """The objects of one S3 endpoint, read with one key pair."""

    def __init__(self, s3: dict[str, Any], deadline: Deadline) -> None:
        """
        Connect to an S3 service.

        Args:
            s3: `endpoint_url`, `access_key`, `secret_key`, `region`; boto3 resolves those that are missing.
            deadline: the deadline of the fetch.
        """
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=max(min(_READ_S, deadline.remaining_s()), 1.0),
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            s3={"addressing_style": "path"} if s3.get("endpoint_url") else None,
            proxies={} if is_local(s3.get("endpoint_url") or "") else None,
        )
        self.endpoint: str | None = s3.get("endpoint_url")
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
        """Look up one object."""
        with self._translate_errors(str(location)):
            facts = self._client.head_object(Bucket=location.bucket, Key=location.key)
        return StoredObject(location=location, etag=facts["ETag"], num_bytes=facts["ContentLength"])

    def list_prefix(self, location: ObjectLocation) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin with the location's key, without folder markers."""
        with self._translate_errors(str(location)):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=location.bucket, Prefix=location.key)
            for page in pages:
                self._deadline.check()
                for entry in page.get("Contents", ()):
                    if not entry["Key"].endswith("/"):
                        entry_location = ObjectLocation(location.bucket, entry["Key"])
                        yield StoredObject(location=entry_location, etag=entry["ETag"], num_bytes=entry["Size"])

    def read(self, stored: StoredObject, use: Callable[[Callable[[int], bytes]], None]) -> None:
        """Call `use` with a sequential reader of an object's bytes."""
        location = stored.location
        with self._translate_errors(str(location)):
            response = self._client.get_object(Bucket=location.bucket, Key=location.key, IfMatch=stored.etag)
            body = response["Body"]
            try:
                use(body.read)
            finally:
                body.close()

    def download(self, stored: StoredObject, target: Path, count: Callable[[int], None]) -> None:
        """Download an object to a file, large objects in parallel parts; `count` gets the bytes, in any thread."""
        location = stored.location
        with self._translate_errors(str(location)):
            self._client.download_file(location.bucket, location.key, str(target), Callback=count)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ClientError as error:
            details: dict[str, Any] = error.response.get("Error", {})
            text = refusal(str(details.get("Code", "")), str(details.get("Message", "")), name)
            raise FetchFailed(text) from error
        except (BotoCoreError, Boto3Error, HTTPError, ValueError) as error:
            self._deadline.check()
            reason = str(error).rstrip(".") or type(error).__name__
            raise FetchFailed(f"{name} cannot be read: {reason}. Can the object storage be reached?") from error


def parse_location(uri: str) -> ObjectLocation:
    """
    Parse `s3://bucket/key`.

    Raises:
        FetchFailed: `uri` has another form.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise FetchFailed(f"{uri!r} is not an address in object storage; expected s3://BUCKET/KEY.")
    return ObjectLocation(bucket, key)


def is_local(url: str) -> bool:
    """Return whether the URL is on this machine, so that no proxy is used."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def refusal(code: str, message: str, name: str) -> str:
    """Return the sentence for an error of S3 about the object or prefix `name`."""
    message = message.rstrip(".")
    why = explain_missing_bucket(name.removeprefix("s3://").partition("/")[0])
    if why is not None and code in {"NoSuchBucket", *_MISSING}:
        return f"{name} does not exist. {why}"
    if code == "NoSuchBucket":
        return f"{name} does not exist: there is no such bucket. Check ModelDataUrl or S3Uri."
    if code in _MISSING:
        return f"{name} does not exist. Check ModelDataUrl or S3Uri, and that the file was uploaded."
    if code in _DENIED:
        return f"Access to {name} is denied ({code}). Check the keys of the object storage and the bucket's policy."
    if code == "PreconditionFailed":
        return f"{name} has changed during the download. Try again."
    return f"{name} cannot be read: {message or 'no reason was given'} ({code})."
