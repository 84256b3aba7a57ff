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
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

NEW_MOUNTS, NEW_IPC, NEW_USER = 0x0002_0000, 0x0800_0000, 0x1000_0000
NEW_PROCESSES, NEW_NETWORK = 0x2000_0000, 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, 0x8000, 1
_PR_SET_PDEATHSIG = 1
_NO_ERRNO = 255
_EMPTY_FOLDERS = ("dev", "opt", "proc", "run")


class Kernel:
    """The system calls, which Python 3.11 does not have."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)

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
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")

    def mount(self, source: str | None, target: Path, kind: str | None, flags: int, data: bytes | None = None) -> None:
        texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
        self._call("mount", *texts, self._ctypes.c_ulong(flags), data)

    def protect(self, place: Path) -> None:
        """Make what is mounted at a place read-only, with the mounts below it; no other mount of it changes."""
        if not place.is_symlink():
            attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
            size = self._ctypes.c_size_t(len(attributes))
            self._call("syscall", _MOUNT_SETATTR, -1, os.fsencode(place), _AT_RECURSIVE, attributes, size)

    def change_root(self, folder: Path) -> None:
        """Make a mount point the root of this process and of what it starts, and forget the old one."""
        os.chdir(folder)
        self._call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
        self._call("umount2", b".", _DETACH)
        os.chdir("/")

    def end_with_parent(self) -> None:
        self._call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def try_to_isolate(flags: int) -> None:
    """Enter namespaces and mount in them: what a kernel or a container may forbid."""
    kernel = Kernel()
    kernel.enter(flags)
    kernel.mount(None, Path("/"), None, MS_REC | MS_SLAVE)
    kernel.mount("tmpfs", Path("/tmp"), "tmpfs", MS_NOSUID | MS_NODEV)  # noqa: S108 -- of this process alone


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
    if code < 0:
        return OSError(_NO_ERRNO, f"the process was ended by {signal.Signals(-code).name}")
    if code == _NO_ERRNO:
        return OSError(code, "this Python cannot make one")
    return OSError(code, os.strerror(code)) if code else None


def build_root(kernel: Kernel, reads: Sequence[str], writes: Sequence[str], folders: Mapping[str, int | None]) -> None:
    """
    Make a root of memory with nothing but these paths of the host, at their places, and enter it.

    Args:
        kernel: to mount with; its mount namespace is this process's own.
        reads: files and folders of the host that cannot be changed; those that do not exist are left out.
        writes: files and folders that can.
        folders: private folders of memory by their path, with their limits in bytes (None: half of the memory).
    """
    kernel.mount(None, Path("/"), None, MS_REC | MS_SLAVE)  # mounts here are not made on the host
    found = _outermost([*reads, *writes])
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in found}
    base = Path("/tmp")  # noqa: S108 -- covered by a mount of this process's own
    kernel.mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
    root = base / "root"
    root.mkdir()
    kernel.mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
    for folder, limit_bytes in folders.items():
        place = root / folder.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        size = b"" if limit_bytes is None else b",size=%d" % limit_bytes
        kernel.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777" + size)
    for path, descriptor in opened.items():
        _bind(kernel, root, Path(path), found[path], descriptor)
        if path not in writes:
            kernel.protect(root / path.lstrip("/"))
        os.close(descriptor)  # it leads out of the new root
    for name in _EMPTY_FOLDERS:
        (root / name).mkdir(exist_ok=True)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / name).symlink_to(target)
    kernel.change_root(root)


def _outermost(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths that exist and lie below no other one, with their targets; a link comes after its target."""
    targets = {path: os.path.realpath(path) for path in dict.fromkeys(paths)}
    found = {place: target for path, target in targets.items() for place in (path, target) if os.path.exists(target)}  # noqa: PTH110
    kept: dict[str, str] = {}
    for place, target in sorted(found.items(), key=lambda item: (item[0] != item[1], item[0])):
        parts = place.split("/")
        if not any("/".join(parts[:count]) in kept for count in range(2, len(parts))):
            kept[place] = target
    return kept


def _bind(kernel: Kernel, root: Path, path: Path, target: str, descriptor: int) -> None:
    """Show a path of the host in the new root; a link becomes a link, for its target has a place of its own."""
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):  # through a link that is there already
        return
    if target != str(path) and not str(path).startswith("/etc/"):
        place.symlink_to(target)
    else:
        source = f"/proc/self/fd/{descriptor}"
        if os.path.isdir(source):  # noqa: PTH112 -- a magic link
            place.mkdir()
        else:
            place.touch()
        kernel.mount(source, place, None, MS_BIND | MS_REC)


def raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def continue_inside(prepare: Callable[[], None], resign: Callable[[], None]) -> None:
    """
    Return in a new process of the namespace for processes that this one has entered; this one ends as that one does.

    Process 1 of the namespace lies between the two: it collects orphans, and all other processes end with it.

    Args:
        prepare: runs in process 1, with the capabilities of this process.
        resign: gives up the capabilities of the two processes that only wait.
    """
    status_read, status_write = os.pipe()
    alive_read, alive_write = os.pipe()
    parent = os.getppid()
    pid = os.fork()
    if pid != 0:
        resign()
        Kernel().end_with_parent()  # a change of capabilities may reset it
        if os.getppid() != parent:
            os._exit(1)
        _relay(pid, status_read, keep=alive_write)
    os.close(status_read)
    os.close(alive_write)
    Kernel().end_with_parent()
    if select.select([alive_read], [], [], 0)[0]:  # the other end is closed: the parent has ended before
        os._exit(1)
    prepare()
    pid = os.fork()
    if pid != 0:
        resign()
        _collect(pid, status_write, keep=alive_read)
    os.close(status_write)
    os.close(alive_read)


def _relay(pid: int, status: int, *, keep: int) -> NoReturn:
    """Wait for process 1, then end with the status that it has written, or by the signal that has ended it."""
    _close_others(status, keep)
    _, own = os.waitpid(pid, 0)
    os.set_blocking(status, False)
    try:
        written = os.read(status, 4)
    except BlockingIOError:
        written = b""
    code = os.waitstatus_to_exitcode(struct.unpack("i", written)[0] if len(written) == 4 else own)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _collect(pid: int, status: int, *, keep: int) -> NoReturn:
    """Be process 1: collect what ends, until the process of the user's code has ended."""
    _close_others(status, keep)
    while True:
        ended, its_status = os.wait()
        if ended == pid:
            os.write(status, struct.pack("i", its_status))
            os._exit(0)


def _close_others(*kept: int) -> None:
    """Close the descriptors of user code, so that their other ends see when it ends."""
    first = 0
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 1 << 16)
