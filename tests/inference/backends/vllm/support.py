"""vLLM in an environment of its own, with the Headrace of this checkout on its path."""

import os
import subprocess
import sysconfig
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import headrace
import headrace_handler
from headrace import _native
from headrace.inference.backends.vllm.child import FOLDER_VARIABLE
from tests.e2e.conftest import Served, serve
from tests.waiting import WAIT_S

REPOSITORY = Path(__file__).parents[4]
EMULATES_BF16 = "avx512_bf16" not in Path("/proc/cpuinfo").read_text()
"""True on a CPU on which vLLM computes in float32 twice as fast as in bf16."""
HAS_SHARED_MEMORY = "avx512f" in Path("/proc/cpuinfo").read_text()
"""True on a CPU on which ranks of vLLM exchange tensors in shared memory."""
FLAGS = (
    *("--backend", "vllm", "--enforce-eager", "--kv-cache-bytes", "256MiB", "--max-model-len", "512"),
    *(("--dtype", "fp32") if EMULATES_BF16 else ()),
)
"""The quickest start: vLLM compiles nothing and runs no warm-up of its own."""


@cache
def vllm_python() -> str:
    """The Python with vLLM; making it takes minutes the first time, and the network."""
    made = subprocess.run([REPOSITORY / "scripts" / "environment", "vllm"], capture_output=True, text=True)
    assert made.returncode == 0, f"scripts/environment vllm failed: {made.stderr[-2000:]}"
    return made.stdout.strip()


def installed_headrace(folder: Path) -> Path:
    """Make a folder for PYTHONPATH with what an installation of this checkout has: packages and metadata."""
    package = folder / "headrace"
    package.mkdir(parents=True)
    for entry in Path(headrace.__file__).parent.iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    (folder / "headrace_handler").symlink_to(Path(headrace_handler.__file__).parent)
    native = Path(_native.__file__)
    if not (package / native.name).exists():
        (package / native.name).symlink_to(native)
    (metadata,) = Path(sysconfig.get_path("purelib")).glob("headrace-*.dist-info")
    (folder / metadata.name).symlink_to(metadata)
    return folder


def vllm_environment(folder: Path) -> dict[str, str]:
    """The environment variables for a Headrace in vLLM's environment; writes into `folder` once."""
    site = folder / "site"
    if not site.exists():
        installed_headrace(site)
    return {**os.environ, "PYTHONPATH": str(site), "HEADRACE_LOG_FORMAT": "json"}


def serve_vllm(model: Path, folder: Path, *flags: str) -> Served:
    """Start a server with vLLM and wait until `/ping` is 200."""
    command = (vllm_python(), "-m", "headrace")
    return serve(model, folder, *FLAGS, *flags, env=vllm_environment(folder), command=command)


@dataclass(frozen=True)
class Process:
    """A process, told from a later one of the same id by the time of its start."""

    pid: int
    parent: int = field(compare=False)
    """Changes when the parent ends."""
    name: str = field(compare=False)
    """Changes when the process gives itself a title."""
    started: str


def processes_of(root: int) -> dict[int, Process]:
    """The children of a process, their children and so on."""
    every = [
        process for folder in Path("/proc").glob("[0-9]*") if (process := process_at(int(folder.name))) is not None
    ]
    found: dict[int, Process] = {}
    pending = [root]
    while pending:
        parent = pending.pop()
        children = [process for process in every if process.parent == parent]
        found |= {process.pid: process for process in children}
        pending += [process.pid for process in children]
    return found


def file_of(process: Process, name: str) -> bytes:
    """Read a file of a process in /proc; empty if it has ended."""
    try:
        return Path(f"/proc/{process.pid}/{name}").read_bytes()
    except OSError:
        return b""


def vllm_folder(process: Process) -> Path | None:
    """The folder in which a process of vLLM has its files, by which the watchdog finds it."""
    mark = f"{FOLDER_VARIABLE}=".encode()
    variables = file_of(process, "environ").split(b"\0")
    return next((Path(os.fsdecode(found.removeprefix(mark))) for found in variables if found.startswith(mark)), None)


def vllm_processes_of(server: int) -> dict[int, Process]:
    """The processes of vLLM under a server or a platform."""
    return {pid: process for pid, process in processes_of(server).items() if vllm_folder(process) is not None}


def files_of(processes: dict[int, Process]) -> set[Path]:
    """The folders of processes of vLLM, and their shared memory: that of Python and that of ranks on a CPU."""
    mapped = [line.split() for process in processes.values() for line in file_of(process, "maps").decode().splitlines()]
    shared = {Path(fields[5]) for fields in mapped if len(fields) == 6}
    shared = {path for path in shared if path.match("/dev/shm/psm_*") or path.match("/dev/shm/vllm_dist_*")}
    folders = {vllm_folder(process) for process in processes.values()} - {None}
    return {path for path in shared | folders if path is not None and path.exists()}


def wait_until_gone(processes: dict[int, Process]) -> None:
    """Wait until all of these processes have ended."""
    deadline_s = time.monotonic() + WAIT_S
    while left := [process for process in processes.values() if process_at(process.pid) == process]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def process_at(pid: int) -> Process | None:
    """Read a process; None if there is none, or only its exit code is left."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), head.partition("(")[2], fields[19])
