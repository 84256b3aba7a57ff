"""
The policy of a sandbox, as the model server decides it.

Only the server imports this module: a child, whose imports before its sandbox cost each of the processes that it forks,
has the same fields from JSON (`headrace_handler.sandbox.decode`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from headrace_handler.sandbox import LATER

_EARLY = ("LD_", "PYTHON", "GCONV_", "GLIBC_", "OPENSSL_", "LOCPATH")
"""Beginnings of variables by which a program runs other code, or opens other files, before its first line."""
_HARMLESS = frozenset({"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHON_EXECUTABLE"})
_OF_SERVERS = frozenset(
    (
        *("HOME", "PATH", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSLKEYLOGFILE", "SSL_CERT_FILE"),
        *("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "NUMBA_CACHE_DIR"),
        *("CUDA_CACHE_PATH", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"),
    )
)
"""Variables by which a model server runs other programs, loads compiled code or writes files, in no sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rights of user code, as the model server decides them; it travels as JSON in the child's arguments."""

    read: Sequence[str] = ()
    """Files and folders that it may read and execute, beside those of the system."""
    write: Sequence[str] = ()
    """Folders that it may change, beside its own `/tmp`."""
    scratch: str = ""
    """An empty folder that stands for `/tmp` where there are no mount namespaces."""
    network: str = "all"
    """`all`, `loopback` (its own, on which nothing else listens) or `none`."""
    connects: bool = True
    """It may connect TCP sockets, also one that it has been given and that listens on the network outside."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders that a program finds at these paths of a container; those of a child are arguments."""
    private: Sequence[str] = ()
    """Folders of the host in which a program may create files for itself; those of a child are arguments."""
    is_required: bool = False
    """Run no code unless every part of the sandbox is in force."""
    max_processes: int = 4096
    """Processes and threads."""
    memory_bytes: int | None = None
    """Private memory of each process."""
    temporary_bytes: int | None = None
    """Size of its `/tmp`. None: half of the machine's memory."""

    def encoded(self) -> str:
        """Return the policy as JSON."""
        return json.dumps(asdict(self))


def decides_for_server(name: str) -> bool:
    """Return whether a variable is for a model's code alone: a server with it would run code that it names."""
    return name in _OF_SERVERS or (name.startswith(_EARLY) and name not in _HARMLESS)


def restored(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the own names of variables that are for a model's code alone."""
    later = {name.removeprefix(LATER): value for name, value in environment.items() if name.startswith(LATER)}
    return {name: value for name, value in environment.items() if not name.startswith(LATER)} | later


def runs_early(environment: Mapping[str, str]) -> bool:
    """Return whether code that an environment names would run in a process before it could enter a sandbox."""
    return any(name.startswith(_EARLY) and name not in _HARMLESS for name in environment)


def deferred(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which such variables have other names until `run_program` is in the sandbox."""
    return {
        f"{LATER}{name}" if name.startswith(_EARLY) and name not in _HARMLESS else name: value
        for name, value in environment.items()
    }
