"""
The CPUs of this process, the priorities of its threads, and their turns of the GIL.

The event loop shares the GIL with threads that parse, tokenise and render what clients sent.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

_NICER = 10
"""Gives a tenth of the CPU time of a model thread while both compete for one CPU."""


def usable_cpus() -> set[int]:
    """Return the CPUs that this process may use, hyperthreads included."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def at_low_priority(work: Callable[[], T]) -> T:
    """
    Run work that takes CPU time without the GIL on a thread of lower priority, and wait for it.

    NOTE: never run work that holds the GIL: while other threads keep this one off the CPUs, no thread gets the GIL.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        lower_thread_priority()
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="headrace-low-priority", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def lower_thread_priority() -> None:
    """
    Lower the priority of the calling thread, which computes for seconds, below that of the model's threads.

    Linux only: elsewhere a priority belongs to the whole process.
    """
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(PermissionError):  # some sandboxes forbid it
            os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + _NICER)


_TURN_S: Final = 0.0005
"""
The longest turn of a thread that runs Python while another one waits for the GIL; Python's default is 5 ms.

The loop gives the GIL up at each system call and each of its callbacks, and waits for a turn of a busy thread each
time: a token to four clients costs five turns or more.
"""


def take_short_turns() -> None:
    """Shorten the turns in which threads hold the GIL, for the whole process."""
    sys.setswitchinterval(_TURN_S)


_THRESHOLDS: Final = gc.get_threshold()
_THRESHOLDS_AT_START: Final = (50_000, *_THRESHOLDS[1:])


def collect_seldom() -> None:
    """
    Make garbage collections rare until `keep_from_collector`, or for the life of a short command.

    Nearly all objects that imports make stay, and to visit them again and again takes an eighth of the CPU time of a
    start.
    """
    gc.set_threshold(*_THRESHOLDS_AT_START)


def keep_from_collector() -> None:
    """
    Exempt all present objects from garbage collection: they live as long as the process.

    A collection visits all objects and holds the GIL meanwhile: 60 ms for those of a platform, and a request that
    makes many objects causes several. A last one before would free next to nothing: a start leaves few cycles (11
    objects of 81,000 in a model server, 804 of 118,000 in a platform).
    """
    gc.freeze()
    if gc.get_threshold() == _THRESHOLDS_AT_START:
        gc.set_threshold(*_THRESHOLDS)
