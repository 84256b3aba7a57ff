"""
Backups of a platform: its records, its list of own images and, while it is stopped, the embedded S3 server's objects.

A backup is restored into the data folder and the database of any platform that is stopped. Workers are not restored:
the next start of the platform replaces them. Methods block.
"""

import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from headrace.control.model.worker import WORKER
from headrace.core.errors import SettingsError
from headrace.core.progress import Progress
from headrace.platform.backup_file import (
    IMAGES,
    INVOCATIONS,
    OBJECTS,
    RECORDS,
    BackupWriter,
    Manifest,
    encode_rows,
    read_rows,
    replacing,
    unpack,
)
from headrace.platform.folders import DataFolder
from headrace.platform.operations import KINDS, refuse_newer
from headrace.platform.seaweed import Seaweed
from headrace.state.database import locked_database, shown_url, url_of
from headrace.state.records import Json, Unreadable
from headrace.state.routes import ROUTE
from headrace.state.transfer import StoreCopy, read_copy, schema_versions, unreadable_rows, write_copy

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
    Write a backup; the platform may run, unless its objects (and pending invocations) are included.

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
        writer.add_bytes(RECORDS, encode_rows(copy))
        if folder.images.is_file():
            writer.add_bytes(IMAGES, folder.images.read_bytes())
        if has_objects:
            writer.add_folder(OBJECTS, folder.objects, without=_PROCESS_FILES)
            writer.add_folder(INVOCATIONS, folder.invocations)
        return writer.finish(copy, settings=_settings_of(folder), has_objects=has_objects)


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
        trees = {OBJECTS: folder.objects, INVOCATIONS: folder.invocations} if contents.manifest.has_objects else {}
        for target in trees.values():
            if not is_replacing and target.is_dir() and any(target.iterdir()):
                raise SettingsError(
                    f"{target} is not empty. Restore into another folder with --data-dir, or replace it with --replace."
                )
        rows = tuple(row for row in contents.copy.rows if row.kind not in _NOT_RESTORED)
        write_copy(where, replace(contents.copy, rows=rows), is_replacing=is_replacing)
        for name, target in trees.items():
            _replace_folder(target, staging / name, aside=staging / f"{name}.before")
        if (staging / IMAGES).is_file():
            (staging / IMAGES).replace(folder.images)
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


def _replace_folder(target: Path, new: Path, *, aside: Path) -> None:
    new.mkdir(mode=0o700, exist_ok=True)
    if target.exists():
        target.rename(aside)
    new.rename(target)


def _settings_of(folder: DataFolder) -> Json:
    try:
        return msgspec.json.decode(folder.settings.read_bytes(), type=dict)
    except (OSError, msgspec.DecodeError):
        return {}
