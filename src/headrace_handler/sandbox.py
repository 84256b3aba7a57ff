"""
The sandbox of user code: the files, processes, sockets and system calls that a child and all that it starts may use.

Landlock decides about files, a filter about system calls. Where the kernel allows namespaces, the child also has a root
folder of its own with nothing else in it, its own processes, IPC objects and `/tmp`. `docs/sandbox.md` has the rows.

The steps need an order: `enter` before threads exist and before capabilities are given up, `confine` after both. What
is imported before `enter` (here no dataclasses, typing or pathlib) is copied page by page into the processes that it
forks.
"""

import json
import os
import resource
import sys
from contextlib import suppress
from types import SimpleNamespace

from headrace_handler import landlock, syscall_filter
from headrace_handler.namespaces import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    NEW_IPC,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_PROCESSES,
    Kernel,
    build_root,
    continue_inside,
    raise_loopback,
    read,
    write,
)
from headrace_handler.privileges import give_up_privileges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import NoReturn

    from headrace_handler.policy import Policy

ARGUMENT = "--sandbox="
"""The argument of a child that has its policy."""
PARTS = "HEADRACE_SANDBOX_PARTS"
"""The variable by which a program in a sandbox learns the parts that are in force."""
LATER = "LATER_OF_HEADRACE_"
"""Prefix of variables that a program gets in its sandbox only: before, they would run code of the model's choice."""
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/nix/store", "/gnu/store"),
    *("/opt/amazon", "/opt/aws", "/opt/conda", "/opt/intel", "/opt/nvidia", "/opt/rocm"),
    # Not all of /sys: root would read traces and names of processes below /sys/kernel/debug and /sys/kernel/tracing.
    *(f"/sys/{name}" for name in ("block", "bus", "class", "dev", "devices", "fs/cgroup", "kernel/mm", "module")),
    "/sys/firmware/devicetree",
)
_CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "group", "gai.conf", "host.conf"),
        *("hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "OpenCL"),
        *("os-release", "passwd", "pki", "protocols", "resolv.conf", "services", "ssl", "timezone", "vulkan"),
    )
)
"""Files of `/etc` that libraries read; the rest, such as `/etc/shadow`, is out of reach."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ACCELERATORS = ("nvidia", "neuron", "kfd")
"""Beginnings of names in `/dev`."""
_ACCELERATOR_FOLDERS = ("nvidia-caps", "dri", "accel", "infiniband")
_TEMPORARY, _SHARED_MEMORY, _CONTAINER = "/tmp", "/dev/shm", "/opt/ml"  # noqa: S108 -- a mount of this process's own
_OWN_PID_MAX = (6, 14)
"""The first Linux in which `kernel.pid_max` belongs to a namespace: on an earlier one a write changes the host."""
_OWN_PROCESS_COUNT = (5, 14)
"""The first Linux that counts the processes of a user for each user namespace: before, all that the user has count."""
_LEAST_PID_MAX = 301
_OOM_SCORE = 800
"""Where memory runs out, the kernel ends code of a model before the server and others. Source: `proc(5)`."""
_ADVICE = (
    "Run Headrace where user namespaces or CAP_SYS_ADMIN, Landlock and seccomp are allowed (`headrace doctor` says "
    "which are), or change the setting `sandbox`, `code_network` or `code_temporary_bytes`."
)


class Sandbox:
    """The parts of a sandbox that are in force in this process."""

    def __init__(self, policy: "Policy") -> None:
        self.policy = policy
        self.namespaces: tuple[str, ...] = ()
        self.landlock = 0
        """ABI of Landlock; 0: files are not restricted."""
        self.has_filter = False
        self.limits: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        """Parts that this kernel or container does not allow."""
        self.failure = ""
        """Why no code may run; empty if it may."""

    def describe(self) -> str:
        """Return one line for the log."""
        files = f"Landlock {self.landlock}" if self.landlock else "no Landlock"
        parts = [f"namespaces {' '.join(self.namespaces) or 'none'}", files]
        parts += ["system-call filter"] * self.has_filter + [f"network {self.policy.network}", *self.limits]
        return "; ".join([*parts, *self.missing])


def decode(text: str) -> "Policy":
    # It has the fields of the class, which is not worth its import.
    policy: Policy = SimpleNamespace(**json.loads(text))  # type: ignore[assignment]
    return policy


def enter(policy: "Policy") -> Sandbox:
    """
    Enter namespaces; call it before threads exist. Where it returns, this is a new process: the first one waits for it.

    `failure` says if the network or the limit of temporary files that the policy wants cannot be had.
    """
    sandbox = Sandbox(policy)
    flags = NEW_MOUNTS | NEW_IPC | NEW_PROCESSES | (0 if policy.network == "all" else NEW_NETWORK)
    temporary = _TEMPORARY

    with suppress(OSError):
        if int(read("/proc/self/oom_score_adj")) < _OOM_SCORE:
            write("/proc/self/oom_score_adj", str(_OOM_SCORE))

    def only_wait() -> None:
        give_up_privileges(keeps_bounding_set=True)  # it starts no program
        Kernel().protect_memory()  # the code sees process 1, which has no filter
        with suppress(OSError):  # process 1 has another /tmp
            os.rmdir(policy.scratch)  # noqa: PTH106

    error = continue_inside(flags, lambda: _prepare_inside(sandbox), only_wait)
    if error is None:
        sandbox.namespaces = ("mount", "ipc", "pid", *(["network"] if flags & NEW_NETWORK else []))
    elif policy.network == "loopback":
        sandbox.failure = f"A network of its own cannot be made for the code: {error.strerror}. {_ADVICE}"
    elif policy.temporary_bytes is not None:
        sandbox.failure = f"The code's temporary files cannot be limited: no namespaces ({error.strerror}). {_ADVICE}"
    else:
        sandbox.missing += (f"no namespaces ({error.strerror})",)
        temporary = _without_mounts(policy)
    os.environ.update(HOME=temporary, TMPDIR=temporary)
    return sandbox


def confine(sandbox: Sandbox, private: "Sequence[Path]" = ()) -> None:
    """
    Restrict files, system calls and memory of this thread and of all that it starts, for good.

    Needs `give_up_privileges` before it. Where there are namespaces, the code may change the `private` folders, which
    `container_folders.provide` has covered. `failure` says if a part that the policy requires cannot be had.
    """
    policy = sandbox.policy
    covered = (_TEMPORARY, *map(str, private)) if sandbox.namespaces else (_without_mounts(policy),)
    # A root of its own has nothing else in it, and each rule takes time.
    reads = ("/",) if sandbox.namespaces else (*_SYSTEM, *_CONFIGURATION, _CONTAINER, *policy.read)
    writes, has_network = (*policy.write, *covered, _SHARED_MEMORY), policy.network != "none"
    may_connect = has_network and policy.connects
    sandbox.landlock = landlock.restrict(reads, writes, _devices(), may_connect=may_connect)
    if not sandbox.landlock:
        sandbox.missing += ("no Landlock: it may read and change what its user may",)
    if 0 < sandbox.landlock < landlock.SCOPES_ABI and "network" not in sandbox.namespaces:
        instead = "Linux 6.12 keeps them out, and so does code_network loopback or none"
        sandbox.missing += (f"abstract sockets of other programs are in reach ({instead})",)
    # Without a root folder of its own, files of others are in reach. An installer, which has no scratch folder, is to
    # set the modes of programs.
    has_own_files = bool(sandbox.namespaces) or not policy.scratch
    sandbox.has_filter = syscall_filter.restrict(
        has_network=has_network, may_connect=may_connect, has_own_files=has_own_files
    )
    if not sandbox.has_filter:
        sandbox.missing += ("no filter of system calls",)
        if policy.network == "none":
            sandbox.failure = f"The code cannot be kept from the network without seccomp. {_ADVICE}"
    if policy.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (policy.memory_bytes, policy.memory_bytes))
        sandbox.limits += (f"{policy.memory_bytes} bytes of memory for a process",)
    if policy.is_required and sandbox.missing:
        missing = "; ".join(sandbox.missing)
        sandbox.failure = f"The sandbox of the code is incomplete, and it is required: {missing}. {_ADVICE}"


def _without_mounts(policy: "Policy") -> str:
    """Return the folder that stands for `/tmp` without a mount namespace: an installer has that which it fills."""
    return policy.scratch or next(iter(policy.write), _SHARED_MEMORY)


def _prepare_inside(sandbox: Sandbox) -> None:
    """Show only what the policy names, and only the processes of the namespace; limit their number."""
    policy, kernel = sandbox.policy, Kernel()
    if policy.network == "loopback":
        raise_loopback()
    writes = (*policy.write, *_devices())
    folders = {_TEMPORARY: policy.temporary_bytes, _SHARED_MEMORY: None}
    build_root(kernel, (*_SYSTEM, *_CONFIGURATION, *policy.read), writes, folders)
    try:
        kernel.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError as error:  # such as in a container that hides parts of /proc
        sandbox.missing += (f"no /proc of its own ({error.strerror}): it sees the names of other processes",)
        return
    _limit_processes(sandbox, os.uname().release)
    kernel.protect("/proc")  # root could change the kernel's settings without capabilities


def _limit_processes(sandbox: Sandbox, release: str) -> None:
    """Limit processes and threads by the namespace of processes; on older kernels by that of users, if there is one."""
    most = max(_LEAST_PID_MAX, sandbox.policy.max_processes)
    version = tuple(int(number) for number in release.partition("-")[0].split(".")[:2])
    try:
        if version >= _OWN_PID_MAX:
            write("/proc/sys/kernel/pid_max", str(most))
        elif version >= _OWN_PROCESS_COUNT and read("/proc/self/uid_map").split()[2] == "1":
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        else:
            sandbox.missing += (f"no limit of processes (Linux {release} has none for this user; 6.14 has one)",)
            return
    except OSError as error:
        sandbox.missing += (f"no limit of processes ({error.strerror})",)
        return
    sandbox.limits += (f"at most {most} processes and threads",)


def _devices() -> list[str]:
    names = os.listdir("/dev")  # noqa: PTH208 -- pathlib costs milliseconds here
    found = [f"/dev/{name}" for name in names if name.startswith(_ACCELERATORS)]
    for folder in {*_ACCELERATOR_FOLDERS} & {*names}:
        found += [f"/dev/{folder}/{name}" for name in os.listdir(f"/dev/{folder}")]  # noqa: PTH208
    return [*_DEVICES, *found]


def survey() -> "NoReturn":
    """Print what a sandbox would have in force here."""
    from headrace_handler.policy import Policy

    inside = enter(Policy())
    give_up_privileges()
    confine(inside)
    print(json.dumps({"found": inside.describe(), "missing": inside.missing}))
    sys.exit()


def run_program(policy: str, command: list[str]) -> "NoReturn":
    """Replace this process by a program that runs in a sandbox, such as an installer of packages."""
    from pathlib import Path

    from headrace_handler.container_folders import provide

    os.environ["PIP_NO_CACHE_DIR"] = "1"  # its home is temporary
    folder = os.getcwd()  # noqa: PTH109
    inside = enter(decode(policy))
    with suppress(OSError):  # requirements may name packages by relative paths
        os.chdir(folder)
    mounts = {Path(path): Path(place) for path, place in inside.policy.folders.items()}
    private = [Path(folder) for folder in inside.policy.private]
    print(provide(mounts, private, has_own_mounts=bool(inside.namespaces)), end="", file=sys.stderr)
    give_up_privileges()
    if not inside.namespaces:  # the end of process 1 is the end of its namespace
        Kernel().end_with_parent()
    confine(inside, private)
    if inside.failure:
        sys.exit(f"Error: {inside.failure}")
    for name in [name for name in os.environ if name.startswith(LATER)]:
        os.environ[name.removeprefix(LATER)] = os.environ.pop(name)
    os.environ[PARTS] = inside.describe()
    os.execv(command[0], command)  # noqa: S606 -- the program is the caller's
