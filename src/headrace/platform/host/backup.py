"""Backups of a platform.

They have its records, its blobs (such as the asynchronous invocations that wait), its own images and JumpStart rows
and, while it is stopped, the objects of the embedded S3 server. A backup is restored into the data folder and the
database of any platform that is stopped. Workers are not restored: the next start replaces them. Methods block.

The file is a tar.gz with the records, files of the data folder, and last a manifest with their checksums. It has access
keys: it is readable by its owner only, and as trusted as the data folder.
"""

import gzip
import hashlib
import io
import json
import os
import secrets
import shlex
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec

from headrace import __version__
from headrace.core.errors import SettingsError
from headrace.core.progress import Progress
from headrace.platform.control.model.worker import WORKER
from headrace.platform.host.folders import DataFolder
from headrace.platform.host.operations import KINDS, refuse_newer
from headrace.platform.state.blobs import open_blobs
from headrace.platform.state.database import shown_url, url_of
from headrace.platform.state.database_lock import locked_database
from headrace.platform.state.records import Json, Unreadable
from headrace.platform.state.routes import ROUTE
from headrace.platform.state.transfer import (
    StoreCopy,
    StoredRow,
    read_copy,
    schema_versions,
    unreadable_rows,
    write_copy,
)
from headrace.platform.storage.seaweed import Seaweed
from headrace.serving.artifacts.archives import DAMAGED_HEADERS, Member

FORMAT: Final = 1
"""Version of the file's layout."""
RECORDS: Final = "records.jsonl"
_USER_FILES: Final = ("images.toml", "jumpstart.toml")
"""Files of the user in the data folder."""
BLOBS: Final = "blobs.jsonl"
OBJECTS: Final = "objects"
INVOCATIONS: Final = "invocations"
"""Asynchronous invocations in backups of earlier versions, which had no blobs."""
BATCHES: Final = "batches"
_MANIFEST: Final = "manifest.json"
_CHUNK_BYTES: Final = 1 << 20
_BROKEN: Final = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    msgspec.MsgspecError,
    *DAMAGED_HEADERS,
    FileExistsError,
    gzip.BadGzipFile,
)


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    num_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    headrace: str
    """Version that wrote it."""
    created_s: float
    """Seconds since 1970."""
    schema_version: int
    """Of the tables."""
    revision: int
    term: int
    kinds: dict[str, int]
    """Number of records of each kind."""
    settings: Json
    """Settings on which records depend, as the platform was started with them last; empty if they are not known."""
    has_objects: bool
    files: dict[str, FileFacts]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a manifest that every version of the format has."""

    format: int
    headrace: str


@contextmanager
def replacing(target: Path, *, is_replacing: bool) -> Iterator[IO[bytes]]:
    """
    Write a file beside `target`, readable by its owner only; rename it when the block has ended without an error.

    Raises `SettingsError` if the file exists and is not to be replaced, or it cannot be created.
    """
    if target.is_dir() or (target.exists() and not is_replacing):
        raise SettingsError(f"{target} exists. Name another file, or replace it with --replace.")
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}. Name another file.") from error
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 -- opened with its permissions
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists() and not is_replacing:
            raise SettingsError(f"{target} exists. Name another file, or replace it with --replace.")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


class BackupWriter:
    """Writes the members of a backup in order; the manifest is the last one."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        # Level 1: most bytes are weights in objects, which do not shrink.
        self._archive = tarfile.open(fileobj=file, mode="w:gz", compresslevel=1)  # noqa: SIM115 -- closed in `finish`
        self._progress = progress
        self._files: dict[str, FileFacts] = {}

    def add_bytes(self, name: str, content: bytes) -> None:
        self.add(name, io.BytesIO(content), len(content))

    def add_folder(self, name: str, folder: Path, *, without: frozenset[str] = frozenset()) -> None:
        """Add all regular files below a folder, except some directly in it."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        paths = [path for path in paths if path.relative_to(folder).as_posix() not in without]
        total_bytes, num_bytes = sum(path.stat().st_size for path in paths), 0
        for path in paths:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.add(f"{name}/{path.relative_to(folder).as_posix()}", file, size)
            num_bytes += size
            self._progress(name, min(num_bytes, total_bytes), total_bytes)

    def finish(self, copy: StoreCopy, *, settings: Json, has_objects: bool) -> Manifest:
        kinds = sorted({row.kind for row in copy.rows})
        manifest = Manifest(
            format=FORMAT,
            headrace=__version__,
            created_s=time.time(),
            schema_version=copy.schema_version,
            revision=copy.revision,
            term=copy.term,
            kinds={kind: sum(row.kind == kind for row in copy.rows) for kind in kinds},
            settings=settings,
            has_objects=has_objects,
            files=self._files,
        )
        self.add_bytes(_MANIFEST, json.dumps(msgspec.to_builtins(manifest), indent=1).encode())
        self._archive.close()
        return manifest

    def add(self, name: str, file: IO[bytes], num_bytes: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = num_bytes, 0o600, time.time()
        hashed = _Hashed(file)
        self._archive.addfile(member, hashed)
        self._files[name] = FileFacts(num_bytes=num_bytes, sha256=hashed.sha256.hexdigest())


class _Hashed:
    """A file whose bytes are hashed when they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, num_bytes: int = -1) -> bytes:
        content = self._file.read(num_bytes)
        self.sha256.update(content)
        return content


