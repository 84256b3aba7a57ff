"""
Processes that outlive their parent, identified so that a reused process id is never mistaken for them.

A process is identified by its id, its start tick on the kernel's clock, and the boot id: a reused id has another start
tick. Signals are sent through a pidfd, so that they cannot reach a process that has reused the id.

Source: Linux `proc(5)` (`/proc/[pid]/stat`), `pidfd_open(2)`, `prctl(2)`.
"""

import asyncio
import ctypes
import functools
import os
import re
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PEAK: Final = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_ENDED_STATES: Final = frozenset("ZXx")
_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """The identity of a process, unique across id reuse and reboots."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    session: int
    start_ticks: int
    resident_pages: int


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of the process `pid`, zombie or not; None if there is none."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid=pid, start_ticks=stat.start_ticks, boot_id=_boot_id())


def this_process() -> ProcessId:
    """Return the identity of this process."""
    process = process_id(os.getpid())
    assert process is not None, "this process runs"
    return process


def is_running(process: ProcessId) -> bool:
    """Return whether the process runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and _is_same(process, stat) and stat.state not in _ENDED_STATES


def host_id() -> str:
    """Return the boot and PID namespace of this process; processes with the same see each other's ids."""
    with suppress(OSError):
        return f"{_boot_id()}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    return _boot_id()


def spawn(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> ProcessId:
    """
    Start a program in its own session, without input; its output is appended to `output`.

    The process shares nothing with this one: no pipe, no terminal, no descriptor.

    Raises:
        OSError: the program cannot be started.
        ValueError: an argument or a variable contains a NUL.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return _spawn(
        arguments,
        environment,
        [(os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)],
    )


def spawn_connected(
    arguments: Sequence[str], environment: Mapping[str, str], descriptors: Mapping[int, int]
) -> ProcessId:
    """
    Start a program in its own session, without input; it gets these descriptors of this process and no others.

    Args:
        arguments: the program's path first.
        environment: the whole environment.
        descriptors: number in the program, at most 3 → descriptor of this process, above 2.

    Raises:
        OSError: the program cannot be started.
        ValueError: an argument or a variable contains a NUL.
    """
    actions = [(os.POSIX_SPAWN_DUP2, descriptors[number], number) for number in sorted(descriptors)]
    return _spawn(arguments, environment, actions)


def _spawn(
    arguments: Sequence[str], environment: Mapping[str, str], file_actions: Sequence[tuple[object, ...]]
) -> ProcessId:
    opened = {action[-1] for action in file_actions if action[0] == os.POSIX_SPAWN_DUP2}
    pid = os.posix_spawn(
        arguments[0],
        list(arguments),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *file_actions,
            *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable() if descriptor not in opened),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )
    process = process_id(pid)
    assert process is not None, "a child stays until it is waited for"
    return process


def reap(process: ProcessId) -> int | None:
    """
    Wait for a child that has ended.

    Returns:
        The exit code, negative for a signal; None if the process runs or is not a child of this one.
    """
    stat = _stat(process.pid)
    if stat is None or not _is_same(process, stat):
        return None
    with suppress(ChildProcessError):
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    return None


def send_signal(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to a process if it runs."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_running(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


async def until_ended(process: ProcessId) -> None:
    """Wait until a process ends, which need not be a child of this one."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        if is_running(process):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def kill_session(leader: ProcessId) -> None:
    """Send SIGKILL to a process and its descendants, also after its own end, unless they left its session."""
    stat = _stat(leader.pid)
    if leader.boot_id != _boot_id() or (stat is not None and not _is_same(leader, stat)):
        return
    send_signal(leader, signal.SIGKILL)
    for pid in _members(leader.pid):
        if (member := process_id(pid)) is not None:
            send_signal(member, signal.SIGKILL)


def is_session_running(leader: ProcessId) -> bool:
    """Return whether a process or a descendant in its session runs."""
    stat = _stat(leader.pid)
    if leader.boot_id != _boot_id() or (stat is not None and not _is_same(leader, stat)):
        return False
    stats = [_stat(pid) for pid in _members(leader.pid)]
    return any(member is not None and member.state not in _ENDED_STATES for member in stats)


def memory_bytes(process: ProcessId) -> int:
    """Return the resident memory of a process and all its descendants; 0 if it does not run."""
    return sum(pages for _, pages in _tree(process)) * resource.getpagesize()


def peak_memory_bytes(process: ProcessId) -> int:
    """Return the most memory that was resident in a process and its descendants, each at its own peak."""
    total_kib = 0
    for pid, _ in _tree(process):
        with suppress(OSError):
            found = _PEAK.search((_PROC / str(pid) / "status").read_text())
            total_kib += int(found[1]) if found is not None else 0
    return total_kib << 10


def _tree(process: ProcessId) -> Iterator[tuple[int, int]]:
    """Yield a process and all its descendants, with their resident pages; nothing if it does not run."""
    if not is_running(process):
        return
    stats = {
        int(entry.name): stat for entry in _PROC.iterdir() if entry.name.isdigit() and (stat := _stat(int(entry.name)))
    }
    members = {process.pid}
    for pid in sorted(stats, key=lambda pid: stats[pid].start_ticks):  # parents come before their children
        if pid in members or stats[pid].parent in members:
            members.add(pid)
            yield pid, stats[pid].resident_pages


def protect_memory() -> None:
    """
    Keep the memory and the environment of this process from other programs of its user: they hold prompts and keys.

    No core file is written, and only root with CAP_SYS_PTRACE may trace it or read its `environ` and `mem` in `/proc`.
    A fork is protected as well; a program that replaces the process is not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    _prctl(_PR_SET_DUMPABLE, 0)


def processes_with_argument(argument: str) -> list[ProcessId]:
    """Return the running processes that have exactly this argument in their command line."""
    wanted, found = argument.encode(), []
    for entry in _PROC.iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(process_id(int(entry.name)))
    return [process for process in found if process is not None]


def end_with(parent: ProcessId, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """
    Make the kernel signal this process, or the program that replaces it, when its parent ends for any reason.

    Raises:
        OSError: the kernel refuses, or the parent has already ended.
    """
    _prctl(_PR_SET_PDEATHSIG, death_signal)
    if not is_running(parent):
        raise ProcessLookupError(f"process {parent.pid}, which started this one, has ended")


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _inheritable() -> Iterator[int]:
    """Yield the descriptors that this process inherited and that its children would inherit too."""
    for entry in (_PROC / "self/fd").iterdir():
        descriptor = int(entry.name)
        with suppress(OSError):  # the descriptor of this listing is closed by now
            if descriptor > 2 and os.get_inheritable(descriptor):
                yield descriptor


def _members(session: int) -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None and stat.session == session:
            yield int(entry.name)


def _is_same(process: ProcessId, stat: _Stat) -> bool:
    return stat.start_ticks == process.start_ticks and process.boot_id == _boot_id()


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # before it is the program's name in brackets, which may contain brackets
    return _Stat(
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
    )


@functools.cache
def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
