"""
The sandbox that user code gets: the policy of its processes, from the server's settings and the model's folders.

`headrace_handler.sandbox` puts it in force. A model's files and its environment variables cannot widen it.
"""

import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from headrace.core.errors import SettingsError
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.settings.model_folder import is_folder
from headrace.serving.settings.server_settings import ServerSettings
from headrace_handler import privileges
from headrace_handler.child import arguments_of
from headrace_handler.container_folders import CHANNELS
from headrace_handler.policy import Policy, deferred, runs_early
from headrace_handler.sandbox import PARTS

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w-]*(\.[\w-]+)*(/[A-Za-z0-9][\w-]*(\.[\w-]+)*)?")
_HUB_SNAPSHOTS: Final = "snapshots"
"""A folder of a model in the Hub's cache, whose links lead to a folder beside it."""
_HUB_MODEL: Final = "models--"
_TRUE: Final = ("1", "ON", "YES", "TRUE")
"""Source: huggingface_hub, `constants.ENV_VARS_TRUE_VALUES`."""
_LANDMARKS: Final = ("pyvenv.cfg", "lib/python3*/os.py")
"""Files by which a folder is the prefix of a Python. Source: CPython `getpath.py`."""


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
        """
        Return a spec whose children read the model in `root` and their Python, in `environment` if it has one.

        Raises:
            SettingsError: a setting or a link of the model leads out of its folder.
        """
        if not self.is_on:
            return spec
        channels = [folder for path, folder in spec.container_folders.items() if path.is_relative_to(CHANNELS)]
        model = [root, *channels]
        entry = Path(spec.load.entry)
        named = [spec.load.model_dir, *spec.container_folders.values(), *([entry] if entry.is_absolute() else [])]
        self.refuse_outside(named, model)
        reads = [*model, *named, *filter(None, [environment])]
        hub = hub_cache(spec, root, can_download=self.network == "all")
        python = python_folders(spec.python, reads, beside=root.resolve().parents[:2])
        policy = self.policy([*reads, *python, *hub.reads], hub.writes)
        variables = {} if hub.cache is None else {"HF_HUB_CACHE": str(hub.cache)}
        return replace(spec, sandbox=policy, environment={**spec.environment, **variables})

    def refuse_outside(self, named: Iterable[Path], model: Iterable[Path]) -> None:
        """
        Refuse what a model's settings and links name outside of its folders: the code would read it.

        Raises:
            SettingsError: there is such a path.
        """
        allowed = [found for given in (*model, *map(Path, self.folders)) for found in _with_links(given)]
        for path in named:
            if not any(path.resolve().is_relative_to(folder) for folder in allowed):
                raise SettingsError(
                    f"The model's code is in {path.resolve()}, as its settings or a link name it; expected a place in "
                    f"the model's folder, because code in the sandbox reads nothing else. Put it there, or set "
                    f"code_folders (--code-folders) to a folder with it.",
                    name="code_folders",
                )

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
        beside = [parent for folder in own for parent in folder.resolve().parents[:2]]
        return _run(self.policy([*own, *python_folders(python, own, beside), *reads], writes, network=network))

    def command(
        self,
        reads: Iterable[Path],
        writes: Iterable[Path],
        folders: Mapping[Path, Path],
        *,
        scratch: str,
        connects: bool,
    ) -> tuple[str, ...]:
        """
        Return the command that runs a program of ours with a model's code in it, which reads and writes these.

        `folders` are those that it finds at the paths of a container. `connects`: it may connect TCP sockets.
        """
        named = {str(path): str(folder) for path, folder in folders.items()}
        policy = self.policy(reads, writes)
        return _run(replace(policy, scratch=scratch, folders=named, connects=connects))

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
_PROGRAM: Final = Path(privileges.__file__).with_name("__main__.py")
CHILD_DESCRIPTOR: Final = 3
"""The descriptor by which a child finds its socket."""
_USER_SITE: Final = (
    ([], {"PYTHONUSERBASE": site.USER_BASE}) if site.ENABLE_USER_SITE and site.USER_BASE else (["-s"], {})
)
"""Arguments and variables of a child's Python for the user's packages: a model's `HOME` would bring others (`.pth`)."""


def _run(policy: Policy) -> tuple[str, ...]:
    return (*_BARE_PYTHON, str(_PROGRAM), "--run", policy.encoded())


def child_command(spec: HandlerSpec, sandbox: Policy | None) -> tuple[list[str], Mapping[str, str]]:
    """
    Return the command and the environment of a child in a sandbox.

    The child enters it itself, which costs one start of Python less, if nothing of the model's choice runs before: an
    interpreter with packages of its own (`.pth` files), or variables such as `PYTHONPATH` and `LD_PRELOAD`.
    """
    environment = {name: value for name, value in spec.environment.items() if name != PARTS}  # no model's to claim
    python = [str(spec.python), "-P", str(_PROGRAM)]
    arguments = partial(arguments_of, contract=spec.contract, descriptor=CHILD_DESCRIPTOR, parent=os.getpid())
    if sandbox is None or (spec.python == Path(sys.executable) and not runs_early(environment)):
        if sandbox is not None:
            python[1:1] = _USER_SITE[0]
            environment = {name: value for name, value in environment.items() if name != "HOME"} | _USER_SITE[1]
        own = arguments(container_folders=spec.container_folders, private_folders=spec.private_folders, sandbox=sandbox)
        return [*python, *own], environment
    policy = replace(
        sandbox,
        folders={str(path): str(folder) for path, folder in spec.container_folders.items()},
        private=[*map(str, spec.private_folders)],
    )
    return [*_run(policy), *python, *arguments()], deferred(environment)


