"""
Grants workers the objects that their models name, by URLs that are signed for these objects alone.

The keys of the object storage stay in the platform's memory. A model is named in its definition, in a variable of its
environment, or in `serving.properties` and `model-config.yaml` among its files.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from headrace.core.errors import HeadraceError
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.storage.s3_signing import S3Access, presigned_url
from headrace.serving.artifacts.archives import unpack
from headrace.serving.artifacts.fetch_bounds import MAX_FILES, Deadline, FetchFailed, Guard
from headrace.serving.artifacts.fetcher import folder_prefix, source_of
from headrace.serving.artifacts.object_grants import GrantedObjects, refusal
from headrace.serving.artifacts.sources import (
    ArtifactSource,
    GrantedObject,
    ObjectGrant,
    ObjectLocation,
    parse_location,
)
from headrace.serving.settings.model_folder import MODEL_CONFIG_FILE, PROPERTIES_FILE, read_model_folder
from headrace.serving.settings.sources import names_model

_SCHEME: Final = "s3://"
_LIFETIME_S: Final = 24 * 3600
"""A worker may wait for free resources of a cluster before it fetches its files."""
_LIST_S: Final = 20.0
_CONNECT_S: Final = 10.0
_ATTEMPTS: Final = 3
_LATE: Final = "The object storage did not list the model's files within {timeout_s:g} s. Try again."
_MAX_READ_BYTES: Final = 1 << 20
"""Largest archive that is searched for the name of a model: one with `serving.properties` and code, without weights."""
_NAMING_FILES: Final = (PROPERTIES_FILE, MODEL_CONFIG_FILE)


@dataclass(frozen=True, slots=True)
class ObjectGrants:
    """Grants objects of one S3 server; see `cluster.object_grants.Grants`."""

    access: S3Access
    own_bucket: str | None = None
    """The platform's own bucket, of which nothing is granted."""
    now: Callable[[], float] = field(default=time.time)

    def for_worker(self, spec: WorkerSpec) -> tuple[ObjectGrant, ...]:
        """Return the grants for everything that a worker's specification and its model's files name."""
        if spec.containers:
            return tuple(grant for container in spec.containers for grant in self.for_worker(container))
        deadline = Deadline(_LIST_S, late=_LATE)
        named = [source_of(value) for value in map(str.strip, spec.environment.values()) if value.startswith(_SCHEME)]
        grants = {source: self._grant(source, deadline) for source in (*spec.artifacts, *named) if _is_stored(source)}
        # Without another server or a name in the environment, the model's own files decide which model is served.
        if not (spec.image or spec.command or names_model(spec.environment)):
            for uri in self._named_in_files(spec.artifacts, tuple(grants.values()), deadline):
                grants[source_of(uri)] = self._grant(source_of(uri), deadline)
        return tuple(grants.values())

    def for_uri(self, uri: str) -> ObjectGrant | None:
        """Return the grant for the artifacts of an adapter; None if they are not in object storage."""
        source = source_of(uri)
        return self._grant(source, Deadline(_LIST_S, late=_LATE)) if _is_stored(source) else None

    def _grant(self, source: ArtifactSource, deadline: Deadline) -> ObjectGrant:
        uri = source.uri
        try:
            location = parse_location(uri)
            if location.bucket == self.own_bucket:
                return ObjectGrant(uri=uri, is_prefix=source.is_prefix, error=f"{uri} is in the platform's own bucket.")
            if source.is_prefix:
                location = ObjectLocation(location.bucket, folder_prefix(location.key))
            uri = str(location)
            found = self._find(location, deadline, is_prefix=source.is_prefix)
        except FetchFailed as error:
            return ObjectGrant(uri=uri, is_prefix=source.is_prefix, error=str(error))
        sign = partial(presigned_url, self.access, bucket=location.bucket, now_s=self.now(), lifetime_s=_LIFETIME_S)
        objects = tuple(
            GrantedObject(
                location=ObjectLocation(location.bucket, key), etag=etag, num_bytes=num_bytes, url=sign(key=key)
            )
            for key, etag, num_bytes in found
        )
        endpoint = self.access.endpoint_url
        return ObjectGrant(uri=uri, is_prefix=source.is_prefix, endpoint=endpoint, objects=objects)

    def _find(self, location: ObjectLocation, deadline: Deadline, *, is_prefix: bool) -> list[tuple[str, str, int]]:
        """Return key, ETag and size of an object, or of all objects below a prefix, without folder markers."""
        with _translated("The object storage", deadline):
            client = _client(self.access, deadline)
        found: list[tuple[str, str, int]] = []
        with closing(client), _translated(str(location), deadline):
            if not is_prefix:
                facts = client.head_object(Bucket=location.bucket, Key=location.key)
                return [(location.key, facts["ETag"], facts["ContentLength"])]
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=location.bucket, Prefix=location.key)
            for page in pages:
                deadline.check()
                found += [
                    (entry["Key"], entry["ETag"], entry["Size"])
                    for entry in page.get("Contents", ())
                    if not entry["Key"].endswith("/")
                ]
                if len(found) > MAX_FILES:
                    raise FetchFailed(
                        f"There are more than {MAX_FILES} objects below {location}. Name the model's own prefix."
                    )
        return found

    def _named_in_files(
        self, sources: tuple[ArtifactSource, ...], grants: tuple[ObjectGrant, ...], deadline: Deadline
    ) -> list[str]:
        """Return the addresses in object storage that the model's own files name."""
        source = next((source for source in sources if source.channel is None), None)
        if source is None:
            return []
        try:
            with (
                tempfile.TemporaryDirectory(prefix="headrace-") as scratch,
                closing(GrantedObjects(grants, deadline)) as objects,
            ):
                folder = _fetch_naming_files(source, objects, Path(scratch), deadline)
                files = read_model_folder(folder)
        except (FetchFailed, HeadraceError, OSError):  # the worker reports it
            return []
        values = (value.strip() for value in (*files.properties.values(), *files.model_config.values()))
        return [value for value in values if value.startswith(_SCHEME)]


