"""
The plugin that vLLM calls in each of its processes: they log as Headrace does, and end with their parent.

Each process waits on the pipe that multiprocessing keeps open from the parent to its child, and kills itself when the
parent's end closes: workers end with a killed engine process, even inside a step. Before this runs, and for processes
that are not children of multiprocessing, `watchdog` ensures that nothing outlives the server.
"""

import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

import structlog

from headrace.core.telemetry import setup_logging
from headrace.inference.backends.vllm.environment import FAILURES_FILE, FOLDER_VARIABLE, LOG_VARIABLE


def prepare_process() -> None:
    """Prepare a process of vLLM; does nothing in the server itself. The entry point of `vllm.general_plugins`."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_die_after, args=(parent,), name="headrace-parent", daemon=True).start()
    # Ctrl-C and signals to the group of the server are for the server, which drains before it stops its processes.
    os.setpgid(0, 0)
    folder = Path(os.environ[FOLDER_VARIABLE])
    tempfile.tempdir = str(folder)  # the watchdog removes it, while vLLM leaves files behind even after a clean end
    log_format, _, level = os.environ.get(LOG_VARIABLE, "auto info").partition(" ")
    setup_logging(format=log_format, level=level)
    structlog.contextvars.bind_contextvars(process=multiprocessing.current_process().name)
    library = logging.getLogger("vllm")
    library.setLevel(library_level(level))
    library.addHandler(FailureFile(folder / FAILURES_FILE))


def _die_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def library_level(level: str) -> int:
    """Return the level of vLLM's log: it reports its internals at INFO, which is our DEBUG."""
    number = logging.getLevelNamesMapping()[level.upper()]
    return logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING)


class FailureFile(logging.Handler):
    """Appends the exceptions that are logged to a file, one JSON object a line, for the server to explain."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        line = json.dumps({"type": type(error).__name__, "message": str(error)})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:
            self.handleError(record)
