"""
Python environments for the `requirements.txt` of user code.

Equal requirements share an environment: the content of every file that the installer reads counts, which are further
requirement files, constraints, local packages, and a folder of packages next to the file.

An environment is a virtual environment on top of a base: packages that the base has and that satisfy the requirements
are not installed again, others are installed beside them and take precedence. Its name is a hash of what determines its
content, so that models share it, and it is built once per node: the cache lets other workers wait, and a killed
installation leaves nothing behind. `docs/decisions/0030-environments-layered-on-the-base.md` says why pip installs.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.core.errors import UserError
from headrace.core.telemetry import get_logger
from headrace.serving.artifacts.content_cache import ContentCache, content_key
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.handlers.isolation import NO_ISOLATION, Isolation
from headrace_handler.policy import deferred
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


def _lines(file: Path) -> Iterator[str]:
    for raw in file.read_text(encoding="utf-8-sig", errors="replace").splitlines():
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
        return path.is_file()
    except OSError:  # a name too long for a file: not a path
        return False


def _local_package(path: Path) -> Iterator[Path]:
    with suppress(OSError):
        files = (inner for inner in path.rglob("*") if inner.is_file() and not is_stray(inner.name))
        yield from [path] if _is_file(path) else islice(sorted(files), _MAX_FILES)


_PYTHON: Final = "bin/python"
_LAYOUT: Final = 1
"""Part of every environment's name; increment it when the way to build one changes."""
_UNUSED_S: Final = 30 * 86_400.0
"""Seconds without use after which an environment is removed, when another one is built."""
_KEPT_LINES: Final = 40
_MAX_REASON: Final = 700
"""Characters of the installer's output in an error; a FailureReason has at most 1024."""
_MAX_LINE: Final = 2_000
_PROBE_S: Final = 60.0
_PROBE: Final = """
import json, site, sys
print(json.dumps({"version": sys.version, "folders": site.getsitepackages()}))
"""
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.execv(sys.argv[1], sys.argv[1:])
"""
_FOREIGN_TARGETS: Final = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME")
"""Variables that would make pip install elsewhere."""
_INSTALL: Final = (
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--no-input",
    "--no-color",
    "--progress-bar=off",
)


class EnvironmentFailed(UserError):
    """The packages that user code asks for cannot be installed, or its interpreter cannot be run."""

    code = "environment_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """An interpreter and the packages that it has."""

    python: str
    version: str
    folders: tuple[str, ...]
    """Its `site-packages`."""
    packages: tuple[str, ...]
    """Names and versions, as in the names of their metadata folders."""


def inspect_base(python: str = sys.executable, runner: Sequence[str] = ()) -> Base:
    """Run an interpreter, by a `runner`, to find its version and packages. Raises `EnvironmentFailed`: it cannot be."""
    try:
        found = subprocess.run(  # noqa: S603 -- the interpreter that the model's settings name
            [*runner, python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=True
        )
        facts = json.loads(found.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        raise EnvironmentFailed(
            f"The interpreter {python!r} cannot be run: {reason or error}. Expected a Python of at least version "
            "3.9 in option.pythonExecutable or PYTHON_EXECUTABLE."
        ) from error
    folders = tuple(folder for folder in facts["folders"] if Path(folder).is_dir())
    names = (path.name for folder in folders for path in Path(folder).iterdir())
    packages = tuple(sorted(name for name in names if name.endswith((".dist-info", ".egg-info"))))
    return Base(python=python, version=facts["version"], folders=folders, packages=packages)


def environment_key(requirements: Requirements, base: Base, variables: Mapping[str, str]) -> str:
    """Return the name of an environment: a hash of what determines its content."""
    indexes = sorted((name, value) for name, value in variables.items() if name.startswith("PIP_") and "INDEX" in name)
    return content_key(
        "environment", _LAYOUT, requirements.digest, base.python, base.version, base.folders, base.packages, indexes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentMaker:
    """Builds environments on this node, or finds existing ones."""

    cache: ContentCache
    timeout_s: float
    """Time limit for one environment, including the wait for another worker that builds it."""
    variables: Mapping[str, str]
    """Environment variables of the installer."""
    is_offline: bool = False
    """Install only from the folder of packages next to the requirements."""
    model_name: str = ""  # in the log
    isolation: Isolation = NO_ISOLATION
    """The sandbox of the installer, which may read the model's folder `root`."""
    root: Path = Path()

    def python_for(self, requirements: Requirements, base: Base) -> str:
        """
        Return the interpreter of the environment with these requirements; blocks while it is built.

        Raises:
            EnvironmentFailed: the packages cannot be installed; the message has the installer's last lines.
        """
        late = (
            f"The packages of {requirements.file.name} were not installed within {{timeout_s:g}} s. Raise the time "
            "limit for loading the model, or put wheels into a folder `wheels` next to the file."
        )
        making = _Making(self, requirements, base, Deadline(self.timeout_s, late=late))
        key = environment_key(requirements, base, self.variables)
        try:
            folder = self.cache.entry(key, making.fill, making.deadline)
        except FetchFailed as error:
            raise EnvironmentFailed(str(error)) from error
        python = folder / _PYTHON
        get_logger().info(
            "environment.ready", model=self.model_name, requirements=str(requirements.file), python=str(python)
        )
        return str(python)