def _client(access: S3Access, deadline: Deadline) -> Any:
    import boto3
    from botocore.config import Config

    is_local = urlsplit(access.endpoint_url).hostname in ("127.0.0.1", "localhost", "::1")
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=max(deadline.remaining_s(), 1.0),
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        s3={"addressing_style": "path"},
        proxies={} if is_local else None,
    )
    return boto3.client("s3", **access.client_options(), config=config)


@contextmanager
def _translated(name: str, deadline: Deadline) -> Iterator[None]:
    """Translate boto3's errors about the object or prefix `name` to `FetchFailed`."""
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
        deadline.check()
        reason = str(error).rstrip(".") or type(error).__name__
        raise FetchFailed(f"{name} cannot be read: {reason}. Can the object storage be reached?") from error


def _is_stored(source: ArtifactSource) -> bool:
    return source.uri.startswith(_SCHEME)


def _fetch_naming_files(source: ArtifactSource, objects: GrantedObjects, scratch: Path, deadline: Deadline) -> Path:
    """Return a folder with the files that may name a model; other files are left out where that is possible."""
    guard = Guard(folder=scratch, deadline=deadline, unrationed_bytes=_MAX_READ_BYTES)
    if not _is_stored(source):
        path = Path(source.uri.removeprefix("file://"))
        if path.is_dir():
            return path
        if path.is_file() and path.stat().st_size <= _MAX_READ_BYTES:
            with path.open("rb") as file:
                unpack(file.read, scratch, guard, name=str(path))
        return scratch
    location = parse_location(source.uri)
    if source.is_prefix:
        prefix = ObjectLocation(location.bucket, folder_prefix(location.key))
        for stored in objects.list_prefix(prefix):
            is_naming = stored.location.key.rpartition("/")[2] in _NAMING_FILES
            if not is_naming or stored.num_bytes > _MAX_READ_BYTES:
                continue
            target = scratch / stored.location.key.removeprefix(prefix.key)
            target.parent.mkdir(parents=True, exist_ok=True)
            objects.download(stored, target, guard.add_bytes)
    elif source.is_archive and (stored := objects.head(location)).num_bytes <= _MAX_READ_BYTES:
        objects.read(stored, lambda read: unpack(read, scratch, guard, name=str(location)))
    return scratch