NO_ISOLATION: Final = Isolation()


@dataclass(frozen=True, slots=True)
class HubCache:
    """The cache of the Hub that code finds, and what it may do there."""

    cache: Path | None = None
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()


def hub_cache(spec: HandlerSpec, root: Path, *, can_download: bool = True) -> HubCache:
    """
    Return the cache for the model of the Hub that the code's settings name; an empty one if they name none.

    Code that downloads gets a folder of its own for each model: what hostile code leaves there, no process outside
    reads and no other model. With `HF_HUB_OFFLINE` it reads that model in the cache of this user.
    """
    named = (spec.environment.get("HF_MODEL_ID", ""), spec.load.options.get("model_id", ""))
    name = next((name for name in map(str.strip, named) if _HUB_ID.fullmatch(name) and not Path(name).exists()), None)
    is_offline = spec.environment.get("HF_HUB_OFFLINE", "").strip().upper() in _TRUE
    if name is None or not (is_offline or can_download):
        return HubCache()
    from huggingface_hub import constants

    from headrace.inference.models.hub import code_folder

    if is_offline:
        cache = Path(constants.HF_HUB_CACHE)
        folder = cache / f"{_HUB_MODEL}{name.replace('/', '--')}"
        _refuse_hub_link(folder)
        return HubCache(cache.resolve(), reads=(folder,))
    folder = code_folder() / sha256(f"{name}\0{root.resolve()}".encode(errors="surrogateescape")).hexdigest()[:20]
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # else code could give its files to other users
    folder.mkdir(mode=0o700, exist_ok=True)
    _refuse_hub_link(folder)
    return HubCache(folder.resolve(), writes=(folder.resolve(),))


def _refuse_hub_link(folder: Path) -> None:
    if folder.is_symlink():  # a model on the platform may set HF_HUB_CACHE, and name a folder of its own
        raise SettingsError(
            f"{folder} is a link; expected a folder of the Hub's cache for the model's code. Remove it."
        )


def python_folders(python: Path, model: Iterable[Path] = (), beside: Iterable[Path] = ()) -> list[Path]:
    """
    Return the folders of an interpreter and its packages; it is not run, because a model may name any program.

    Args:
        python: the interpreter.
        model: folders of the model, which are read anyway.
        beside: folders with other models, whose interpreters are not believed: their `.pth` files do not count.
    """
    if python == Path(sys.executable):
        # Without -P, the first entry is the folder of a script, or the user's current one.
        path = sys.path if sys.flags.safe_path else sys.path[1:]
        found = [sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), *path]
        return [path for path in map(Path, dict.fromkeys(found)) if path.is_absolute() and path.exists()]
    own, doubted = [*model], [*model, *beside]
    places = dict.fromkeys(place.parent.parent.resolve() for place in (python.absolute(), python.resolve()))
    prefixes = [folder for folder in places if any(any(folder.glob(mark)) for mark in _LANDMARKS)]
    believed = [] if is_brought(python, doubted) else [each for each in prefixes if not is_brought(each, doubted)]
    named = [path for prefix in believed for path in _added_folders(prefix)]
    return [*(prefix for prefix in prefixes if not is_brought(prefix, own)), *named]


def is_brought(path: Path, model: Iterable[Path]) -> bool:
    """Return whether an interpreter or a prefix lies in a model's folder, whatever it is a link to."""
    places = {path.absolute(), path.parent.resolve() / path.name}  # `..` and /proc/self/cwd lead into it, too
    return any(place.is_relative_to(folder) for each in model for folder in (each, each.resolve()) for place in places)


def _added_folders(prefix: Path) -> Iterator[Path]:
    """Yield the folders that `.pth` files of a Python add to its path, such as those of editable installs."""
    for file in prefix.glob("lib/python3*/site-packages/*.pth"):
        for line in file.read_text(errors="replace").splitlines():
            path = Path(line.strip())
            if path.is_absolute() and is_folder(path):
                yield path


def _with_links(path: Path) -> Iterator[Path]:
    """Yield a path, its target, and the folder of the Hub's cache to which the links in it lead."""
    yield path.absolute()
    resolved = path.resolve()
    yield resolved
    for folder in (resolved, *resolved.parents[:1]):
        if folder.parent.name == _HUB_SNAPSHOTS and folder.parents[1].name.startswith(_HUB_MODEL):
            yield folder.parents[1]
