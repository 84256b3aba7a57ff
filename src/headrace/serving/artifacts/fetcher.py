"""
Fetch the files of a model from object storage, over HTTP or from this disk; unpack, check and cache them.

A version that was fetched before (the same ETag, or size and modification time) is taken from the cache. A folder on
this disk is used in place.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.core.telemetry import get_logger
from headrace.serving.artifacts.archives import safe_path, unpack
from headrace.serving.artifacts.content_cache import ContentCache, content_key
from headrace.serving.artifacts.fetch_bounds import (
    Deadline,
    FetchFailed,
    Guard,
    NothingFound,
    copy_stream,
    sized_reader,
    translate_os_errors,
)
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ArtifactSource, GrantedObject, ObjectLocation, parse_location
from headrace_handler.stray_files import is_stray, listed

_ARCHIVE_ENDINGS: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_SINGLE_FILES: Final = (".gguf",)
_HTTP_CONNECT_S: Final = 10.0
_HTTP_READ_S: Final = 60.0
_MAX_NAME: Final = 100

MakeGuard = Callable[[Path], Guard]
"""Make the limits for a fetch into a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The folders with the fetched files of a model."""

    model: Path | None = None
    """The equivalent of `/opt/ml/model` in a container."""
    channels: dict[str, Path] = field(default_factory=dict)
    """The equivalents of `/opt/ml/additional-model-data-sources/<channel>`, by channel."""


class Fetcher:
    """Fetches the artifacts of one worker."""

    def __init__(
        self,
        *,
        objects: Callable[[Deadline], GrantedObjects],
        cache: ContentCache,
        scratch: Path,
        deadline: Deadline,
        make_guard: MakeGuard | None = None,
        follows_redirects: bool = True,
    ) -> None:
        """
        Prepare to fetch all sources within one deadline.

        `objects` opens the object storage; `scratch` is a folder of the worker, for links to single files on this disk;
        `make_guard` creates limits other than the defaults; `follows_redirects` is about http(s) URLs.
        """
        self._open_objects = objects
        self._follows_redirects = follows_redirects
        self._cache = cache
        self._scratch = scratch
        self._deadline = deadline
        self._make_guard = make_guard or (lambda folder: Guard(folder=folder, deadline=deadline))

    def fetch_all(self, sources: Sequence[ArtifactSource], *, may_be_empty: bool = False) -> Fetched:
        """
        Fetch all files of a model, or raise `FetchFailed`; partial downloads are removed.

        With `may_be_empty` a prefix without objects is accepted: the model then has no files of its own.
        """
        model: Path | None = None
        channels: dict[str, Path] = {}
        for source in sources:
            try:
                folder = self.fetch(source)
            except NothingFound:
                if source.channel is None and may_be_empty:
                    continue
                raise
            if source.channel is None:
                model = folder
            else:
                channels[source.channel] = folder
        return Fetched(model=model, channels=channels)

    def fetch(self, source: ArtifactSource) -> Path:
        """Fetch one source; returns the folder that holds its files."""
        started_s = time.monotonic()
        try:
            kind = urlsplit(source.uri).scheme
        except ValueError as error:
            raise FetchFailed(f"{source.uri!r} is not a valid URI: {error}.") from error
        if kind == "s3":
            folder = self._from_s3(source)
        elif kind in ("http", "https"):
            folder = self._from_http(source)
        elif kind in ("", "file"):
            folder = self._from_disk(source)
        else:
            raise FetchFailed(f"{redacted(source.uri)} begins with {kind}:; expected s3://, https:// or a path.")
        took_ms = round((time.monotonic() - started_s) * 1e3)
        get_logger().info("artifact.fetched", uri=redacted(source.uri), folder=str(folder), took_ms=took_ms)
        return folder

    def _from_s3(self, source: ArtifactSource) -> Path:
        location = parse_location(source.uri)
        objects = self._open_objects(self._deadline)
        try:
            if source.is_prefix:
                return self._from_prefix(objects, location)
            stored = objects.head(location)
            key = content_key("s3", objects.endpoint, source.uri, stored.etag, source.is_archive)
            if source.is_archive:
                return self._entry(key, source.uri, lambda folder: self._unpack_object(objects, stored, folder))
            single = {_file_name(location.key): stored}
            return self._entry(key, source.uri, lambda folder: self._download(objects, single, folder))
        finally:
            objects.close()

    def _from_prefix(self, objects: GrantedObjects, location: ObjectLocation) -> Path:
        prefix = folder_prefix(location.key)
        objects_by_name: dict[str, GrantedObject] = {}
        guard = self._make_guard(self._cache.folder)
        for stored in objects.list_prefix(ObjectLocation(location.bucket, prefix)):
            guard.add_file()
            name = str(safe_path(stored.location.key.removeprefix(prefix), str(location)))
            if name in objects_by_name:  # `a//b` and `a/b` are two objects
                raise FetchFailed(f"{location} has two objects for the file {name!r:.200}. Remove one of them.")
            if not is_stray(name):
                objects_by_name[name] = stored
        if not objects_by_name:
            raise NothingFound(
                f"There are no objects below {location}. Check S3Uri and that the files were uploaded, or name a model "
                "in HF_MODEL_ID."
            )
        version = sorted((name, stored.etag, stored.num_bytes) for name, stored in objects_by_name.items())
        key = content_key("s3", objects.endpoint, str(location), version)
        return self._entry(
            key, location.key or location.bucket, lambda folder: self._download(objects, objects_by_name, folder)
        )

    def _unpack_object(self, objects: GrantedObjects, stored: GrantedObject, folder: Path) -> None:
        guard = self._make_guard(folder)
        guard.expect(stored.num_bytes)
        objects.read(stored, lambda read: unpack(read, folder, guard, name=str(stored.location)))

    def _download(self, objects: GrantedObjects, objects_by_name: dict[str, GrantedObject], folder: Path) -> None:
        guard = self._make_guard(folder)
        guard.expect(sum(stored.num_bytes for stored in objects_by_name.values()))
        for name, stored in objects_by_name.items():
            guard.add_file()
            target = folder / name
            with translate_os_errors(str(stored.location)):
                target.parent.mkdir(parents=True, exist_ok=True)
                objects.download(stored, target, guard.add_bytes)

    def _from_http(self, source: ArtifactSource) -> Path:
        import httpx

        name = redacted(source.uri)
        timeout = httpx.Timeout(_HTTP_READ_S, connect=_HTTP_CONNECT_S)
        try:
            with (
                httpx.Client(timeout=timeout, follow_redirects=self._follows_redirects, trust_env=True) as client,
                client.stream("GET", source.uri, headers={"Accept-Encoding": "identity"}) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise FetchFailed(
                        f"{name} returned status {response.status_code}; expected 200. Check the address."
                    )
                coding = response.headers.get("content-encoding", "identity")
                if coding != "identity" and not source.is_archive:
                    raise FetchFailed(
                        f"{name} returned the Content-Encoding {coding!r:.80}; expected the file as it is."
                    )
                version = response.headers.get("etag") or response.headers.get("last-modified") or time.time_ns()
                key = content_key(
                    "http", source.uri, version, response.headers.get("content-length"), source.is_archive
                )
                read = sized_reader(response.iter_raw(1 << 20).__next__)  # decoding has no bounds, `unpack` has
                return self._entry(key, source.uri, lambda folder: self._store(read, source, folder))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._deadline.check()
            reason = str(error) or type(error).__name__
            raise FetchFailed(f"{name} cannot be fetched: {reason}. Check the address and the network.") from error

    def _from_disk(self, source: ArtifactSource) -> Path:
        path = Path(unquote(urlsplit(source.uri).path) if source.uri.startswith("file:") else source.uri).expanduser()
        with translate_os_errors(str(path)):
            if path.is_dir():
                return path.resolve()
            if not path.is_file():
                raise FetchFailed(
                    f"{path} is neither a file nor a folder on this machine. Check ModelDataUrl or S3Uri."
                )
            if not source.is_archive and not path.name.endswith(_ARCHIVE_ENDINGS):
                return self._linked(path)
            facts = path.stat()
            key = content_key("disk", path.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino)
        return self._entry(key, source.uri, lambda folder: self._unpack_file(path, folder))

    def _linked(self, path: Path) -> Path:
        """Make a folder that contains only a link to the file."""
        folder = self._scratch / content_key(path.resolve())[:8]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = folder / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())
        return folder

    def _unpack_file(self, path: Path, folder: Path) -> None:
        with translate_os_errors(str(path)), path.open("rb") as file:
            unpack(file.read, folder, self._make_guard(folder), name=str(path))

    def _store(self, read: Callable[[int], bytes], source: ArtifactSource, folder: Path) -> None:
        guard = self._make_guard(folder)
        if source.is_archive:
            unpack(read, folder, guard, name=redacted(source.uri))
            return
        with translate_os_errors(redacted(source.uri)):
            copy_stream(read, folder / _file_name(urlsplit(source.uri).path), guard)

    def _entry(self, key: str, uri: str, fill: Callable[[Path], None]) -> Path:
        """Return the cached folder for a key, named after the source: models are named by their folder."""
        name = _folder_name(uri)

        def fill_named(folder: Path) -> None:
            (folder / name).mkdir(mode=0o755)
            fill(folder / name)

        return self._cache.entry(key, fill_named, self._deadline) / name


def source_of(uri: str) -> ArtifactSource:
    """Return the source that a URI alone names: an archive, a single file, or else a folder."""
    is_archive = uri.endswith((".tar.gz", ".tgz"))
    return ArtifactSource(uri=uri, is_prefix=not is_archive and not uri.endswith(_SINGLE_FILES), is_archive=is_archive)


def folder_prefix(key: str) -> str:
    """Return the prefix of the keys below a key: `llama` does not contain `llama2/config.json`."""
    return key if not key or key.endswith("/") else f"{key}/"


def redacted(uri: str) -> str:
    """Return the URI without the parts that may be secret: user, password and query."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return uri
    host = parts.netloc.rpartition("@")[2]
    path = parts.path if host else parts.path.rpartition("@")[2]  # after too many slashes, the host is in the path
    return urlunsplit((parts.scheme, host, path, "", ""))


def _file_name(path: str) -> str:
    """Return the file name at the end of a key or URL."""
    name = unquote(PurePosixPath(path).name)
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FetchFailed(f"{path!r} does not end with a file name.")
    return name


def _folder_name(uri: str) -> str:
    """Return a short, safe name: that of the archive without its ending, or of the folder."""
    name = PurePosixPath(urlsplit(uri).path).name
    for ending in _ARCHIVE_ENDINGS:
        name = name.removesuffix(ending)
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)[:_MAX_NAME].strip(".")
    return kept if kept and len(os.fsencode(kept)) <= 2 * _MAX_NAME else hashlib.sha256(uri.encode()).hexdigest()[:8]


def model_root(folder: Path) -> Path:
    """Return the folder of fetched artifacts, or its only subfolder, as archives are often packed."""
    inner = listed(folder)
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else folder
