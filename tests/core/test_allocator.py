"""The bounds of the C allocator, and the task that returns free memory to the kernel."""

import asyncio
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.core import allocator
from headrace.core.allocator import limit_arenas, pause_after, read_resident_bytes, return_memory, trim
from tests.waiting import WAIT_S

MIB = 1 << 20
needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed in arenas")


def trims_of(sizes_mib: Sequence[int]) -> list[int]:
    """Return the sizes at which `return_memory` trims, given the sizes that it reads; the last one is unreadable."""
    sizes: Iterator[int | None] = iter([*(size * MIB for size in sizes_mib), None])
    read: list[int] = []
    trimmed: list[int] = []

    def read_bytes() -> int | None:
        size = next(sizes)
        if size is not None:
            read.append(size // MIB)
        return size

    def note() -> bool:
        trimmed.append(read[-1])
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "_REST_FACTOR", 0)
        asyncio.run(asyncio.wait_for(return_memory(pause_s=0, read_bytes=read_bytes, trim=note), WAIT_S))
    return trimmed


@pytest.mark.parametrize(
    ("sizes_mib", "trims"),
    [
        ([], []),
        ([100, 90, 90, 90], [100]),  # the second reading follows the trim
        ([100, 90, 90, 91, 90, 90], [100, 91]),
        ([100, 90, 80, 81, 80], [100, 81]),  # a process that shrinks by itself sets a new mark
        ([100, 100, 101, 101, 102, 102], [100, 101, 102]),
    ],
)
def test_memory_is_trimmed_when_the_process_has_grown(sizes_mib: Sequence[int], trims: Sequence[int]) -> None:
    assert trims_of(sizes_mib) == list(trims)


@pytest.mark.parametrize(("spent_s", "pause_s"), [(0.0, 30), (0.03, 30), (0.04, 40), (0.3, 300)])
def test_a_long_trim_is_followed_by_a_long_pause(spent_s: float, pause_s: float) -> None:
    assert pause_after(spent_s, 30) == pytest.approx(pause_s)


async def test_the_task_ends_when_it_is_cancelled() -> None:
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note() -> bool:
        loop.call_soon_threadsafe(trimmed.set)
        return True

    task = asyncio.create_task(return_memory(pause_s=3600, read_bytes=lambda: MIB, trim=note))
    await asyncio.wait_for(trimmed.wait(), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    assert not limit_arenas()
    assert not trim()


def test_a_size_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocator, "_STATM", tmp_path / "nothing")
    assert read_resident_bytes() is None
    asyncio.run(asyncio.wait_for(return_memory(), WAIT_S))


_FRAGMENT = """
from headrace.core.allocator import limit_arenas, read_resident_bytes, trim

assert limit_arenas()
before = read_resident_bytes()
blocks = [bytearray(20_000) for _ in range(5_000)]
kept = blocks[::10]
del blocks
held = read_resident_bytes() - before
assert trim()
print(held, read_resident_bytes() - before)
"""


@needs_glibc
def test_free_memory_between_used_blocks_goes_back_to_the_kernel() -> None:
    ran = subprocess.run([sys.executable, "-c", _FRAGMENT], check=True, capture_output=True, text=True, timeout=WAIT_S)
    held, left = map(int, ran.stdout.split())
    assert held > 80 * MIB
    assert left < 40 * MIB
