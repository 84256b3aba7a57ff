"""
Buckets of AWS that notebooks read, where the platform has no bucket of that name or no such object.

JumpStart's bucket is made from the catalogue. The setting `public_buckets` names a source of the others: a folder with
a folder for each bucket, AWS itself (read without credentials), or a mirror of it. Nothing is written to them.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from starlette.responses import FileResponse, Response

from headrace.core.aws_buckets import is_of_aws, region_of
from headrace.core.telemetry import get_logger
from headrace.platform.control.jumpstart.catalogue import Catalogue, region_of_bucket
from headrace.platform.control.jumpstart.specs import bucket_content
from headrace.platform.storage.s3_signing import canonical_query
from headrace.serving.artifacts.sources import ArtifactSource
from headrace.serving.http.asgi import ASGIApp, Scope, headers_of
from headrace.serving.wire.aws.errors import AwsError

if TYPE_CHECKING:
    import httpcore
    import httpx

AWS: Final = "aws"
"""The value of `public_buckets` that reads AWS."""
_URL: Final = re.compile(r"https?://")
_FORWARDED: Final = ("range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_TIMEOUT_S: Final = 30.0
_MAX_KEYS: Final = 1000
"""Of one page of a list, as on S3."""


class PublicBuckets:
    """Reads objects and lists of AWS's public buckets from their sources."""

    def __init__(self, catalogue: Catalogue, source: str | None = None) -> None:
        self._catalogue = catalogue
        self._folder = folder_of(source)
        self._remote = source if source is not None and self._folder is None else None
        self._client: httpx.AsyncClient | None = None

    async def find(self, scope: Scope) -> "ASGIApp | httpcore.Response | None":
        """
        Return the response to a request that reads; None if no source has what it names.

        Raises `AwsError` if the source cannot be reached.
        """
        bucket, _, key = str(scope["path"]).lstrip("/").partition("/")
        if scope["method"] not in ("GET", "HEAD") or not is_of_aws(bucket):
            return None
        content = self._of_catalogue(bucket, key)
        if content is not None:
            return _response(scope, content, "application/json")
        if self._folder is not None:
            return await asyncio.to_thread(_from_folder, scope, self._folder / bucket, key)
        return await self._fetch(scope, bucket) if self._remote is not None else None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _of_catalogue(self, bucket: str, key: str) -> bytes | None:
        region = region_of_bucket(bucket)
        return None if region is None else bucket_content(self._catalogue.rows, key, region=region)

    async def _fetch(self, scope: Scope, bucket: str) -> "httpcore.Response":
        import httpcore
        import httpx

        assert self._remote is not None
        if self._client is None:
            self._client = await asyncio.to_thread(httpx.AsyncClient, timeout=_TIMEOUT_S, follow_redirects=True)
        path = scope["raw_path"].decode("latin-1").lstrip("/").removeprefix(bucket)
        query = canonical_query(scope["query_string"].decode("latin-1"), without=SIGNATURE_PARAMETERS)
        url = f"{base_url(self._remote, bucket)}{path or '/'}{'?' if query else ''}{query}"
        given = headers_of(scope)
        headers = {name: given[name] for name in _FORWARDED if name in given} | {"accept-encoding": "identity"}
        try:
            request = self._client.build_request(scope["method"], url, headers=headers)
            response = await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            message = f"{bucket} is read from {base_url(self._remote, bucket)}, which cannot be reached: {reason}."
            raise AwsError(
                "ServiceUnavailable", f"{message} Check the network, or public_buckets.", status=503
            ) from None
        get_logger().info("storage.public_bucket_read", url=url.partition("?")[0], status=response.status_code)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return httpcore.Response(response.status_code, headers=response.headers.raw, content=response.stream)


SIGNATURE_PARAMETERS: Final = (
    *("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders"),
    *("x-amz-signature", "x-amz-security-token"),
    *("awsaccesskeyid", "signature", "expires"),
)
"""Parameters of presigned URLs, which another server must not get."""


