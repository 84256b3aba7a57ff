"""
Models in object storage: `s3://bucket/prefix` is copied into the store and compared with the bucket at every start.

boto3 finds keys, region and endpoint as in every AWS tool (`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_ENDPOINT_URL`, a
role ...). An interrupted download resumes where it stopped, unless the object has changed.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from headrace.core.aws_buckets import explain_missing_bucket
from headrace.core.errors import ModelNotFound
from headrace.core.progress import Progress
from headrace.core.telemetry import get_logger
from headrace.inference.models.gguf_file import split_parts
from headrace.inference.models.snapshots import choose_files, is_wanted_folder

SCHEME: Final = "s3://"
STORE_FOLDER: Final = "s3"
_MANIFEST: Final = ".headrace.json"
_LOCK: Final = ".lock"
_PARTIAL: Final = ".partial"
_PIECE_BYTES: Final = 4 << 20
_CONNECTIONS: Final = 8
_MAX_OBJECTS: Final = 10_000
_CONNECT_S: Final = 10.0
_READ_S: Final = 60.0
_ATTEMPTS: Final = 4
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_REASONS: Final = {
    "NoSuchBucket": "there is no such bucket",
    "NoSuchKey": "an object is gone",
    "AccessDenied": "access is denied; check the keys and the policy of the bucket",
    "InvalidAccessKeyId": "the access key is not known; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; fetch new credentials",
    "PreconditionFailed": "an object has changed during the download; try again",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
}


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    etag: str
    num_bytes: int


def fetch_from_s3(uri: str, home: Path, progress: Progress) -> Path:
    """
    Return the local copy of a model under an S3 prefix, or of a GGUF object, after downloading what has changed.

    If the storage cannot be reached, a complete copy is used as it is.

    Raises:
        ModelNotFound: there is no such model, no permission, no space or no network; the message says how to fix it.
    """
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    key = key.strip("/")
    if not bucket or not key:
        raise ModelNotFound(f"{uri} names no model; expected s3://BUCKET/PREFIX.", model=uri)
    folder = home / STORE_FOLDER / _folder_name(uri)
    client = _client(uri)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # One process at a time downloads into the folder.
        with (folder / _LOCK).open("w") as lock, _translated(uri):
            fcntl.flock(lock, fcntl.LOCK_EX)
            objects, copy = _find(client, bucket, key, uri), _Copy(folder, uri)
            missing = {name: entry for name, entry in objects.items() if not copy.has(name, entry)}
            if missing:
                _check_space(missing, copy, uri)
                copy.write(complete=False)
                _Download(client, bucket, copy, f"Downloading {uri}", progress).run(missing)
            copy.finish(objects)
    except _UnreachableError as exc:
        if not _manifest(folder).get("complete"):
            raise ModelNotFound(str(exc), model=uri) from exc
        get_logger().warning("model.storage_unreachable", message=f"{exc} Using the copy in {folder}.")
    except OSError as exc:
        raise ModelNotFound(f"{uri} cannot be stored in {folder}: {exc.strerror or exc}.", model=uri) from exc
    finally:
        client.close()
    name = Path(key).name
    return folder / name if name.endswith(".gguf") else folder


def stored_name(folder: Path) -> str:
    """Return the address that a folder of the store is a copy of."""
    return str(_manifest(folder).get("uri", folder.name))


class _UnreachableError(Exception):
    """The object storage did not answer."""


def _folder_name(uri: str) -> str:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    digest = hashlib.sha256(f"{endpoint} {uri.rstrip('/')}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", uri.removeprefix(SCHEME)).strip("-")[-80:]
    return f"{readable}-{digest}"


def _client(uri: str) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    is_local = endpoint is not None and urlsplit(endpoint).hostname in _LOCAL_HOSTS
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "path"} if endpoint else None,
        proxies={} if is_local else None,
    )
    try:
        session = boto3.Session()
        return session.client("s3", region_name=session.region_name or "us-east-1", config=config)
    except (BotoCoreError, ValueError) as exc:
        raise ModelNotFound(f"{uri} cannot be read: {exc}.", model=uri) from exc


def _find(client: Any, bucket: str, key: str, uri: str) -> dict[str, _Object]:
    """Return the objects of the model by the names of their files."""
    folder, _, name = key.rpartition("/")
    is_file = name.endswith(".gguf")
    prefix = f"{folder}/" if is_file and folder else "" if is_file else f"{key}/"
    found = {entry.key.removeprefix(prefix): entry for entry in _listed(client, bucket, prefix, uri, deep=not is_file)}
    if is_file:
        chosen = [part.name for part in split_parts(Path(name))]
        missing = [part for part in chosen if part not in found]
        if missing:
            raise ModelNotFound(f"{uri} does not exist: there is no s3://{bucket}/{prefix}{missing[0]}.", model=uri)
    elif not found:
        raise ModelNotFound(f"{uri} does not exist: no object has a key under {prefix}. Check bucket and prefix.")
    else:
        chosen = choose_files(found, uri)
    return {part: found[part] for part in chosen}


def _listed(client: Any, bucket: str, prefix: str, uri: str, *, deep: bool) -> Iterator[_Object]:
    """Yield the objects at the top of a prefix; with `deep`, also those of its folders that loaders read."""
    listing = client.get_paginator("list_objects_v2")
    folders: list[str] = []
    count = 0
    for page in listing.paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
        folders += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
        count += len(page.get("Contents", ()))
        _check_count(count + len(folders), uri)
        yield from _objects(page)
    for folder in folders if deep else ():
        if is_wanted_folder(folder.removeprefix(prefix).rstrip("/")):
            for page in listing.paginate(Bucket=bucket, Prefix=folder):
                count += len(page.get("Contents", ()))
                _check_count(count, uri)
                yield from _objects(page)


def _objects(page: Mapping[str, Any]) -> Iterator[_Object]:
    for entry in page.get("Contents", ()):
        yield _Object(entry["Key"], entry["ETag"], entry["Size"])


def _check_count(count: int, uri: str) -> None:
    if count > _MAX_OBJECTS:
        raise ModelNotFound(f"{uri} has more than {_MAX_OBJECTS} objects, so it is not the prefix of a model.")


class _Copy:
    """A folder of the store and its manifest: the ETags of its files, and whether the copy is complete."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self._uri = uri
        self._etags = {str(name): etag for name, etag in _manifest(folder).get("etags", {}).items()}
        self._writing = threading.Lock()

    def has(self, name: str, entry: _Object) -> bool:
        path = self.folder / name
        return self._etags.get(name) == entry.etag and path.is_file() and path.stat().st_size == entry.num_bytes

    def partial(self, name: str, entry: _Object) -> Path:
        """Return the file for a download of this version."""
        return self.folder / f"{name}.{hashlib.sha256(entry.etag.encode()).hexdigest()[:16]}{_PARTIAL}"

    def add(self, name: str, entry: _Object) -> None:
        """Move a complete download to its place and record its ETag."""
        with self._writing:
            self.partial(name, entry).replace(self.folder / name)
            self._etags[name] = entry.etag
            self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        temporary = self.folder / f"{_MANIFEST}{_PARTIAL}"
        temporary.write_text(json.dumps({"uri": self._uri, "etags": self._etags, "complete": complete}))
        temporary.replace(self.folder / _MANIFEST)

    def finish(self, objects: Mapping[str, _Object]) -> None:
        """Delete files that the model no longer has, and mark the copy as complete."""
        self._etags = {name: entry.etag for name, entry in objects.items()}
        kept = {self.folder / name for name in (*objects, _MANIFEST, _LOCK)}
        for path in list(self.folder.rglob("*")):
            if path not in kept and not path.is_dir():
                path.unlink()
        self.write(complete=True)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(values, dict) and isinstance(values.get("etags"), dict)
    return values if is_ours else {}


