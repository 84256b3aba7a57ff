"""
The container's folders, such as `/opt/ml/model`, for the code of one child: a mount namespace of its own.

Code written for SageMaker opens these paths itself. The mounts are seen by this process and what it starts, and end
with them; the host's files do not change. A process without CAP_SYS_ADMIN makes the mounts in a user namespace, and
has all capabilities in it until it gives them up (`headrace_handler.privileges`).

Source: Linux `mount_namespaces(7)`, `user_namespaces(7)`, `mount(2)`, `capabilities(7)`.
"""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CONTAINER_ROOT = Path("/opt/ml")
MODEL = CONTAINER_ROOT / "model"
CODE = CONTAINER_ROOT / "code"
CHANNELS = CONTAINER_ROOT / "additional-model-data-sources"

_CLONE_NEWNS, _CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_KEPT_FLAGS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
"""`statvfs` has them with the same values; a user namespace may not remove them."""
_TMPFS = b"mode=755"
_NO_ERRNO = 255
_SWITCHES = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Kernel settings that may forbid user namespaces: name, forbidding value, and allowing value."""


def provide(folders: Mapping[Path, Path], private: Sequence[Path] = ()) -> str:
    """
    Make folders visible at their paths in the container, for this process; call it before threads exist.

    Args:
        folders: by the path below `CONTAINER_ROOT`.
        private: folders of the host, such as `/lib`, in which this process may make files that the host does not get.

    Returns:
        The reason why code will not find them, and advice; empty if it will.
    """
    # In a container of SageMaker the host has a folder at its path, or in it.
    missing = {path: folder for path, folder in folders.items() if not folder.resolve().is_relative_to(path.resolve())}
    if not missing and not private:
        return ""
    error = _rehearse(missing, private)
    if error is None:
        _mount(missing, private)
        return ""
    return _notice(missing or folders, error)


def explain(error: BaseException | None, notice: str) -> str:
    """Return the notice of `provide` if an error or a cause of it is about the container's folders; else nothing."""
    seen = set[int]()  # a cause may be the error itself: `raise error from error`
    while error is not None and id(error) not in seen:
        if str(CONTAINER_ROOT) in str(error):
            return notice
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return ""


def _rehearse(folders: Mapping[Path, Path], private: Sequence[Path]) -> OSError | None:
    """Return why the mounts fail, tried in a fork: a partly built namespace is useless to user code."""
    pid = os.fork()
    if pid == 0:
        code = _NO_ERRNO
        try:
            _mount(folders, private)
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


def _mount(folders: Mapping[Path, Path], private: Sequence[Path]) -> None:
    """
    Enter a mount namespace and mount the folders.

    Raises `OSError`: the kernel does not allow it, or there is no place for the mounts.
    """
    kernel = _Kernel()
    kernel.enter_namespace()
    kernel.mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)  # mounts here are not made on the host
    sources = {path: _open(folder) for path, folder in folders.items()}
    base = CONTAINER_ROOT if CONTAINER_ROOT.is_dir() else CONTAINER_ROOT.parent
    if folders:
        _cover(kernel, base, {path.relative_to(base).parts[0] for path in folders})
    for path, source in sources.items():
        _add(kernel, path, folders[path], source)
        os.close(source)
    for folder in private:
        _cover(kernel, folder)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _cover(kernel: "_Kernel", folder: Path, hidden: Collection[str] = ()) -> None:
    """Mount a private folder of the same content over a folder, without the hidden names."""
    covered = _open(folder)
    kernel.mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, _TMPFS)
    for origin in Path(f"/proc/self/fd/{covered}").iterdir():
        place = folder / origin.name
        if origin.name in hidden:
            continue
        if origin.is_symlink():
            place.symlink_to(origin.readlink())
            continue
        if origin.is_dir():
            place.mkdir()
        else:
            place.touch()
        kernel.mount(str(origin), place, None, _MS_BIND | _MS_REC)
    os.close(covered)


def _add(kernel: "_Kernel", path: Path, folder: Path, source: int) -> None:
    """Mount a folder read-only, as SageMaker does; one with links gets a link: they may lead out by relative names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.scandir(f"/proc/self/fd/{source}") as entries:
        if any(entry.is_symlink() for entry in entries):
            path.symlink_to(folder)
            return
    path.mkdir()
    kernel.mount(f"/proc/self/fd/{source}", path, None, _MS_BIND | _MS_REC)
    flags = os.statvfs(path).f_flag & _KEPT_FLAGS
    kernel.mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


class _Kernel:
    """The system calls, which Python 3.11 does not have."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter_namespace(self) -> None:
        """Enter a mount namespace, and a user namespace if that is needed."""
        user, group = os.geteuid(), os.getegid()
        try:
            self._call("unshare", _CLONE_NEWNS)
        except OSError:
            if user == 0:  # in a user namespace it would lose root's rights to other users' files
                raise
        else:
            return
        self._call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")

    def mount(self, source: str | None, target: Path, kind: str | None, flags: int, data: bytes | None = None) -> None:
        texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
        self._call("mount", *texts, self._ctypes.c_ulong(flags), data)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _notice(folders: Mapping[Path, Path], error: OSError) -> str:
    path, folder = next(iter(folders.items()))
    return (
        f"{path} does not exist for the model's code: its files are in {folder}, and a mount namespace cannot be made "
        f"({error.strerror}). {_remedy()}, or link the folder: mkdir -p {path.parent} && ln -s {folder} {path}, "
        "or let the code use the argument of model_fn, or the variable SM_MODEL_DIR, in place of the path."
    )


def _remedy() -> str:
    if not CONTAINER_ROOT.parent.is_dir():
        return f"Make the folder {CONTAINER_ROOT.parent}"
    if os.geteuid() == 0:
        return "Give the container of this server the capability SYS_ADMIN"
    for name, forbids, allows in _SWITCHES:
        with suppress(OSError):
            if Path("/proc/sys", name.replace(".", "/")).read_text().strip() == forbids:
                return f"Allow user namespaces: sysctl -w {name}={allows}"
    return "Allow user namespaces for this server"
