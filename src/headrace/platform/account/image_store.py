"""
Images of containers as files: blobs by digest, and for each repository manifests and tags.

Files appear at once, complete and verified, so that a kill leaves no broken image. A blob belongs to no repository:
images share layers. Blobs that no manifest names are removed once they are a day old. Machines may share the files
(`core.files`), but for uploads that have not ended. All methods block on files.
"""

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.files import Files

MAX_MANIFEST_BYTES: Final = 4 << 20
"""Source: OCI distribution specification, "Pushing manifests"."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_UPLOAD: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_KEPT_S: Final = 86_400.0
"""Age at which unfinished uploads and blobs without a manifest are removed."""
_BLOCK_BYTES: Final = 1 << 20


class BadImage(ValueError):
    """A push that is not accepted; `code` is that of the specification."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    media_type: str
    body: bytes
    pushed_s: float

    @property
    def digest(self) -> str:
        return digest_of(self.body)

    @property
    def num_bytes(self) -> int:
        """Size of the image: its configuration and its layers."""
        return sum(int(part.get("size", 0)) for part in _parts(self.body, "config", "layers"))


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


class ImageStore:
    def __init__(self, files: Files, *, now_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._blobs = files.root / "blobs"
        self._uploads = files.root / "uploads"
        self._repositories = files.root / "repositories"
        self._now_s = now_s

    def has_blob(self, digest: str) -> bool:
        return is_digest(digest) and self._files.has(self._blobs / digest.partition(":")[2])

    def blob(self, digest: str) -> Path | None:
        """Return the file of a blob; None if there is none."""
        if not is_digest(digest):
            return None
        try:
            return self._files.fetch(self._blobs / digest.partition(":")[2])
        except FileNotFoundError:
            return None

    def begin_upload(self) -> str:
        """Begin the upload of a blob and return its id; remove uploads that were given up."""
        self._uploads.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._uploads.iterdir():
            if self._is_old(path.stat().st_mtime):
                path.unlink(missing_ok=True)
        upload = uuid.uuid4().hex
        (self._uploads / upload).touch(mode=0o600)
        return upload

    def upload_size(self, upload: str) -> int | None:
        """Return the number of bytes that have arrived; None: there is no such upload."""
        path = self._uploads / upload
        return path.stat().st_size if _UPLOAD.fullmatch(upload) and path.is_file() else None

    def append(self, upload: str, content: bytes) -> None:
        """Add bytes to an upload. Raises `OSError`."""
        with os.fdopen(os.open(self._uploads / upload, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(content)

    def finish_upload(self, upload: str, digest: str) -> None:
        """Make a blob of an upload. Raises `BadImage`: it has another digest."""
        path, found = self._uploads / upload, hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                found.update(block)
            os.fsync(file.fileno())
        if f"sha256:{found.hexdigest()}" != digest:
            path.unlink(missing_ok=True)
            raise BadImage("DIGEST_INVALID", f"The upload has the digest sha256:{found.hexdigest()}.")
        blob = self._files.folder(self._blobs) / found.hexdigest()
        path.rename(blob)
        self._files.keep(blob)

    def cancel_upload(self, upload: str) -> None:
        (self._uploads / upload).unlink(missing_ok=True)

    def put_manifest(self, repository: str, reference: str, media_type: str, body: bytes) -> str:
        """Store a manifest under its digest, and under a tag if `reference` is one. Raises `BadImage`."""
        digest = digest_of(body)
        if not (_TAG.fullmatch(reference) or reference == digest):
            raise BadImage("DIGEST_INVALID", f"The manifest has the digest {digest}; its reference is {reference}.")
        for part in _parts(body, "config", "layers"):
            if not self.has_blob(str(part.get("digest"))) and not part.get("urls"):
                raise BadImage("MANIFEST_BLOB_UNKNOWN", f"The blob {part.get('digest')} was not uploaded.")
        for part in _parts(body, "manifests"):
            if self.manifest(repository, str(part.get("digest"))) is None:
                raise BadImage("MANIFEST_BLOB_UNKNOWN", f"The manifest {part.get('digest')} was not uploaded.")
        stored = Manifest(media_type=media_type, body=body, pushed_s=self._now_s())
        folder = self._folder(repository)
        self._files.write(folder / "manifests" / digest.partition(":")[2], msgspec.json.encode(stored))
        if reference != digest:
            self._files.write(folder / "tags" / reference, digest.encode())
        return digest

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return a manifest by its tag or its digest."""
        digest = reference if is_digest(reference) else self.tags(repository, only=reference).get(reference, "")
        if not is_digest(digest):
            return None
        content = self._files.read(self._folder(repository) / "manifests" / digest.partition(":")[2])
        return None if content is None else msgspec.json.decode(content, type=Manifest)

    def tags(self, repository: str, *, only: str | None = None) -> dict[str, str]:
        """Return the digests of tags, by tag; with `only`, of that one."""
        folder = self._folder(repository) / "tags"
        names = sorted(self._files.names(folder)) if only is None else [only] if _TAG.fullmatch(only) else []
        found = self._files.read_many([folder / name for name in names])
        return {path.name: content.decode() for path, content in found.items()}

    def manifests(self, repository: str) -> Mapping[str, Manifest]:
        """Return all manifests by digest."""
        folder = self._folder(repository) / "manifests"
        contents = self._files.read_many([folder / name for name in self._files.names(folder)])
        found = (msgspec.json.decode(content, type=Manifest) for content in contents.values())
        return {manifest.digest: manifest for manifest in found}

    def delete(self, repository: str, reference: str) -> bool:
        """Delete a tag, or a manifest with all its tags; return False if it does not exist."""
        folder = self._folder(repository)
        if not is_digest(reference):
            is_there = bool(self.tags(repository, only=reference))
            if is_there:
                self._files.remove(folder / "tags" / reference)
            return is_there
        path = folder / "manifests" / reference.partition(":")[2]
        if self._files.read(path) is None:
            return False
        for tag, digest in self.tags(repository).items():
            if digest == reference:
                self._files.remove(folder / "tags" / tag)
        self._files.remove(path)
        self._remove_unused()
        return True

    def delete_repository(self, repository: str) -> None:
        for digest in self.manifests(repository):
            self.delete(repository, digest)

    def _remove_unused(self) -> None:
        """Remove blobs that no manifest of any repository names, unless they have just been uploaded."""
        names = self._files.names(self._repositories)
        used = {
            str(part.get("digest"))
            for name in names
            for manifest in self.manifests(name).values()
            for part in _parts(manifest.body, "config", "layers")
        }
        for name, stored_s in self._files.contents(self._blobs).items():
            if f"sha256:{name}" not in used and self._is_old(stored_s):
                self._files.discard(self._blobs / name)

    def _is_old(self, stored_s: float) -> bool:
        return self._now_s() - stored_s > _KEPT_S

    def _folder(self, repository: str) -> Path:
        return self._repositories / repository.replace("/", "~")


NO_IMAGES: Final = ImageStore(Files(Path(os.devnull)))


def _parts(body: bytes, *names: str) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptors in a manifest. Raises `BadImage`: it is none."""
    try:
        manifest = json.loads(body)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise BadImage("MANIFEST_INVALID", "The manifest is no JSON object.")
    for name in names:
        value = manifest.get(name) or []
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict) or not isinstance(part.get("size", 0), int):
                raise BadImage("MANIFEST_INVALID", f"{name} of the manifest has something else than descriptors.")
            yield part
