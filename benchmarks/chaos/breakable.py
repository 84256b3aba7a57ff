"""A small disk and a movable clock, which a run breaks besides processes."""

import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

DISK_MIB = 256
_POLL_S = 0.05


@dataclass
class SmallDisk:
    """A tmpfs in a mount namespace of its own."""

    folder: Path
    holder: int
    """Process id that keeps the namespace alive."""
    _filler: threading.Thread | None = None
    _has_room: threading.Event = field(default_factory=threading.Event)

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs where the disk is."""
        return ("nsenter", "--target", str(self.holder), "--mount", "--")

    @property
    def seen(self) -> Path:
        """Its folder as this process reaches it."""
        return Path(f"/proc/{self.holder}/root{self.folder}")

    def fill(self) -> None:
        """Take every block, and each that is freed, in a thread: 256 MiB must not delay the next fault."""
        if self._filler is None:
            self._has_room.clear()
            self._filler = threading.Thread(target=self._fill, name="disk", daemon=True)
            self._filler.start()

    def _fill(self) -> None:
        with (self.seen / "ballast").open("ab", buffering=0) as ballast:
            while not self._has_room.is_set():
                for size in (1 << 20, 1 << 16, 4096):
                    with suppress(OSError):
                        while not self._has_room.is_set():
                            ballast.write(bytes(size))
                self._has_room.wait(_POLL_S)

    def empty(self) -> None:
        """Give the room back."""
        if self._filler is not None:
            self._has_room.set()
            self._filler.join()
            self._filler = None
            (self.seen / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Return whether this user can mount a disk in a namespace of its own without becoming another user."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    folder.mkdir()
    script = f'mount -t tmpfs -o size={DISK_MIB}m headrace "$0" && echo mounted && exec sleep infinity'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            if holder.stdout is None or holder.stdout.readline() != "mounted\n":
                raise RuntimeError(f"A tmpfs of {DISK_MIB} MiB cannot be mounted on {folder}.")
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.kill()


class FakeClock:
    """A library that moves the wall clock of the processes that load it."""

    def __init__(self, folder: Path) -> None:
        self._library, self._offset = folder / "clock.so", folder / "clock"
        self._offset.write_bytes(bytes(8))
        source = Path(__file__).parent / "clock.c"
        subprocess.run([_compiler(), "-shared", "-fPIC", "-O2", "-o", self._library, source], check=True)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of such a process."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._offset)}

    def move(self, offset_s: int) -> None:
        """Set the distance from the true time."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("=q", offset_s))


def can_compile() -> bool:
    return shutil.which(_compiler()) is not None


def _compiler() -> str:
    return os.environ.get("CC", "cc")
