"""
The free space of the disks under a platform, which must be known before they are written to.

SeaweedFS retries a write to a full disk for 30 s, and its index may stay broken afterwards: writes are refused while a
disk is full, and SeaweedFS is restarted once there is room again.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from headrace.core.telemetry import get_logger

MIN_FREE_BYTES: Final = 4 * 1024 * 1024
"""A disk with less counts as full: records, logs and the index of objects need room, too."""
_PAUSE_S: Final = 1.0

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write below a folder; 0 if no file can be created. Raises `OSError`."""
    found = os.statvfs(folder)
    has_files = found.f_files == 0 or found.f_favail > 0  # some file systems do not count files
    return found.f_bavail * found.f_frsize if has_files else 0


class DiskSpace:
    """The free space of some folders, measured every second."""

    def __init__(self, folders: Sequence[Path], *, measure: FreeBytes = free_bytes) -> None:
        self._folders = folders
        self._measure = measure
        self._lowest: tuple[int, Path] | None = None
        self._is_full = False

    @property
    def shortage(self) -> str:
        """The reason why nothing can be written; empty while there is room."""
        if self._lowest is None or not self._is_full:
            return ""
        num_bytes, folder = self._lowest
        return (
            f"The disk of {folder} is full: {num_bytes} bytes are free; expected at least {MIN_FREE_BYTES}. "
            "Free some space; the platform notices by itself."
        )

    def has_room_for(self, num_bytes: int) -> bool:
        return self._lowest is None or (not self._is_full and self._lowest[0] >= MIN_FREE_BYTES + num_bytes)

    def look(self) -> None:
        """
        Measure now; a folder that cannot be measured does not count.

        A disk stays full until twice as much is free, so that it does not change from one second to the next.
        """
        found = []
        for folder in self._folders:
            try:
                found.append((self._measure(folder), folder))
            except OSError:
                continue
        self._lowest = min(found, default=None)
        needed = 2 * MIN_FREE_BYTES if self._is_full else MIN_FREE_BYTES
        self._is_full = self._lowest is not None and self._lowest[0] < needed

    async def watch(self, on_room: Callable[[], Awaitable[None]], *, pause_s: float = _PAUSE_S) -> None:
        """Measure until cancelled; log changes, and call `on_room` when there is room again."""
        while True:
            await asyncio.sleep(pause_s)
            was_short = bool(self.shortage)
            await asyncio.to_thread(self.look)
            if self.shortage and not was_short:
                get_logger().error("disk.full", reason=self.shortage)
            elif was_short and not self.shortage:
                get_logger().info("disk.has_room")
                await on_room()
