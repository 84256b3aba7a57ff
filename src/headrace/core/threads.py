"""Scheduling priorities of threads."""

import os
import sys
import threading
from contextlib import suppress

_NICER = 10
"""Gives a tenth of the CPU time of a model thread while both compete for one CPU."""


def lower_thread_priority() -> None:
    """
    Lower the priority of the calling thread, which computes for seconds, below that of the model's threads.

    Linux only: elsewhere a priority belongs to the whole process.
    """
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(PermissionError):  # some sandboxes forbid it
            os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + _NICER)
