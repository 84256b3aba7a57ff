"""The surroundings of hostile code: a process with secrets and sockets, and the outcomes that are refusals."""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace_handler import landlock, syscall_filter

SOURCE = Path(__file__).parents[2] / "src" / "headrace_handler"
HOSTILE = Path(__file__).with_name("hostile.py")
DEBIAN_PYTHON = "/usr/bin/python3"
VICTIM = """
import ctypes, socket, sys, time
folder, key = sys.argv[1], int(sys.argv[2])
places = (f"{folder}/socket", f"\\0{folder}")
sockets = [socket.socket(socket.AF_UNIX) for _ in places]
for each, place in zip(sockets, places):
    each.bind(place)
    each.listen()
port = socket.create_server(("127.0.0.1", 0))
assert ctypes.CDLL(None).shmget(key, 4096, 0o1600) >= 0, "IPC_CREAT"
print(port.getsockname()[1], flush=True)
sys.stdin.read()
"""
MIB = 1 << 20
REFUSED = {
    "arguments of another process": {"ENOENT", "EACCES", "ESRCH"},
    "a port on loopback": {"ECONNREFUSED", "EACCES"},
    "an abstract socket": {"EPERM", "ECONNREFUSED"},
    "the hypervisor": {"EAFNOSUPPORT", "EACCES"},
    "a raw socket": {"EAFNOSUPPORT", "EACCES"},
    "the kernel's cryptography": {"EAFNOSUPPORT", "EACCES"},
    "a list of all sockets": {"EPROTONOSUPPORT"},
    "a protocol that loads a module": {"EPROTONOSUPPORT", "EACCES"},
    "a pair of sockets of TIPC": {"EAFNOSUPPORT"},
    "limits of another process": {"EPERM"},
    "input of a terminal": {"EPERM"},
    "input of a terminal by a longer number": {"EPERM"},
    "clone3": {"ENOSYS"},
    "getpid of the x32 ABI": {"ENOSYS"},
    "another root": {"EPERM"},
    "rights of a file": {"EPERM"},
    "inherited descriptors": {"ENOENT"},
}
"""Outcomes that are expected where a refusal is more than EACCES, EPERM or ENOENT."""
ANY_REFUSAL = {"EACCES", "EPERM", "ENOENT", "ENOTDIR", "ESRCH", "EXDEV", "EROFS", "ENOSYS"}


def need_victims() -> None:
    """Skip the test where hostile code and its victims cannot be started."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path(DEBIAN_PYTHON).exists():
        pytest.skip("needs root, setpriv and a Python that every user may run")
    if landlock.abi() == 0 or not syscall_filter.is_available():
        pytest.skip("this kernel has no Landlock or no seccomp")


def reached(seen: Mapping[str, str | int]) -> dict[str, str | int]:
    """Return the outcomes of attacks that are not refusals."""
    return {name: said for name, said in seen.items() if said not in REFUSED.get(name, ANY_REFUSAL)}


@contextmanager
def place_for(user: list[str]) -> Iterator[Path]:
    """Yield a folder of the user, outside of pytest's own, which only root may enter."""
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as name:
        folder = Path(name)
        shutil.copytree(SOURCE, folder / "headrace_handler")
        for part in ("model", "platform"):
            (folder / part).mkdir()
        shutil.copy(HOSTILE, folder / "model")
        (folder / "model" / "weights").write_bytes(b"weights")
        (folder / "platform" / "database").write_bytes(b"keys")
        owner = 65534 if user else 0
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, owner)
        yield folder


@contextmanager
def victim_in(folder: Path, user: list[str]) -> Iterator[dict[str, str]]:
    """Run a process of the same user that has secrets and sockets; yield where they are."""
    platform = folder / "platform"
    key = os.getpid() % 30_000 + (30_000 if user else 0) + 1
    command = [*user, DEBIAN_PYTHON, "-c", VICTIM, str(platform), str(key)]
    with ExitStack() as stack:
        victim = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"KEY": "secret"})
        )
        stack.callback(victim.kill)
        stack.callback(remove_memory, key)
        assert victim.stdout is not None
        port = victim.stdout.readline().strip()
        yield {
            "victim": str(victim.pid),
            "secret": str(platform / "database"),
            "model": str(folder / "model"),
            "socket": str(platform / "socket"),
            "abstract": str(platform),
            "port": port,
            "memory_key": str(key),
            "marker": str(victim.pid),
            "most_bytes": str(8 * MIB),
            "most_processes": "400",
        }


def remove_memory(key: int) -> None:
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(key, 0, 0), 0, None)


def left_over(marker: str) -> list[int]:
    """Return the processes that the hostile program has left behind; they are killed."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_left = entry.name.isdigit() and f"1000.{marker}" in (entry / "cmdline").read_text()
        except OSError:
            continue
        if is_left:
            found.append(int(entry.name))
            os.kill(found[-1], signal.SIGKILL)
    return found
