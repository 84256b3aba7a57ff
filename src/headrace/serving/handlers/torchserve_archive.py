"""Unpacks TorchServe's archives, which are untrusted input: `.mar` (zip) and `.tgz` or `.tar.gz`."""

import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Final

from headrace.serving.artifacts.archives import safe_path, unpack
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed, Guard, copy_stream, translate_os_errors
from headrace_handler.stray_files import is_stray, listed

ARCHIVE_SUFFIXES: Final = (".mar", ".tgz", ".tar.gz", ".war")
_TIMEOUT_S: Final = 3600.0
_LATE: Final = "The archive was not unpacked within {timeout_s:g} s. Use smaller files."
_SYMLINK: Final = 0o120000
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that TorchServe's Java reads. LZMA would also need up to 4 GiB of memory for its dictionary."""
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
)


def is_archive(path: Path) -> bool:
    """Return whether a path is an archive by its name, in any case."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES) and os.path.isfile(path)  # noqa: PTH113 - no error for a bad name


def unpack_archive(archive: Path, target: Path, guard: Guard | None = None) -> Path:
    """
    Unpack an archive into a folder that exists and is empty.

    Returns:
        The folder that holds the model's files.

    Raises:
        FetchFailed: the archive is broken, too large, or has a member outside of its folder.
    """
    guard = guard or Guard(folder=target, deadline=Deadline(_TIMEOUT_S, late=_LATE))
    with translate_os_errors(archive.name):
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, target, guard)
        else:
            with archive.open("rb") as file:
                unpack(file.read, target, guard, name=archive.name)
        return files_folder(target)


def files_folder(target: Path) -> Path:
    """Return the folder that holds the files of an unpacked archive: the target, or the only folder in it."""
    inner = listed(target)
    return inner[0] if len(inner) == 1 and inner[0].is_dir() and inner[0].name != "MAR-INF" else target


def _unpack_zip(archive: Path, target: Path, guard: Guard) -> None:
    try:
        with zipfile.ZipFile(archive) as file:
            for member in file.infolist():
                _extract(file, member, target, guard, archive)
    except _BROKEN as error:
        raise FetchFailed(
            f"{archive.name} is not a complete archive ({error}). Pack it again with torch-model-archiver."
        ) from error


def _extract(file: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, guard: Guard, archive: Path) -> None:
    path = target / safe_path(member.filename.replace("\\", "/"), archive.name)
    guard.add_file()
    if stat.S_IFMT(member.external_attr >> 16) == _SYMLINK:
        raise FetchFailed(f"{archive.name} contains the link {member.filename!r}; expected files and folders only.")
    # The folder itself may be a member without a name, which zipfile cannot ask for its kind.
    if path == target or is_stray(member.filename.replace("\\", "/")):
        return
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    if member.compress_type not in _METHODS:
        raise FetchFailed(
            f"{archive.name} has {member.filename!r} in compression method {member.compress_type}; expected deflate, "
            "which torch-model-archiver uses. Pack it again."
        )
    guard.expect(member.file_size, f"{member.filename!r} of {archive.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open(member) as source:

        def read(size: int) -> bytes:
            guard.check_ratio(archive.stat().st_size, archive.name)
            return source.read(size)

        copy_stream(read, path, guard, mode=0o644)
