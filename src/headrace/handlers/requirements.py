"""
Reads a `requirements.txt` so that equal requirements share an environment.

The content of every file that the installer reads counts: further requirement files, constraints, local packages, and a
folder of packages next to the file.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

WHEEL_FOLDERS: Final = ("requirements", "wheels")
"""Folders next to `requirements.txt` with packages to install. Source of the first: DJL, `PyEnv.installDependency`."""
_PACKAGES: Final = ("*.whl", "*.tar.gz", "*.zip")
_NESTED: Final = re.compile(r"(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)")
_LOCAL: Final = re.compile(r"(?:-e\s+|--editable[\s=]+)?(?:file://)?([^\s;\[@]+)")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_MAX_FILES: Final = 10_000
"""Files of local packages that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The packages that a model's code asks for."""

    file: Path
    digest: str
    """Hash of everything on this disk that the installer reads."""
    wheels: Path | None = None
    """Folder of packages; the network is not asked if it has all that are needed."""


def read_requirements(file: Path) -> Requirements | None:
    """
    Read a requirements file and what it refers to; None if it names no package.

    Raises:
        OSError: a file cannot be read.
    """
    file = file.absolute()  # the installer has another current directory
    if not any(_lines(file)):
        return None
    wheels = next((folder for folder in map(file.parent.joinpath, WHEEL_FOLDERS) if any(_packages(folder))), None)
    digest = hashlib.sha256()
    files = [*_referenced(file, set()), *(sorted(_packages(wheels)) if wheels is not None else ())]
    for path in files:
        digest.update(f"{path.name}\0".encode(errors="surrogateescape"))
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return Requirements(file=file, digest=digest.hexdigest(), wheels=wheels)


def _lines(file: Path) -> Iterator[str]:
    for raw in file.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if line := _COMMENT.sub("", raw).strip():
            yield line


def _packages(folder: Path) -> Iterator[Path]:
    return (path for pattern in _PACKAGES for path in folder.glob(pattern))


def _referenced(file: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield a requirements file, and the files and local packages that its lines name."""
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    yield file
    for line in _lines(file):
        nested, local = _NESTED.match(line), _LOCAL.match(line)
        if nested is not None and (file.parent / nested[1]).is_file():
            yield from _referenced(file.parent / nested[1], seen)
        elif nested is None and local is not None:
            yield from _local_package(file.parent / local[1])


def _local_package(path: Path) -> Iterator[Path]:
    try:
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from islice(sorted(inner for inner in path.rglob("*") if inner.is_file()), _MAX_FILES)
    except OSError:  # a name too long for a file: not a path
        return
