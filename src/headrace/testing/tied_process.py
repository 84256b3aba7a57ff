"""
Run a `headrace` command that gets SIGTERM when the process that started it ends for any reason, SIGKILL included.

    python -m headrace.testing.tied_process PARENT_PID ARGUMENT...
"""

import os
import signal
import sys

from headrace.core.processes import end_with, process_id


def main(arguments: list[str]) -> None:
    """Replace this process by the command."""
    parent = process_id(int(arguments[0]))
    if parent is None or parent.pid != os.getppid():
        sys.exit(f"Process {arguments[0]}, which started this one, has ended.")
    end_with(parent, signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "headrace", *arguments[1:]])  # noqa: S606 -- no shell


if __name__ == "__main__":
    main(sys.argv[1:])