def _check_space(missing: Mapping[str, _Object], copy: _Copy, uri: str) -> None:
    parts = [(copy.partial(name, entry), entry) for name, entry in missing.items()]
    needed = sum(entry.num_bytes - (path.stat().st_size if path.exists() else 0) for path, entry in parts)
    free = shutil.disk_usage(copy.folder).free
    if needed > free:
        raise ModelNotFound(
            f"{uri} needs {needed // 1_000_000} MB in {copy.folder}, which has {free // 1_000_000} MB free. "
            "Free some space or set HEADRACE_HOME.",
            model=uri,
        )


class _Download:
    """A parallel download of objects; the first failure stops all of them."""

    def __init__(self, client: Any, bucket: str, copy: _Copy, task: str, progress: Progress) -> None:
        self._client = client
        self._bucket = bucket
        self._copy = copy
        self._task = task
        self._progress = progress
        self._counting = threading.Lock()
        self._stopped = threading.Event()
        self._done = self._total = 0

    def run(self, objects: Mapping[str, _Object]) -> None:
        self._total = sum(entry.num_bytes for entry in objects.values())
        self._count(0)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            futures = [pool.submit(self._fetch, name, entry) for name, entry in objects.items()]
            try:
                for future in futures:
                    future.result()
            finally:
                self._stopped.set()

    def _fetch(self, name: str, entry: _Object) -> None:
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        path = self._copy.partial(name, entry)
        path.parent.mkdir(exist_ok=True, parents=True)
        with path.open("ab") as file:
            if file.tell() > entry.num_bytes:
                file.seek(0)
                file.truncate()
            self._count(file.tell())
            for attempt in range(_ATTEMPTS):
                try:
                    self._append(file, entry)
                except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                    if attempt + 1 == _ATTEMPTS:
                        raise
        num_bytes = path.stat().st_size
        if num_bytes == entry.num_bytes:
            self._copy.add(name, entry)
        elif not self._stopped.is_set():
            raise ModelNotFound(
                f"The download of {entry.key} has {num_bytes} bytes; expected {entry.num_bytes}. Start again."
            )

    def _append(self, file: BinaryIO, entry: _Object) -> None:
        if self._stopped.is_set() or (start := file.tell()) == entry.num_bytes:
            return
        response = self._client.get_object(
            Bucket=self._bucket, Key=entry.key, IfMatch=entry.etag, Range=f"bytes={start}-"
        )
        with closing(response["Body"]) as body:
            while not self._stopped.is_set() and (piece := body.read(_PIECE_BYTES)):
                file.write(piece)
                self._count(len(piece))

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self._done += num_bytes
            self._progress(self._task, min(self._done, self._total), self._total)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Turn errors of boto3 into errors that say how to fix them."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
    )
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as exc:
        details: dict[str, Any] = exc.response.get("Error", {})
        code, message = str(details.get("Code", "")), str(details.get("Message", "")).rstrip(".")
        why = explain_missing_bucket(uri.removeprefix(SCHEME).partition("/")[0]) if code == "NoSuchBucket" else None
        reason = f": {_REASONS.get(code, message or 'no reason was given')} ({code})."
        raise ModelNotFound(f"{uri} cannot be read{reason if why is None else f' ({code}): {why}'}", model=uri) from exc
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as exc:
        raise ModelNotFound(
            f"{uri} cannot be read: {str(exc).rstrip('.')}. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role.",
            model=uri,
        ) from exc
    except (BotoCoreError, HTTPError) as exc:
        raise _UnreachableError(
            f"{uri} cannot be read: {str(exc).rstrip('.')}. Check the network, AWS_REGION and AWS_ENDPOINT_URL."
        ) from exc
