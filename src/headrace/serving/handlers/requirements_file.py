"""The `requirements.txt` of user code: everything that the installer reads from this disk, as one digest."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.serving.settings.model_folder import read_small
from headrace_handler.stray_files import is_stray, listed

WHEEL_FOLDERS: Final = ("requirements", "wheels")
"""Folders next to `requirements.txt` with packages to install. Source of the first: DJL, `PyEnv.installDependency`."""
_PACKAGES: Final = ("*.whl", "*.tar.gz", "*.zip")
_NESTED: Final = re.compile(r"^(?:-r|--requirement|-c|--constraint)[\s=]*(\S+)")
_LOCAL: Final = re.compile(r"(?:-e\s+|--editable[\s=]+)?(?:file://)?([^\s;\[@]+)")
_INDEX_OPTIONS: Final = ("--index-url", "-i ", "--extra-index-url")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_MAX_FILES: Final = 10_000
"""Files of local packages that are hashed, at most."""
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NEURON_PACKAGES: Final = ("torch-neuronx", "transformers-neuronx", "neuronx-cc", "libneuronxla", "torch-neuron")
"""Packages for AWS's accelerators, which can be neither installed nor used on other hosts."""
_NEURON_DEVICE: Final = Path("/dev/neuron0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The packages that a model's code needs."""

    file: Path
    digest: str
    """Hash of everything on this disk that the installer reads."""
    wheels: Path | None = None
    """Folder of packages; the index is not used if it has all that are needed."""
    left_out: tuple[str, ...] = ()
    """Lines that are not installed: packages for Neuron devices, on a host without one."""

    def installed_lines(self) -> list[str]:
        """Return the lines to install, to be read from a file in another folder."""
        lines = (line for line in _lines(self.file) if line not in self.left_out)

        def absolute(found: re.Match[str]) -> str:
            is_url = "://" in found[1]
            return found[0] if is_url else found[0].removesuffix(found[1]) + str(self.file.parent / found[1])

        return [_NESTED.sub(absolute, line) for line in lines]


def read_requirements(file: Path) -> Requirements | None:
    """
    Read a requirements file and what it refers to; None if there is nothing to install.

    Raises:
        SettingsError: a file is too large.
        OSError: a file cannot be read.
    """
    file = file.absolute()  # the installer has another current directory
    left_out = () if has_neuron_device() else neuron_lines(file)
    if all(line in left_out or line.startswith(_INDEX_OPTIONS) for line in _lines(file)):
        return None
    wheels = next((folder for folder in map(file.parent.joinpath, WHEEL_FOLDERS) if any(_packages(folder))), None)
    digest = hashlib.sha256()
    files = [*_referenced(file), *(sorted(_packages(wheels)) if wheels is not None else ())]
    for path in files:
        digest.update(f"{path.name}\0".encode(errors="surrogateescape"))
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    digest.update("\0".join(left_out).encode())
    return Requirements(file=file, digest=digest.hexdigest(), wheels=wheels, left_out=left_out)


def neuron_lines(file: Path) -> tuple[str, ...]:
    """Return the lines of a requirements file that ask for packages of Neuron devices."""
    return tuple(line for line in _lines(file) if _project(line) in _NEURON_PACKAGES)


def has_neuron_device() -> bool:
    return _NEURON_DEVICE.exists()


def requirements_text(file: Path) -> str:
    """
    Return the content of a requirements file.

    Raises:
        SettingsError: it is too large.
        OSError: it cannot be read.
    """
    return read_small(file).decode("utf-8-sig", errors="replace")


def _lines(file: Path) -> Iterator[str]:
    for raw in requirements_text(file).splitlines():
        if line := _COMMENT.sub("", raw).strip():
            yield line


def _project(line: str) -> str:
    """Return the normalized name of the package that a line asks for; empty if the line is something else."""
    found = _PROJECT.match(line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found is not None else ""


def _packages(folder: Path) -> list[Path]:
    return listed(folder, _PACKAGES)


def _referenced(first: Path) -> Iterator[Path]:
    """Yield a requirements file, and the files and local packages that its lines name."""
    waiting, seen = [first], set[Path]()
    while waiting:
        if (file := waiting.pop()).resolve() in seen:
            continue
        seen.add(file.resolve())
        yield file
        for line in _lines(file):
            nested, local = _NESTED.match(line), _LOCAL.match(line)
            if nested is not None and _is_file(file.parent / nested[1]):
                waiting.append(file.parent / nested[1])
            elif nested is None and local is not None:
                yield from _local_package(file.parent / local[1])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.resolve().is_relative_to("/proc")  # some files there have no end
    except OSError:  # a name too long for a file: not a path
        return False


def _local_package(path: Path) -> Iterator[Path]:
    with suppress(OSError):
        files = (inner for inner in path.rglob("*") if inner.is_file() and not is_stray(inner.name))
        yield from [path] if _is_file(path) else islice(sorted(files), _MAX_FILES)
