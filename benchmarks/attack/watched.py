"""
Run headrace with a watch on its event loop, which writes how long the loop stood still, and why.

    python -m benchmarks.attack.watched FILE serve MODEL ...      (`run` starts its target like this)

`holds_ms` reads the part of it that does not depend on the load of the machine.

With HEADRACE_STACKS=1 the stacks of all threads are written too while the loop stands still, by a thread of
`faulthandler` that needs no GIL, so that they also show the thread that holds it. NOTE: such a dump reads frames that
other threads may free at that moment, and has ended one run in ten by a segmentation fault.
"""

import asyncio
import faulthandler
import gc
import os
import re
import runpy
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import IO

import uvloop

STACKS = "HEADRACE_STACKS"
BEAT_S = 0.01
HELD_S = 0.02
"""Shorter stalls are not written."""
_LINE = re.compile(r"^.*=== ([\d.]+) stalled for (\d+) ms: -?\d+ worked, (\d+) waited for a CPU", re.MULTILINE)
STALL_S = 0.05
"""The stacks are written when the loop has stood still for this long, and again after each such time."""


def watch(loop: asyncio.AbstractEventLoop, stacks: IO[str]) -> None:
    """
    Write the causes whenever the loop has stood still, and the stacks of all threads meanwhile if they are asked for.

    Its time is split into its own work, the wait for a CPU, and the rest: above a beat, that is the wait for the GIL.
    Collections of garbage hold the GIL, whichever thread they run in.
    """
    last_s, last_ran_s, last_queued_s = perf_counter(), 0.0, 0.0
    collections, writes_stacks = _Collections(), STACKS in os.environ

    def beat() -> None:
        nonlocal last_s, last_ran_s, last_queued_s
        now_s = perf_counter()
        ran_s, queued_s = _scheduled()
        if now_s - last_s > HELD_S:
            times_s = (now_s - last_s, ran_s - last_ran_s, queued_s - last_queued_s)
            total, ran, queued = (round(time_s * 1e3) for time_s in times_s)
            causes = f"{ran} worked, {queued} waited for a CPU, {total - ran - queued} waited for the GIL or events"
            causes += f"; {round(collections.total_s * 1e3)} of it garbage was collected"
            print(f"=== {now_s:.3f} stalled for {total} ms: {causes}", file=stacks, flush=True)
        last_s, last_ran_s, last_queued_s = now_s, ran_s, queued_s
        collections.total_s = 0.0
        if writes_stacks:
            faulthandler.dump_traceback_later(STALL_S, repeat=True, file=stacks)
        loop.call_later(BEAT_S, beat)

    loop.call_soon(beat)


class _Collections:
    """The time that the collector of garbage takes, in all threads."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._begun_s = 0.0
        gc.callbacks.append(self._on_phase)

    def _on_phase(self, phase: str, _info: dict[str, int]) -> None:
        now_s = perf_counter()
        if phase == "stop":
            self.total_s += now_s - self._begun_s
        self._begun_s = now_s


def holds_ms(stacks: Path, begun_s: float) -> list[float]:
    """Return how long each stall since a moment held the loop: by its own work, or by other threads with the GIL."""
    found = _LINE.findall(stacks.read_text())
    return [float(total) - float(queued) for at_s, total, queued in found if float(at_s) >= begun_s]


def _scheduled() -> tuple[float, float]:
    """Return the seconds that this thread has run, and waited for a CPU. Source: Linux, sched-stats."""
    ran_ns, queued_ns, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes().split()
    return int(ran_ns) / 1e9, int(queued_ns) / 1e9


def main() -> None:
    make_loop = uvloop.new_event_loop
    with Path(sys.argv[1]).open("w") as stacks:

        def watched_loop() -> uvloop.Loop:
            loop = make_loop()
            watch(loop, stacks)
            return loop

        uvloop.new_event_loop = watched_loop
        sys.argv[:2] = ["headrace"]
        runpy.run_module("headrace", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