def folder_of(source: str | None) -> Path | None:
    """Return the folder that the setting `public_buckets` names; None for AWS, a mirror and nothing."""
    return None if source is None or source == AWS or _URL.match(source) else Path(source).expanduser().absolute()


def base_url(source: str, bucket: str) -> str:
    """Return the URL of a bucket at AWS or at a mirror, without a slash at the end."""
    if source != AWS:
        return f"{source.rstrip('/')}/{bucket}"
    region = region_of(bucket)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{bucket}.s3.{f'{region}.' if region else ''}{domain}"


def _response(scope: Scope, body: bytes, media_type: str) -> Response:
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
    headers = {"etag": f'"{digest}"', "last-modified": formatdate(0, usegmt=True), "content-length": str(len(body))}
    return Response(b"" if scope["method"] == "HEAD" else body, media_type=media_type, headers=headers)


def _from_folder(scope: Scope, folder: Path, key: str) -> ASGIApp | None:
    """Return the response for an object or a list from the folder of a bucket; None if it does not exist."""
    if not folder.is_dir():
        return None
    if not key:
        params = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        return _response(scope, list_objects(folder, params), "application/xml")
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
        return None
    path = folder / key
    return FileResponse(path) if path.is_file() else None


def list_objects(folder: Path, params: Mapping[str, str]) -> bytes:
    """Return the result of ListObjects, or of ListObjectsV2, over the files of a folder."""
    if "location" in params:
        return b'<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
    after = params.get("continuation-token") or params.get("start-after") or params.get("marker") or ""
    text = params.get("max-keys", "")
    size = min(int(text), _MAX_KEYS) if text.isascii() and text.isdigit() and len(text) < 5 else _MAX_KEYS
    entries = _entries(folder, params.get("prefix", ""), params.get("delimiter", ""), after)
    page = list(islice(entries, size + 1))
    is_truncated, page = len(page) > size, page[:size]
    last = page[-1][0] if page and is_truncated else ""
    parts = [
        f"<Name>{escape(folder.name)}</Name><Prefix>{escape(params.get('prefix', ''))}</Prefix>",
        f"<MaxKeys>{size}</MaxKeys><KeyCount>{len(page)}</KeyCount>",
        f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>",
        *(f"<{name}>{escape(last)}</{name}>" for name in ("NextContinuationToken", "NextMarker") if last),
        *(_entry(name, path) for name, path in page),
    ]
    body = "".join(parts)
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{body}</ListBucketResult>'.encode()


def _entries(folder: Path, prefix: str, delimiter: str, after: str) -> Iterator[tuple[str, Path | None]]:
    """Yield keys with their files, and common prefixes without, in the order of S3."""
    keys = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    seen = ""
    for key in sorted(keys, key=lambda name: name.encode(errors="surrogateescape")):
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if end < 0 else key[: end + len(delimiter)]
        if key.startswith(prefix) and name > after and name != seen:
            seen = name
            yield name, keys[key] if end < 0 else None


def _entry(name: str, path: Path | None) -> str:
    if path is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    facts = path.stat()
    modified = datetime.fromtimestamp(facts.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    etag = f"&quot;{facts.st_mtime_ns:x}-{facts.st_size:x}&quot;"
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{modified}</LastModified><ETag>{etag}</ETag>"
        f"<Size>{facts.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def public_source(artifact: ArtifactSource, *, source: str | None) -> ArtifactSource:
    """
    Return where a worker reads an artifact in a bucket of AWS: in the folder, or at a URL; any other one as it is.

    A prefix can be read from a folder only: a worker cannot list the objects below a URL.
    """
    bucket, _, key = artifact.uri.removeprefix("s3://").partition("/")
    if source is None or not artifact.uri.startswith("s3://") or not is_of_aws(bucket):
        return artifact
    folder = folder_of(source)
    if folder is None:
        return artifact if artifact.is_prefix else replace(artifact, uri=f"{base_url(source, bucket)}/{key}")
    path = folder / bucket / key
    is_there = ".." not in key.split("/") and path.exists()
    return replace(artifact, uri=str(path), is_prefix=False) if is_there else artifact
