"""
Images of containers as files: blobs by digest, and for each repository manifests and tags.

Files appear by renaming, complete and verified, so that a kill leaves no broken image. A blob belongs to no repository:
images share layers. Blobs that no manifest names are removed once they are a day old. All methods block on files.
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
    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._blobs = folder / "blobs"
        self._uploads = folder / "uploads"
        self._repositories = folder / "repositories"
        self._now_s = now_s

    def blob(self, digest: str) -> Path | None:
        """Return the file of a blob; None if there is none."""
        path = self._blobs / digest.partition(":")[2]
        return path if is_digest(digest) and path.is_file() else None

    def begin_upload(self) -> str:
        """Begin the upload of a blob and return its id; remove uploads that were given up."""
        self._uploads.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._uploads.iterdir():
            if self._is_old(path):
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
        self._blobs.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.rename(self._blobs / found.hexdigest())

    def cancel_upload(self, upload: str) -> None:
        (self._uploads / upload).unlink(missing_ok=True)

    def put_manifest(self, repository: str, reference: str, media_type: str, body: bytes) -> str:
        """Store a manifest under its digest, and under a tag if `reference` is one. Raises `BadImage`."""
        digest = digest_of(body)
        if not (_TAG.fullmatch(reference) or reference == digest):
            raise BadImage("DIGEST_INVALID", f"The manifest has the digest {digest}; its reference is {reference}.")
        for part in _parts(body, "config", "layers"):
            if self.blob(str(part.get("digest"))) is None and not part.get("urls"):
                raise BadImage("MANIFEST_BLOB_UNKNOWN", f"The blob {part.get('digest')} was not uploaded.")
        for part in _parts(body, "manifests"):
            if self.manifest(repository, str(part.get("digest"))) is None:
                raise BadImage("MANIFEST_BLOB_UNKNOWN", f"The manifest {part.get('digest')} was not uploaded.")
        stored = Manifest(media_type=media_type, body=body, pushed_s=self._now_s())
        folder = self._folder(repository)
        _write(folder / "manifests" / digest.partition(":")[2], msgspec.json.encode(stored))
        if reference != digest:
            _write(folder / "tags" / reference, digest.encode())
        return digest

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return a manifest by its tag or its digest."""
        digest = reference if is_digest(reference) else self.tags(repository, only=reference).get(reference, "")
        path = self._folder(repository) / "manifests" / digest.partition(":")[2]
        return msgspec.json.decode(path.read_bytes(), type=Manifest) if is_digest(digest) and path.is_file() else None

    def tags(self, repository: str, *, only: str | None = None) -> dict[str, str]:
        """Return the digests of tags, by tag; with `only`, of that one."""
        folder = self._folder(repository) / "tags"
        if only is not None:
            names = [only] if _TAG.fullmatch(only) and (folder / only).is_file() else []
        else:
            names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return {name: (folder / name).read_text() for name in names if not name.startswith(".")}

    def manifests(self, repository: str) -> Mapping[str, Manifest]:
        """Return all manifests by digest."""
        folder = self._folder(repository) / "manifests"
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
        found = (msgspec.json.decode(path.read_bytes(), type=Manifest) for path in paths)
        return {manifest.digest: manifest for manifest in found}

    def delete(self, repository: str, reference: str) -> bool:
        """Delete a tag, or a manifest with all its tags; return False if it does not exist."""
        folder = self._folder(repository)
        if not is_digest(reference):
            is_there = bool(self.tags(repository, only=reference))
            if is_there:
                (folder / "tags" / reference).unlink(missing_ok=True)
            return is_there
        path = folder / "manifests" / reference.partition(":")[2]
        if not path.is_file():
            return False
        for tag, digest in self.tags(repository).items():
            if digest == reference:
                (folder / "tags" / tag).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        self._remove_unused()
        return True

    def delete_repository(self, repository: str) -> None:
        for digest in self.manifests(repository):
            self.delete(repository, digest)

    def _remove_unused(self) -> None:
        """Remove blobs that no manifest of any repository names, unless they have just been uploaded."""
        names = [path.name for path in self._repositories.iterdir()] if self._repositories.is_dir() else []
        used = {
            str(part.get("digest"))
            for name in names
            for manifest in self.manifests(name).values()
            for part in _parts(manifest.body, "config", "layers")
        }
        for path in self._blobs.iterdir() if self._blobs.is_dir() else ():
            if f"sha256:{path.name}" not in used and self._is_old(path):
                path.unlink(missing_ok=True)

    def _is_old(self, path: Path) -> bool:
        try:
            return self._now_s() - path.stat().st_mtime > _KEPT_S
        except FileNotFoundError:
            return False

    def _folder(self, repository: str) -> Path:
        return self._repositories / repository.replace("/", "~")


NO_IMAGES: Final = ImageStore(Path(os.devnull))


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


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    partial.write_bytes(content)
    partial.replace(path)