@dataclass(frozen=True, slots=True)
class _Making:
    """The build of one environment."""

    maker: EnvironmentMaker
    requirements: Requirements
    base: Base
    deadline: Deadline

    def fill(self, folder: Path) -> None:
        """Build the environment in an empty folder."""
        self.maker.cache.clear_unused(unused_for_s=_UNUSED_S)
        self._run(folder, [self.base.python, "-I", "-m", "venv", "--without-pip", str(folder)], "made")
        (site_packages,) = folder.glob("lib/python*/site-packages")
        # NOTE: a line with a path alone would skip the `.pth` files of the base, such as those of editable installs.
        lines = (f"import site; site.addsitedir({base_folder!r})\n" for base_folder in self.base.folders)
        (site_packages / "_base.pth").write_text("".join(lines), encoding="utf-8")
        python = str(folder / _PYTHON)
        if not any(package.startswith("pip-") for package in self.base.packages):
            self._run(folder, [python, "-m", "ensurepip"], "given pip")
        # Try the wheels beside the file alone first: a host without network needs no index then.
        *first, last = self._sources()
        command = [python, *_INSTALL, "-r", str(self._written_file(folder))]
        if not any(self._try(folder, [*command, *source])[0] == 0 for source in first):
            code, said = self._try(folder, [*command, *last])
            if code != 0:
                raise self._failure("completed", code, [*said, *self._unfit_wheels(folder, python)])
        # Point installed commands to the interpreter's final path: the folder is renamed when it is complete.
        made, final = f"{folder}/".encode(), f"{self.maker.cache.final_folder(folder)}/".encode()
        for path in (folder / "bin").iterdir():
            if path.is_file() and not path.is_symlink() and (content := path.read_bytes()).startswith(b"#!"):
                path.write_bytes(content.replace(made, final))

    def _written_file(self, folder: Path) -> Path:
        """Return the file to install from: a copy if some of the user's lines are left out."""
        if not self.requirements.left_out:
            return self.requirements.file
        copy = folder / self.requirements.file.name
        copy.write_text("\n".join([*self.requirements.installed_lines(), ""]), encoding="utf-8")
        return copy

    def _unfit_wheels(self, folder: Path, python: str) -> list[str]:
        """Return the installer's errors about wheels beside the requirements, such as those for another Python."""
        found = self.requirements.wheels
        wheels = [str(path) for path in listed(found, ["*.whl"])] if found is not None else []
        if not wheels:
            return []
        _, lines = self._try(folder, [python, *_INSTALL, "--dry-run", "--no-deps", "--no-index", *wheels])
        return [line for line in lines if _is_error(line)]

    def _sources(self) -> list[list[str]]:
        """Return pip's sources, in order: only the folder next to the requirements, then the index."""
        wheels = self.requirements.wheels
        found = ["--find-links", str(wheels)] if wheels is not None else []
        alone = ["--no-index", *found]
        if self.maker.is_offline:
            return [alone]
        return [alone, found] if wheels is not None else [[]]

    def _run(self, folder: Path, command: list[str], what: str) -> None:
        code, lines = self._try(folder, command)
        if code != 0:
            raise self._failure(what, code, lines)

    def _failure(self, what: str, code: int, lines: list[str]) -> EnvironmentFailed:
        version = self.base.version.partition(" ")[0]
        return EnvironmentFailed(
            f"The environment of {self.requirements.file.name} could not be {what} for Python {version} "
            f"(exit status {code}): {_reason(lines)}"
        )

    def _try(self, folder: Path, command: list[str]) -> tuple[int, list[str]]:
        """Run a program that writes into a folder, log its output, and return its exit status and last lines."""
        variables = {name: value for name, value in self.maker.variables.items() if name not in _FOREIGN_TARGETS}
        runner = self.maker.isolation.runner(
            [self.maker.root, self.requirements.file.parent],
            Path(self.base.python),
            reads=map(Path, self.base.folders),
            writes=[folder],
            network="none" if self.maker.is_offline else "all",
        )
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self.deadline.check()
        with (
            subprocess.Popen(  # noqa: S603 -- the installer, for the packages that the model's owner asks for
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *runner, *command],
                cwd=self.requirements.file.parent,
                env=deferred(variables) if self.maker.isolation.is_on else variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,
            ) as process,
            _killed_after(process, self.deadline.remaining_s()),
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if text := line.rstrip()[:_MAX_LINE]:
                    kept.append(text)
                    get_logger().info("environment.installing", model=self.maker.model_name, line=text)
        self.deadline.check()
        return process.returncode, list(kept)


@contextmanager
def _killed_after(process: "subprocess.Popen[str]", timeout_s: float) -> Iterator[None]:
    """Kill a process and its children at a deadline, or if the block raises."""

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, kill)
    timer.start()
    try:
        yield
    except BaseException:
        kill()
        raise
    finally:
        timer.cancel()


def _reason(lines: list[str]) -> str:
    """Return the lines of an installer's output that name its failure, else the last ones."""
    errors = [line for line in lines if _is_error(line)]
    return " ".join(" ".join((errors or lines)[-4:]).split())[-_MAX_REASON:] or "it wrote nothing."


def _is_error(line: str) -> bool:
    return line.lstrip().lower().startswith("error")
