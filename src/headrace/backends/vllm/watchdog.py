"""
A small process that kills vLLM's processes once the server has ended, however it ended.

They outlive a server that was killed, and hold its memory. They can watch it by themselves only once they have imported
vLLM, which takes many seconds; the watchdog runs before the first of them starts. It waits on a pipe that only the
server holds open, and finds the processes by a variable in their environment: orphans have lost their parent's id.

The file runs as a script, too, so it imports only the standard library.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_RESCAN_S = 0.05
_PROCESSES = Path("/proc")


class Watchdog:
    """A running watchdog of the processes that have a variable with this value."""

    def __init__(self, name: str, value: str) -> None:
        # A session of its own: signals to the group of the server are not for it. No modules of other packages: it
        # starts in milliseconds.
        command = [sys.executable, "-I", "-S", __file__, f"{name}={value}"]
        self._process = subprocess.Popen(  # noqa: S603 - this file and a name of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def close(self) -> None:
        """Kill the processes that are left; blocks until none is. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def kill_marked(marker: str) -> None:
    """Kill the processes that started with `marker` in their environment, until there are none."""
    while pids := _marked(marker.encode()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_RESCAN_S)


def _marked(marker: bytes) -> list[int]:
    pids = []
    for folder in _PROCESSES.glob("[0-9]*"):
        # Processes of other users cannot be read, and any may end meanwhile.
        with suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])
