"""
The sandbox that user code gets: the policy of its processes, from the server's settings and the model's folders.

`headrace_handler.sandbox` puts it in force. A model's files and its environment variables cannot widen it.
"""

import re
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Self

from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.settings.server_settings import ServerSettings
from headrace_handler import privileges
from headrace_handler.policy import Policy

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w-]*(\.[\w-]+)*(/[A-Za-z0-9][\w-]*(\.[\w-]+)*)?")
_PROBE_S: Final = 60.0
_HUB_SNAPSHOTS: Final = "snapshots"
"""A folder of a model in the Hub's cache, whose links lead to a folder beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The isolation of user code, as the owner of the server has set it."""

    is_on: bool = False
    is_required: bool = False
    network: str = "all"
    folders: tuple[str, ...] = ()
    """Folders of this machine that code may read, beside its model's."""
    max_processes: int = 4096
    memory_bytes: int | None = None
    temporary_bytes: int | None = None

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """Return the isolation that a server's settings ask for."""
        return cls(
            is_on=settings.sandbox != "off",
            is_required=settings.sandbox == "require",
            network=settings.code_network,
            folders=settings.code_folders,
            max_processes=settings.code_max_processes,
            memory_bytes=settings.code_memory_bytes,
            temporary_bytes=settings.code_temporary_bytes,
        )

    def isolate(self, spec: HandlerSpec, root: Path, *, environment: Path | None = None) -> HandlerSpec:
        """Return a spec whose children read the model in `root` and their Python, in `environment` if it has one."""
        if not self.is_on:
            return spec
        model = [root, spec.load.model_dir, *spec.container_folders.values()]
        entry = Path(spec.load.entry)
        reads = [*model, *([entry] if entry.is_absolute() else []), *filter(None, [environment])]
        hub = hub_cache(spec) if self.network == "all" else None
        policy = self.policy([*reads, *python_folders(spec.python, reads)], hub.folders if hub is not None else ())
        variables = {"HF_HUB_CACHE": str(hub.cache)} if hub is not None else {}
        return replace(spec, sandbox=policy, environment={**spec.environment, **variables})

    def runner(
        self,
        own: Sequence[Path],
        python: Path,
        *,
        reads: Iterable[Path] = (),
        writes: Iterable[Path] = (),
        network: str = "none",
    ) -> tuple[str, ...]:
        """
        Return the command that runs a program of a model's, such as the installer of packages, which run code.

        It reads the model's folders `own`, an interpreter with its packages, and `reads`.
        """
        if not self.is_on:
            return (*_BARE_PYTHON, privileges.__file__)
        return _run(self.policy([*own, *python_folders(python, own), *reads], writes, network=network))

    def command(
        self, reads: Iterable[Path], writes: Iterable[Path], folders: Mapping[Path, Path], *, scratch: str
    ) -> tuple[str, ...]:
        """
        Return the command that runs a program of ours with a model's code in it, which reads and writes these.

        `folders` are those that it finds at the paths of a container.
        """
        named = {str(path): str(folder) for path, folder in folders.items()}
        return _run(replace(self.policy(reads, writes), scratch=scratch, folders=named))

    def policy(self, reads: Iterable[Path], writes: Iterable[Path] = (), *, network: str | None = None) -> Policy:
        """Return the policy of processes that read and write these folders."""
        own = (Path(privileges.__file__).parent, *map(Path, self.folders))
        found = dict.fromkeys(str(path) for given in (*own, *reads) for path in _with_links(given))
        return Policy(
            read=[*found],
            write=[str(path) for path in writes],
            network=network or self.network,
            is_required=self.is_required,
            max_processes=self.max_processes,
            memory_bytes=self.memory_bytes,
            temporary_bytes=self.temporary_bytes,
        )


_BARE_PYTHON: Final = (sys.executable, "-I", "-S")


def _run(policy: Policy) -> tuple[str, ...]:
    program = Path(privileges.__file__).with_name("__main__.py")
    return (*_BARE_PYTHON, str(program), "--run", policy.encoded())


NO_ISOLATION: Final = Isolation()


@dataclass(frozen=True, slots=True)
class HubCache:
    """The folders of the Hub's cache that belong to one model, which the code itself downloads."""

    cache: Path
    folders: tuple[Path, ...]


def hub_cache(spec: HandlerSpec) -> HubCache | None:
    """Make the folders into which code downloads the model that its settings name; None if they name none."""
    named = (spec.environment.get("HF_MODEL_ID", ""), spec.load.options.get("option.model_id", ""))
    name = next((name for name in map(str.strip, named) if _HUB_ID.fullmatch(name) and not Path(name).exists()), None)
    if name is None:
        return None
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    own = f"models--{name.replace('/', '--')}"
    folders = (cache / own, cache / ".locks" / own)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return HubCache(cache, folders)


def python_folders(python: Path, model: Iterable[Path] = ()) -> list[Path]:
    """
    Return the folders of an interpreter and its packages; runs it, unless it is the server's own or one of a model.

    Args:
        python: the interpreter.
        model: folders of the model, whose interpreters are not believed: a link from there names its target's folder.
    """
    if python == Path(sys.executable):
        # Without -P, the first entry is the folder of a script, or the user's current one.
        path = sys.path if sys.flags.safe_path else sys.path[1:]
        found = [sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), *path]
    elif is_brought(python, model):
        prefix = python.resolve().parent.parent
        is_python = any(prefix.glob("lib/python3*")) and not is_brought(python.resolve(), model)
        found = [str(prefix)] if is_python else []
    else:
        found = _said_folders(str(python))
    return [path for path in map(Path, dict.fromkeys(found)) if path.is_absolute() and path.exists()]


def is_brought(python: Path, model: Iterable[Path]) -> bool:
    """Return whether an interpreter lies in a model's folder, whatever it is a link to."""
    return any(python.absolute().is_relative_to(folder) for each in model for folder in (each, each.resolve()))


@cache
def _said_folders(python: str) -> list[str]:
    """Return the folders that an interpreter of this host names; none if it cannot be run."""
    command = [python, "-I", "-c", "import sys; print('\\n'.join([sys.prefix, sys.base_prefix, *sys.path]))"]
    with tempfile.TemporaryFile("w+") as output:  # no pipe, which a process that it leaves behind would keep open
        try:
            subprocess.run(command, stdout=output, stderr=subprocess.DEVNULL, timeout=_PROBE_S, check=True)  # noqa: S603
        except (OSError, subprocess.SubprocessError):  # the start of the child reports it
            return []
        output.seek(0)
        return output.read().splitlines()


def _with_links(path: Path) -> Iterator[Path]:
    """Yield a path, its target, and the folder of the Hub's cache to which the links in it lead."""
    yield path.absolute()
    resolved = path.resolve()
    yield resolved
    for folder in (resolved, *resolved.parents[:1]):
        if folder.parent.name == _HUB_SNAPSHOTS:
            yield folder.parents[1]
