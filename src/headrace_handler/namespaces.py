"""
Namespaces of a process: its own mounts, processes, IPC objects and network, and the root folder that it sees.

A process without CAP_SYS_ADMIN makes them in a user namespace, and has all capabilities in it until it gives them up
(`headrace_handler.privileges`).

Source: Linux `namespaces(7)`, `user_namespaces(7)`, `pid_namespaces(7)`, `mount(2)`, `pivot_root(2)`.
"""

import fcntl
import os
import resource
import select
import signal
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, NoReturn

NEW_MOUNTS, NEW_IPC, NEW_USER = 0x0002_0000, 0x0800_0000, 0x1000_0000
NEW_PROCESSES, NEW_NETWORK = 0x2000_0000, 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, 0x8000, 1
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_NO_ERRNO = 255
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that the waiting processes pass on to the inner one, which may be a server that stops gracefully."""
_EMPTY_FOLDERS = ("/dev", "/opt", "/proc", "/run")
_BASE = "/tmp"  # noqa: S108 -- covered by a mount of this process's own


def read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123 -- pathlib costs milliseconds here
        return file.read()


def write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        file.write(text)


@cache
def _libraries() -> "tuple[Any, Any]":
    """Return ctypes and the C library."""
    import ctypes

    return ctypes, ctypes.CDLL(None, use_errno=True)


class Kernel:
    """The system calls, which Python 3.11 does not have."""

    def __init__(self) -> None:
        self._ctypes, self._libc = _libraries()

    def enter(self, flags: int = NEW_MOUNTS) -> None:
        """Enter new namespaces, and a user namespace if that is needed."""
        user, group = os.geteuid(), os.getegid()
        try:
            self._call("unshare", flags)
        except OSError:
            if user == 0:  # in a user namespace it would lose root's rights to other users' files
                raise
        else:
            return
        self._call("unshare", NEW_USER | flags)
        self.map_user(user, group)

    def fork_into(self, flags: int) -> tuple[int, bool]:
        """
        Fork as process 1 of new namespaces; return its id, 0 in it, and whether it has a user namespace to map.

        It may only wait and fork: this is not `os.fork`, which prepares Python and the C library for more.
        """
        if (pid := self._clone(flags)) >= 0:
            return pid, False
        if os.geteuid() != 0 and (pid := self._clone(NEW_USER | flags)) >= 0:
            return pid, True
        number = self._ctypes.get_errno()
        raise OSError(number, os.strerror(number))

    def _clone(self, flags: int) -> int:
        long = self._ctypes.c_long
        libc = self._ctypes.PyDLL(None, use_errno=True)  # keeps Python's lock, which the new process needs
        libc.syscall.restype = long
        return int(libc.syscall(long(_CLONE[os.uname().machine]), long(flags | signal.SIGCHLD), *[long(0)] * 4))

    @staticmethod
    def map_user(user: int, group: int) -> None:
        """Be the same user in a new user namespace."""
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            write(f"/proc/self/{name}", text)

    def mount(
        self, source: str | None, target: "str | Path", kind: str | None, flags: int, data: bytes | None = None
    ) -> None:
        texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
        self._call("mount", *texts, self._ctypes.c_ulong(flags), data)

    def protect(self, place: str) -> None:
        """Make what is mounted at a place read-only, with the mounts below it; no other mount of it changes."""
        self._set_attributes(place, _AT_RECURSIVE, (_MOUNT_ATTR_RDONLY, 0))

    def make_writable(self, place: str) -> None:
        self._set_attributes(place, 0, (0, _MOUNT_ATTR_RDONLY))

    def _set_attributes(self, place: str, flags: int, set_and_cleared: tuple[int, int]) -> None:
        attributes = struct.pack("QQQQ", *set_and_cleared, 0, 0)
        size = self._ctypes.c_size_t(len(attributes))
        self._call("syscall", _MOUNT_SETATTR, -1, os.fsencode(place), flags, attributes, size)

    def change_root(self, folder: str) -> None:
        """Make a mount point the root of this process and of what it starts, and forget the old one."""
        os.chdir(folder)
        self._call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
        self._call("umount2", b".", _DETACH)
        os.chdir("/")

    def end_with_parent(self) -> None:
        self._call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def protect_memory(self) -> None:
        """Keep the memory and the environment of this process from other processes of its user."""
        self._call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)

    def _call(self, name: str, *arguments: "Any") -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def rehearse(action: Callable[[], None]) -> OSError | None:
    """Return why an action fails, tried in a fork: a partly built namespace is useless to user code."""
    pid = os.fork()
    if pid == 0:
        code = _NO_ERRNO
        try:
            action()
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _reason(code) if code else None


def build_root(kernel: Kernel, reads: Sequence[str], writes: Sequence[str], folders: Mapping[str, int | None]) -> None:
    """
    Make a root of memory with nothing but these paths of the host, at their places, and enter it.

    Args:
        kernel: to mount with; its mount namespace is this process's own.
        reads: files and folders of the host that cannot be changed; those that do not exist are left out.
        writes: files and folders that can.
        folders: private folders of memory by their path, with their limits in bytes (None: half of the memory).
    """
    kernel.mount(None, "/", None, MS_REC | MS_SLAVE)  # mounts here are not made on the host
    found, opened = _open_outermost([*reads, *writes])
    kernel.mount("tmpfs", _BASE, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
    root = f"{_BASE}/root"
    os.mkdir(root)  # noqa: PTH102 -- pathlib costs milliseconds here
    kernel.mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
    for folder, limit_bytes in folders.items():
        os.makedirs(root + folder)  # noqa: PTH103
        size = b"" if limit_bytes is None else b",size=%d" % limit_bytes
        kernel.mount("tmpfs", root + folder, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777" + size)
    places = {path: root + path for path in found if _make_place(root + path, path, found[path], opened[path])}
    for path in places.keys() - set(writes):
        kernel.mount(f"/proc/self/fd/{opened[path]}", places[path], None, MS_BIND | MS_REC)
    for folder in _EMPTY_FOLDERS:
        os.makedirs(root + folder, exist_ok=True)  # noqa: PTH103
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{root}/dev/{name}")  # noqa: PTH211
    kernel.protect(root)
    for folder in folders:
        kernel.make_writable(root + folder)
    for path in places.keys() & set(writes):
        kernel.mount(f"/proc/self/fd/{opened[path]}", places[path], None, MS_BIND | MS_REC)
    _close(*opened.values())  # they lead out of the new root
    kernel.change_root(root)


def _open_outermost(paths: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the paths that exist and lie below no other one: their targets (after them, if links), and descriptors."""
    found: dict[str, str] = {}
    opened: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 -- `realpath`, but a tenth of its time
            opened[path] = descriptor
            found.update({path: target, target: target})
    kept: dict[str, str] = {}
    for place, target in sorted(found.items(), key=lambda item: (item[0] != item[1], item[0])):
        parts = place.split("/")
        if not any("/".join(parts[:count]) in kept for count in range(2, len(parts))):
            kept[place] = target
    _close(*(opened[path] for path in opened.keys() - kept.keys()))
    return kept, {path: opened.get(path) or os.open(path, os.O_PATH | os.O_CLOEXEC) for path in kept}


