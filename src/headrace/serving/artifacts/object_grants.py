"""
Read the objects that the platform has granted to a worker, by URLs that are signed for them alone.

A worker has no keys of the object storage, so that code that runs beside it cannot read other objects with them.
"""

import os
import re
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headrace.core.aws_buckets import explain_missing_bucket
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed, sized_reader
from headrace.serving.artifacts.sources import GrantedObject, ObjectGrant, ObjectLocation

if TYPE_CHECKING:
    import httpx

_CONNECT_S: Final = 10.0
_READ_S: Final = 60.0
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.2
_PART_BYTES: Final = 16 << 20
_THREADS: Final = 4
_PIECE_BYTES: Final = 1 << 20
_MAX_ERROR_BYTES: Final = 64 << 10
_ELEMENT: Final = r"<{0}>([^<]*)</{0}>"
_MISSING: Final = {"404", "NoSuchKey", "NotFound"}
_DENIED: Final = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


class _Interrupted(FetchFailed):
    """The connection broke, or the service failed for a moment."""


class GrantedObjects:
    """The objects that were granted to a worker; each in the granted version only. Methods raise `FetchFailed`."""

    def __init__(self, grants: Sequence[ObjectGrant], deadline: Deadline) -> None:
        self._grants = {(grant.uri, grant.is_prefix): grant for grant in grants}
        self._deadline = deadline
        self.endpoint: str | None = next((grant.endpoint for grant in grants if grant.endpoint), None)
        self._client = None if self.endpoint is None else _client(self.endpoint)

    def head(self, location: ObjectLocation) -> GrantedObject:
        (found,) = self._grant(location, is_prefix=False).objects
        return found

    def list_prefix(self, location: ObjectLocation) -> Sequence[GrantedObject]:
        """Return all objects whose keys begin with the location's key, without folder markers."""
        return self._grant(location, is_prefix=True).objects

    def read(self, stored: GrantedObject, use: Callable[[Callable[[int], bytes]], None]) -> None:
        """Call `use` with a sequential reader of an object's bytes."""
        with closing(self._pieces(stored, 0, stored.num_bytes)) as pieces:
            use(sized_reader(lambda: next(pieces)))

    def download(self, stored: GrantedObject, target: Path, count: Callable[[int], None]) -> None:
        """Download an object to a file, large objects in parallel parts; `count` gets the bytes, in any thread."""
        with target.open("wb") as file, ThreadPoolExecutor(_THREADS) as threads:

            def download_part(start: int) -> None:
                with closing(self._pieces(stored, start, min(start + _PART_BYTES, stored.num_bytes))) as pieces:
                    for piece in pieces:
                        start += os.pwrite(file.fileno(), piece, start)
                        count(len(piece))

            parts = [threads.submit(download_part, start) for start in range(0, stored.num_bytes, _PART_BYTES)]
            try:
                for part in as_completed(parts):
                    part.result()
            finally:
                threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _grant(self, location: ObjectLocation, *, is_prefix: bool) -> ObjectGrant:
        grant = self._grants.get((str(location), is_prefix))
        if grant is None:
            raise FetchFailed(
                f"{location} may not be read by this worker: neither the model nor its Environment names it. Name it "
                "in ModelDataUrl, ModelDataSource, AdditionalModelDataSources or a variable of Environment."
            )
        if grant.error:
            raise FetchFailed(grant.error)
        return grant

    def _pieces(self, stored: GrantedObject, start: int, end: int) -> Generator[bytes, None, None]:
        """Yield the bytes of an object between two positions; after an interruption go on where it happened."""
        failures = 0
        while start < end:
            try:
                with self._stream(stored, start, end) as response:
                    for piece in response.iter_raw(_PIECE_BYTES):
                        start += len(piece)
                        yield piece
            except _Interrupted as error:
                reason = error
            else:
                reason = _Interrupted(f"{stored.location} cannot be read: it ended at byte {start} of {end}.")
            if start < end:
                self._deadline.check()
                failures += 1
                if failures == _ATTEMPTS:
                    raise reason
                time.sleep(_PAUSE_S * failures)

    @contextmanager
    def _stream(self, stored: GrantedObject, start: int, end: int) -> "Iterator[httpx.Response]":
        """Send a request for a part of an object, in the version that was granted."""
        import httpx

        assert self._client is not None, "there is a grant"
        headers = {"Accept-Encoding": "identity", "If-Match": stored.etag, "Range": f"bytes={start}-{end - 1}"}
        name = str(stored.location)
        try:
            with self._client.stream("GET", stored.url, headers=headers) as response:
                if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                    raise _Interrupted(_refused(response, name))
                is_whole = response.status_code == httpx.codes.OK and start == 0
                if response.status_code != httpx.codes.PARTIAL_CONTENT and not is_whole:
                    raise FetchFailed(_refused(response, name))
                yield response
        except httpx.HTTPError as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise _Interrupted(f"{name} cannot be read: {reason}. Can the object storage be reached?") from error


def _client(endpoint: str) -> "httpx.Client":
    import httpx

    bundle = os.environ.get("REQUESTS_CA_BUNDLE")
    return httpx.Client(
        timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S),
        verify=ssl.create_default_context(cafile=bundle) if bundle else True,
        trust_env=urlsplit(endpoint).hostname not in ("127.0.0.1", "localhost", "::1"),  # no proxy for this machine
        limits=httpx.Limits(max_connections=_THREADS),
    )


def _refused(response: "httpx.Response", name: str) -> str:
    body = b""
    for piece in response.iter_raw(_PIECE_BYTES):
        body += piece
        if len(body) > _MAX_ERROR_BYTES:
            break
    text = body.decode(errors="replace")
    code, message = (re.search(_ELEMENT.format(element), text) for element in ("Code", "Message"))
    return refusal(code[1] if code else f"status {response.status_code}", message[1] if message else "", name)


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