def unpack(source: Path, folder: Path, progress: Progress) -> Manifest:
    """
    Unpack a backup into an empty folder, and verify every file in it.

    Raises `SettingsError` if it is no backup, is damaged, or was written by a newer Headrace.
    """
    try:
        file = source.open("rb")
    except OSError as error:
        raise SettingsError(f"{source} cannot be read: {error.strerror}. Name the file of a backup.") from error
    try:
        with file, gzip.GzipFile(fileobj=file) as plain, tarfile.open(None, "r:", plain, tarinfo=Member) as archive:
            total_bytes = source.stat().st_size
            found = _unpack_members(archive, folder, lambda: progress("reading the backup", file.tell(), total_bytes))
            while plain.read(_CHUNK_BYTES):  # up to the checksum, which follows the padding
                pass
        manifest = _read_manifest(source, folder)
    except _BROKEN as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise SettingsError(f"{source} is not a complete backup of Headrace: {reason}. Use another copy.") from error
    found.pop(_MANIFEST)
    if found != manifest.files:
        names = found.keys() | manifest.files.keys()
        different = min(name for name in names if found.get(name) != manifest.files.get(name))
        raise SettingsError(f"{source} is damaged: the checksum of {different} is wrong. Use another copy.")
    return manifest


def _unpack_members(archive: tarfile.TarFile, folder: Path, report: Callable[[], None]) -> dict[str, FileFacts]:
    """Write the members of an archive below a folder; return their facts by name."""
    found = {}
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not member.isreg():
            raise tarfile.ReadError(f"it has {member.name!r}, which does not belong into a backup")
        target = folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None, "it is a regular file"
        hashed = _Hashed(content)
        with target.open("xb") as file:
            while chunk := hashed.read(_CHUNK_BYTES):
                file.write(chunk)
                report()
        found[member.name] = FileFacts(num_bytes=member.size, sha256=hashed.sha256.hexdigest())
    return found


