"""
The C allocator of a process that runs for months: few arenas, and free memory goes back to the kernel.

glibc gives each thread an arena of its own, up to eight for each CPU, and each keeps what was freed in it. After a
large block was freed it also keeps up to 64 MiB at the end of the heap. A process that answers the same load for hours
then grows for hours.

The sizes from which blocks are mapped and the heap is cut (`M_MMAP_THRESHOLD`, `M_TRIM_THRESHOLD`) stay as they are:
with fixed ones each large temporary array is mapped again, and a network in torch took a third more CPU time.

Source: glibc manual, "Malloc Tunable Parameters"; `mallopt(3)`, `malloc_trim(3)`. With another C library (musl, macOS)
the functions here do nothing.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_M_ARENA_MAX: Final = -8
_MAX_ARENAS: Final = 2
"""The GIL admits one thread of Python at a time; the second arena is for native code beside it."""
_PAUSE_S: Final = 30.0
_GROWTH_BYTES: Final = 1 << 20
"""Growth of the resident memory since the last trim that makes another one worth its milliseconds."""
_REST_FACTOR: Final = 1000
"""Pause after a trim, in multiples of its length: threads that allocate wait for it, a thousandth of the time."""
_STATM: Final = Path("/proc/self/statm")


def limit_arenas() -> bool:
    """
    Bound the arenas; call it before the process has threads, which keep those that they have.

    Returns:
        Whether the C library took the limit.
    """
    libc = _glibc()
    return libc is not None and libc.mallopt(_M_ARENA_MAX, _MAX_ARENAS) == 1


def trim() -> bool:
    """Return free memory of all arenas to the kernel; return whether there was any. Blocks for milliseconds."""
    libc = _glibc()
    return libc is not None and libc.malloc_trim(0) == 1


def read_resident_bytes() -> int | None:
    """Return the resident memory of this process; None if `/proc` cannot be read."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


async def return_memory(
    *,
    pause_s: float = _PAUSE_S,
    read_bytes: Callable[[], int | None] = read_resident_bytes,
    trim: Callable[[], bool] = trim,
) -> None:
    """Trim in a thread whenever the process has grown, until cancelled; return if its size cannot be read."""
    least_bytes = 0
    while (now_bytes := read_bytes()) is not None:
        spent_s = 0.0
        if now_bytes - least_bytes >= _GROWTH_BYTES:
            spent_s = await asyncio.to_thread(_timed, trim)
            least_bytes = read_bytes() or now_bytes
        least_bytes = min(least_bytes, now_bytes)
        await asyncio.sleep(pause_after(spent_s, pause_s))


def pause_after(spent_s: float, pause_s: float = _PAUSE_S) -> float:
    """Return the seconds until the next check, after a trim of `spent_s`. Pure."""
    return max(pause_s, _REST_FACTOR * spent_s)


def _timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
