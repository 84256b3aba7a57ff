"""
A small process that kills vLLM's processes once the server has ended, however it ended, and removes their files.

vLLM's processes outlive a server that was killed, and hold its memory. They can watch the server themselves only once
they have imported vLLM, which takes many seconds; the watchdog runs before the first of them starts. It waits on a pipe
that only the server holds open, and finds the processes by a variable in their environment: orphans have lost their
parent's id. The variable names the folder of their files, which is removed once they have ended.

The file runs as a script, too, so it imports only the standard library.
"""

import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_RESCAN_S = 0.05
_PROCESSES = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps shared memory
_STORES = "vllm_dist_*"
"""Files by which ranks find each other; on a CPU the names of their shared memory begin with that of the file."""


class Watchdog:
    """A running watchdog of the processes that have a variable with the path of a folder."""

    def __init__(self, variable: str, folder: Path) -> None:
        # In a session of its own: signals to the server's process group must not reach it. Without site packages, so
        # that it starts in milliseconds.
        command = [sys.executable, "-I", "-S", __file__, variable, str(folder)]
        self._process = subprocess.Popen(  # noqa: S603 - this file and names of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """Begin to kill the processes that are left; returns at once. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Kill the processes that are left and remove the folder; blocks. Idempotent."""
        self.kill()
        self._process.wait()


def kill_marked(marker: str) -> None:
    """Kill the processes that started with `marker` in their environment, until there are none."""
    while pids := _marked(marker.encode()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_RESCAN_S)


def remove_files(folder: Path) -> None:
    """Remove a folder of vLLM's files, and the shared memory of ranks that found each other by a file in it."""
    for store in folder.glob(_STORES):
        for segment in _SHARED_MEMORY.glob(f"{glob.escape(store.name)}-*"):
            segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


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
    kill_marked("=".join(sys.argv[1:]))
    remove_files(Path(sys.argv[2]))
