"""
Python environments for the `requirements.txt` of user code.

Equal requirements share an environment: the content of every file that the installer reads counts, which are further
requirement files, constraints, local packages, and a folder of packages next to the file.

An environment is a virtual environment on top of a base: packages that the base has and that satisfy the requirements
are not installed again, others are installed beside them and take precedence. Its name is a hash of what determines its
content, so that models share it, and it is built once per node: the cache lets other workers wait, and a killed
installation leaves nothing behind. `docs/decisions/0030-environments-layered-on-the-base.md` says why pip installs.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec

from headrace.core.errors import UserError
from headrace.core.telemetry import get_logger
from headrace.serving.artifacts.content_cache import ContentCache, content_key
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.handlers.isolation import NO_ISOLATION, Isolation
from headrace.serving.handlers.requirements_file import Requirements, requirements_text
from headrace_handler.policy import deferred
from headrace_handler.stray_files import listed

_PYTHON: Final = "bin/python"
_LAYOUT: Final = 2
"""Part of every environment's name; increment it when the way to build one changes."""
_UNUSED_S: Final = 30 * 86_400.0
"""Seconds without use after which an environment is removed, when another one is built."""
_KEPT_LINES: Final = 40
_MAX_REASON: Final = 700
"""Characters of the installer's output in an error; a FailureReason has at most 1024."""
_MAX_LINE: Final = 2_000
_MAX_LOGGED: Final = 10_000
"""Lines of one run of the installer that are logged: a package's build may print without end."""
_PROBE_S: Final = 60.0
_MAX_PROBE: Final = 1 << 20
_PROBE: Final = """
import json, site, sys
print(json.dumps({"version": sys.version, "folders": site.getsitepackages()}))
"""
# Code that a model chooses may have filled the folder, with links that lead out of it: these run in the sandbox.
_LAYER: Final = """
import glob, sys
folder, *bases = sys.argv[1:]
(site_packages,) = glob.glob(glob.escape(folder) + "/lib/python*/site-packages")
# NOTE: a line with a path alone would skip the `.pth` files of the base, such as those of editable installs.
with open(site_packages + "/_base.pth", "w", encoding="utf-8") as file:
    file.writelines(f"import site; site.addsitedir({base!r})\\n" for base in bases)
"""
_POINT: Final = """
import os, sys
folder, final = map(os.fsencode, sys.argv[1:])
for entry in [*os.scandir(folder + b"/bin")]:
    if entry.is_file(follow_symlinks=False):
        with open(entry.path, "r+b") as file:
            if file.read(2) == b"#!":
                content = b"#!" + file.read()
                file.seek(0)
                file.truncate()
                file.write(content.replace(folder + b"/", final + b"/"))
"""
"""Points installed commands to the interpreter's final path: the folder is renamed when it is complete."""
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.execv(sys.argv[1], sys.argv[1:])
"""
_INFLUENCES: Final = re.compile(
    r"(PIP|PYTHON|LD|GIT|PKG_CONFIG|CMAKE|SETUPTOOLS|SKBUILD|CARGO|RUST|UV|SSL_CERT|XDG_CONFIG)_?.*"
    r"|.*(_PROXY|_CA_BUNDLE|FLAGS)|CC|CXX|CPP|AR|NETRC",
    re.IGNORECASE,
)
"""Variables that decide what is installed. Models share environments: one must not choose what another one gets."""
_EXPANDED: Final = re.compile(r"\$\{([A-Z0-9_]+)\}")
"""Variables in lines of requirements. Source: pip `req_file.py`, `ENV_VAR_RE`."""
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


@dataclass(frozen=True, slots=True)
class _Facts:
    """The statements of an interpreter about itself."""

    version: str
    folders: list[str]


def inspect_base(python: str = sys.executable, runner: Sequence[str] = ()) -> Base:
    """Run an interpreter, by a `runner`, to find its version and packages. Raises `EnvironmentFailed`: it cannot be."""
    said = ""
    try:
        # The environment of a worker has variables of its model.
        with _running([*runner, python, "-I", "-c", _PROBE], env=deferred(os.environ), timeout_s=_PROBE_S) as (
            _,
            output,
        ):
            said = output.read(_MAX_PROBE).strip()
        facts = msgspec.json.decode(said.rpartition("\n")[2], type=_Facts)
        folders = tuple(folder for folder in facts.folders if Path(folder).is_dir())
    except (OSError, subprocess.SubprocessError, ValueError, msgspec.MsgspecError) as error:
        reason = " ".join(said.split())[-_MAX_REASON:] or error
        raise EnvironmentFailed(
            f"The interpreter {python!r} cannot be run: {reason}. Expected a Python of at least "
            "version 3.9 in option.pythonExecutable or PYTHON_EXECUTABLE."
        ) from error
    names = (path.name for folder in folders for path in Path(folder).iterdir())
    packages = tuple(sorted(name for name in names if name.endswith((".dist-info", ".egg-info"))))
    return Base(python=python, version=facts.version, folders=folders, packages=packages)


def environment_key(requirements: Requirements, base: Base, variables: Mapping[str, str]) -> str:
    """Return the name of an environment: a hash of what determines its content."""
    named = set(_EXPANDED.findall(requirements_text(requirements.file)))
    chosen = sorted(item for item in variables.items() if _INFLUENCES.fullmatch(item[0]) or item[0] in named)
    folder = requirements.file.parent
    programs = [part for part in filter(None, variables.get("PATH", "").split(os.pathsep)) if (folder / part).is_dir()]
    parts = [*programs, *(part for _, value in chosen for part in re.split(r"[\s:,]+", value))]
    is_own = any(part and not part.startswith("/") and (folder / part).exists() for part in parts)
    return content_key(
        *("environment", _LAYOUT, requirements.digest, base.python, base.version, base.folders, base.packages),
        *(chosen, programs, folder if is_own else ""),
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
        self._run(folder, [self.base.python, "-I", "-c", _LAYER, str(folder), *self.base.folders], "layered")
        python = str(folder / _PYTHON)
        if not any(package.startswith("pip-") for package in self.base.packages):
            self._run(folder, [python, "-m", "ensurepip"], "given pip")
        with tempfile.TemporaryDirectory(prefix="headrace-requirements-") as copies:
            self._install(folder, python, self._written_file(Path(copies)))
        final = str(self.maker.cache.final_folder(folder))
        self._run(folder, [self.base.python, "-I", "-c", _POINT, str(folder), final], "completed")

    def _install(self, folder: Path, python: str, file: Path) -> None:
        # Try the wheels beside the file alone first: a host without network needs no index then.
        *first, last = self._sources()
        command = [python, *_INSTALL, "-r", str(file)]
        reads = [file.parent]
        if not any(self._try(folder, [*command, *source], reads)[0] == 0 for source in first):
            code, said = self._try(folder, [*command, *last], reads)
            if code != 0:
                raise self._failure("completed", code, [*said, *self._unfit_wheels(folder, python)])

    def _written_file(self, copies: Path) -> Path:
        """Return the file to install from: a copy if some of the user's lines are left out."""
        if not self.requirements.left_out:
            return self.requirements.file
        copy = copies / self.requirements.file.name
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

    def _try(self, folder: Path, command: list[str], reads: Sequence[Path] = ()) -> tuple[int, list[str]]:
        """Run a program that writes into a folder, log its output, and return its exit status and last lines."""
        variables = {name: value for name, value in self.maker.variables.items() if name not in _FOREIGN_TARGETS}
        runner = self.maker.isolation.runner(
            [self.maker.root, self.requirements.file.parent],
            Path(self.base.python),
            reads=reads,
            writes=[folder],
            network="none" if self.maker.is_offline else "all",
        )
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self.deadline.check()
        with _running(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *runner, *command],
            cwd=self.requirements.file.parent,
            env=deferred(variables) if self.maker.isolation.is_on else variables,
            timeout_s=self.deadline.remaining_s(),
        ) as (process, output):
            lines = iter(partial(output.readline, _MAX_LINE), "")
            for number, text in enumerate(filter(None, map(str.rstrip, lines))):
                kept.append(text)
                if number < _MAX_LOGGED:
                    get_logger().info("environment.installing", model=self.maker.model_name, line=text)
        self.deadline.check()
        return process.returncode, list(kept)


@contextmanager
def _running(
    command: Sequence[str], *, env: Mapping[str, str], timeout_s: float, cwd: Path | None = None
) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """
    Yield a process of the model's choice with its output, and wait for its end after the block.

    It is killed at a deadline, or if the block raises; the rest of its group is killed in any case.
    """
    process = subprocess.Popen(  # noqa: S603 -- an interpreter or installer that the model's owner asks for
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, kill)
    timer.start()
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
            process.stdout.close()  # it may print more than was read
            process.wait()
        finally:
            timer.cancel()
            kill()


def _reason(lines: list[str]) -> str:
    """Return the lines of an installer's output that name its failure, else the last ones."""
    errors = [line for line in lines if _is_error(line)]
    return " ".join(" ".join((errors or lines)[-4:]).split())[-_MAX_REASON:] or "it wrote nothing."


def _is_error(line: str) -> bool:
    return line.lstrip().lower().startswith("error")