def _make_place(place: str, path: str, target: str, descriptor: int) -> bool:
    """Make the mount point of a path in the new root; a link becomes a link, for its target has a place of its own."""
    _make_parents(place)
    if os.path.lexists(place):  # through a link that is there already
        return False
    if target != path and not path.startswith("/etc/"):
        os.symlink(target, place)  # noqa: PTH211
        return False
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.mkdir(place)  # noqa: PTH102
    else:
        os.close(os.open(place, os.O_CREAT | os.O_CLOEXEC, 0o600))
    return True


def _make_parents(place: str) -> None:
    parent = place.rpartition("/")[0]
    try:
        os.mkdir(parent, 0o755)  # noqa: PTH102
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_parents(parent)
        os.mkdir(parent, 0o755)  # noqa: PTH102


def raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def continue_inside(flags: int, prepare: Callable[[], None], resign: Callable[[], None]) -> OSError | None:
    """
    Return None in a new process in namespaces of its own; the first process only waits for it, and ends as it does.

    Process 1 of the namespaces lies between the two: it collects orphans, and all other processes end with it. Where
    namespaces cannot be made, nothing has changed and the reason is returned.

    Args:
        flags: the kinds of namespaces, that for processes among them.
        prepare: runs in process 1, with all capabilities in the namespaces; an `OSError` of it is a reason.
        resign: gives up the capabilities of the two processes that only wait.
    """
    status_read, status_write = os.pipe()
    alive_read, alive_write = os.pipe()
    parent, user, group = os.getppid(), os.geteuid(), os.getegid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # process 1 would lose a signal without a handler
    try:
        pid, is_mapped = Kernel().fork_into(flags)
    except OSError as error:
        _close(status_read, status_write, alive_read, alive_write)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return error
    if pid != 0:
        _close(status_write, alive_read)
        if (reason := _read_outcome(pid, status_read)) is not None:
            _close(status_read, alive_write)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return reason
        resign()
        Kernel().end_with_parent()  # a change of capabilities may reset it
        if os.getppid() != parent:
            os._exit(1)
        _forward_to(pid, mask)
        _relay(pid, status_read, keep=alive_write)
    _close(status_read, alive_write)
    _begin_as_first(prepare, status_write, alive_read, (user, group) if is_mapped else None)
    pid = os.fork()
    if pid != 0:
        resign()
        _forward_to(pid, mask)
        _collect(pid, status_write, keep=alive_read)
    _close(status_write, alive_read)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return None