def _read_manifest(source: Path, folder: Path) -> Manifest:
    try:
        content = (folder / _MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise tarfile.ReadError(f"it has no {_MANIFEST}") from error
    known = msgspec.json.decode(content, type=_Format)
    if known.format > FORMAT:
        raise SettingsError(
            f"{source} has format {known.format}, written by Headrace {known.headrace}; expected at most {FORMAT}. "
            "Restore it with that version of Headrace or a later one."
        )
    return msgspec.json.decode(content, type=Manifest)


def read_rows(folder: Path, manifest: Manifest) -> StoreCopy:
    rows = msgspec.json.Decoder(StoredRow).decode_lines((folder / RECORDS).read_bytes())
    return StoreCopy(
        schema_version=manifest.schema_version, revision=manifest.revision, term=manifest.term, rows=tuple(rows)
    )


_STAGING: Final = ".restore-"
_NOT_RESTORED: Final = (WORKER.name, ROUTE.name)
"""Kinds of records that describe processes."""
_PROCESS_FILES: Final = frozenset({"lock", "log.txt", "state.partial"})
"""Files in the folder of objects that belong to a process of the S3 server."""
_RECORDS_ONLY: Final = " Without --objects, `headrace backup` copies the records while it runs."


@dataclass(frozen=True, slots=True)
class BackupContents:
    manifest: Manifest
    copy: StoreCopy
    unreadable: Sequence[Unreadable]


def back_up(
    folder: DataFolder, where: str | Path, target: Path, *, has_objects: bool, is_replacing: bool, progress: Progress
) -> Manifest:
    """
    Write a backup; the platform may run, unless its objects are included.

    `where` is its database, a file or a URL. Raises `SettingsError` if there are no records or objects, the platform
    runs, or the file exists.
    """
    if has_objects and not folder.objects.is_dir():
        raise SettingsError(
            f"There are no objects in {folder.objects}. Those of another S3 server (--s3-endpoint) are copied by its "
            "own tools: leave --objects out."
        )
    with (
        _stopped(folder, hint=_RECORDS_ONLY) if has_objects else nullcontext(),
        replacing(target, is_replacing=is_replacing) as file,
    ):
        copy = read_copy(where)
        refuse_newer(schema_versions(copy.rows), what=f"The store {shown_url(url_of(where))}")
        writer = BackupWriter(file, progress)
        writer.add_bytes(RECORDS, msgspec.json.Encoder().encode_lines(copy.rows))
        _add_blobs(writer, folder, where)
        for name in _USER_FILES:
            if (folder.root / name).is_file():
                writer.add_bytes(name, (folder.root / name).read_bytes())
        if has_objects:
            writer.add_folder(OBJECTS, folder.objects, without=_PROCESS_FILES)
            writer.add_folder(BATCHES, folder.batches)
        try:
            known_settings: Json = msgspec.json.decode(folder.settings.read_bytes(), type=dict)
        except (OSError, msgspec.DecodeError):
            known_settings = {}
        return writer.finish(copy, settings=known_settings, has_objects=has_objects)


def _add_blobs(writer: BackupWriter, folder: DataFolder, where: str | Path) -> None:
    """Add the blobs; they may be many, so that their copy is on disk before its size is known."""
    with closing(open_blobs(where, folder.blobs)) as blobs, tempfile.TemporaryFile(dir=folder.root) as file:
        blobs.copy_to(file)
        num_bytes = file.tell()
        file.seek(0)
        writer.add(BLOBS, file, num_bytes)


def check_backup(source: Path, progress: Progress) -> BackupContents:
    """Verify a backup and return its contents; change nothing. Raises `SettingsError`."""
    with tempfile.TemporaryDirectory(prefix="headrace-backup-") as staging:
        return _read(source, Path(staging), progress)


def restore(
    folder: DataFolder, where: str | Path, source: Path, *, is_replacing: bool, progress: Progress
) -> BackupContents:
    """
    Verify a backup, then replace the records of a stopped platform by its records, and its objects if it has some.

    Raises `SettingsError` if the backup cannot be used, the platform runs, or, unless `is_replacing`, has records or
    objects.
    """
    folder.make()
    with _stopped(folder), locked_database(where), _staging(folder) as staging:
        contents = _read(source, staging, progress)
        trees = {OBJECTS: folder.objects, INVOCATIONS: folder.invocations, BATCHES: folder.batches}
        trees = trees if contents.manifest.has_objects else {}
        for target in trees.values():
            if not is_replacing and target.is_dir() and any(target.iterdir()):
                raise SettingsError(
                    f"{target} is not empty. Restore into another folder with --data-dir, or replace it with --replace."
                )
        rows = tuple(row for row in contents.copy.rows if row.kind not in _NOT_RESTORED)
        write_copy(where, replace(contents.copy, rows=rows), is_replacing=is_replacing)
        if (staging / BLOBS).is_file():
            with closing(open_blobs(where, folder.blobs)) as blobs, (staging / BLOBS).open("rb") as lines:
                blobs.replace_by(lines)
        for name, target in trees.items():
            (staging / name).mkdir(mode=0o700, exist_ok=True)
            if target.exists():
                target.rename(staging / f"{name}.before")
            (staging / name).rename(target)
        for name in _USER_FILES:
            if (staging / name).is_file():
                (staging / name).replace(folder.root / name)
        return contents


def _read(source: Path, staging: Path, progress: Progress) -> BackupContents:
    manifest = unpack(source, staging, progress)
    copy = read_rows(staging, manifest)
    refuse_newer(schema_versions(copy.rows), what=str(source))
    return BackupContents(manifest, copy, unreadable_rows(copy.rows, KINDS))


@contextmanager
def _stopped(folder: DataFolder, *, hint: str = "") -> Iterator[None]:
    """Keep platforms out of the folder; raise `SettingsError`, with the hint, if one, or its S3 server, runs."""
    if folder.is_locked():
        address = folder.running_address()
        raise SettingsError(
            f"The platform{f' at {address.url}' if address else ''} uses {folder.root}. Stop it first: "
            f"`headrace down --data-dir {shlex.quote(str(folder.root))}`.{hint}"
        )
    with folder.locked():
        server = Seaweed("weed", folder.objects, region="", new_secret=secrets.token_urlsafe)
        if server.find():
            raise SettingsError(
                f"The S3 server in {folder.objects} runs (process {server.pid}): the platform was killed, or stopped "
                "with --keep-workers. Start it and stop it with `headrace down`."
            )
        yield


@contextmanager
def _staging(folder: DataFolder) -> Iterator[Path]:
    """Yield an empty folder on the disk of the data folder; those of interrupted restores are removed."""
    for left in folder.root.glob(f"{_STAGING}*"):
        shutil.rmtree(left)
    path = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder.root))
    try:
        yield path
    finally:
        shutil.rmtree(path)
