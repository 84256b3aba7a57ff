"""
The container's folders, such as `/opt/ml/model`, for the code of one child: a mount namespace of its own.

Code written for SageMaker opens these paths itself. The mounts are seen by this process and what it starts, and end
with them; the host's files do not change. A process without CAP_SYS_ADMIN makes the mounts in a user namespace, and
has all capabilities in it until it gives them up (`headrace_handler.privileges`).

Source: Linux `mount_namespaces(7)`, `user_namespaces(7)`, `mount(2)`, `capabilities(7)`.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace_handler.namespaces import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    Kernel,
    rehearse,
)

CONTAINER_ROOT = Path("/opt/ml")
MODEL = CONTAINER_ROOT / "model"
CODE = CONTAINER_ROOT / "code"
CHANNELS = CONTAINER_ROOT / "additional-model-data-sources"

_KEPT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
"""`statvfs` has them with the same values; a user namespace may not remove them."""
_TMPFS = b"mode=755"
_SWITCHES = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Kernel settings that may forbid user namespaces: name, forbidding value, and allowing value."""


def provide(folders: Mapping[Path, Path], private: Sequence[Path] = (), *, has_own_mounts: bool = False) -> str:
    """
    Make folders visible at their paths in the container, for this process; call it before threads exist.

    Args:
        folders: by the path below `CONTAINER_ROOT`.
        private: folders of the host, such as `/lib`, in which this process may make files that the host does not get.
        has_own_mounts: this process is in a mount namespace of its own, and may mount in it.

    Returns:
        The reason why code will not find them, and advice; empty if it will.
    """
    # In a container of SageMaker the host has a folder at its path, or in it.
    missing = {path: folder for path, folder in folders.items() if not folder.resolve().is_relative_to(path.resolve())}
    if not missing and not private:
        return ""
    act = partial(_mount if has_own_mounts else _enter_and_mount, missing, private)
    error = None if has_own_mounts else rehearse(act)
    if error is None:
        act()
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


def _enter_and_mount(folders: Mapping[Path, Path], private: Sequence[Path]) -> None:
    kernel = Kernel()
    kernel.enter()
    kernel.mount(None, "/", None, MS_REC | MS_SLAVE)  # mounts here are not made on the host
    _mount(folders, private)


def _mount(folders: Mapping[Path, Path], private: Sequence[Path]) -> None:
    """
    Mount the folders, in a mount namespace of this process.

    Raises `OSError`: the kernel does not allow it, or there is no place for the mounts.
    """
    kernel = Kernel()
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


def _cover(kernel: Kernel, folder: Path, hidden: Collection[str] = ()) -> None:
    """Mount a private folder of the same content over a folder, without the hidden names."""
    covered = _open(folder)
    kernel.mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, _TMPFS)
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
        kernel.mount(str(origin), place, None, MS_BIND | MS_REC)
    os.close(covered)


def _add(kernel: Kernel, path: Path, folder: Path, source: int) -> None:
    """Mount a folder read-only, as SageMaker does; one with links gets a link: they may lead out by relative names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.scandir(f"/proc/self/fd/{source}") as entries:
        if any(entry.is_symlink() for entry in entries):
            path.symlink_to(folder)
            return
    path.mkdir()
    kernel.mount(f"/proc/self/fd/{source}", path, None, MS_BIND | MS_REC)
    flags = os.statvfs(path).f_flag & _KEPT_FLAGS
    kernel.mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


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