def _forward_to(pid: int, mask: Iterable[int]) -> None:
    """Pass signals on to a process, those that have come before too; `mask` are those to block from now on."""

    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_as_first(prepare: Callable[[], None], status: int, alive: int, ids: tuple[int, int] | None) -> None:
    """Prepare the namespaces as their process 1, and say how that went."""
    code = _NO_ERRNO
    try:
        kernel = Kernel()
        kernel.end_with_parent()
        if not select.select([alive], [], [], 0)[0]:  # else the other end is closed: the parent has ended before
            if ids is not None:
                kernel.map_user(*ids)
            prepare()
            code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        os.write(status, struct.pack("i", code))
        if code:
            os._exit(1)


def _read_outcome(pid: int, status: int) -> OSError | None:
    """Return why process 1 could not prepare its namespaces; None if it could."""
    written = os.read(status, 4)
    if len(written) == 4 and struct.unpack("i", written)[0] == 0:
        return None
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _reason(struct.unpack("i", written)[0] if len(written) == 4 else min(code, 0) or _NO_ERRNO)


def _reason(code: int) -> OSError:
    """Return an error from the error number or the negative signal of a process that has tried."""
    if code < 0:
        return OSError(_NO_ERRNO, f"the process was ended by {signal.Signals(-code).name}")
    return OSError(code, "this Python cannot make one" if code == _NO_ERRNO else os.strerror(code))


def _relay(pid: int, status: int, *, keep: int) -> "NoReturn":
    """Wait for process 1, then end with the status that it has written, or by the signal that has ended it."""
    _close_others(status, keep)
    _, own = os.waitpid(pid, 0)
    written = os.read(status, 4)
    end_as(os.waitstatus_to_exitcode(struct.unpack("i", written)[0] if len(written) == 4 else own))


def end_as(code: int) -> "NoReturn":
    """End this process as another one has ended: with an exit code, or by a signal if it is negative."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _collect(pid: int, status: int, *, keep: int) -> "NoReturn":
    """Be process 1: collect what ends, until the process of the user's code has ended."""
    _close_others(status, keep)
    while True:
        ended, its_status = os.wait()
        if ended == pid:
            os.write(status, struct.pack("i", its_status))
            os._exit(0)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _close_others(*kept: int) -> None:
    """Close the descriptors of user code, so that their other ends see when it ends."""
    first = 0
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 1 << 16)
