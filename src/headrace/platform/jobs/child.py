"""
Child processes of jobs: commands of `headrace`, which do the work off the platform's loop, and the logs of jobs.

A child is known by a path among its arguments. One that outlived a killed platform is ended before the job goes on.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.processes import ProcessId, is_running, kill_session, processes_with_argument, reap, spawn
from headrace.platform.cluster.platform_logs import PlatformLogs, open_name
from headrace.platform.control.model.jobs import AnyJob
from headrace.platform.control.model.names import JOB_LOG_GROUPS
from headrace.platform.jobs.loop import JobFailed

COMMAND: Final = (sys.executable, "-P", "-m", "headrace")
BACKGROUND: Final = (*((nice, "-n", "10") if (nice := shutil.which("nice")) else ()), *COMMAND)
"""For long computations on all cores: endpoints go first."""
_MEASURE: Final = (
    "import pathlib, sys; from headrace.inference.runner.decode_speed import measure_bandwidth; "
    "pathlib.Path(sys.argv[1]).write_text(str(measure_bandwidth()))"
)
_POLL_S: Final = 0.2
_MAX_LINE: Final = 10_000
_KILL_S: Final = 5.0
_KILL_POLL_S: Final = 0.01
_ERROR_MARK: Final = "Error: "


@dataclass(slots=True)
class JobLog:
    """The output of a job's children, in a file, and the log stream to which it is copied. Methods block on files."""

    path: Path
    logs: PlatformLogs | None
    group: str
    stream: str
    _copied: int = 0
    """Bytes of the file that the stream has."""

    @classmethod
    def open(cls, job: AnyJob, folder: Path, logs: PlatformLogs | None) -> "JobLog":
        """Begin the stream `<job>/execution` of the kind's log group."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = cls(folder / "log.txt", logs, JOB_LOG_GROUPS[job.kind], f"{job.name}/execution")
        log.path.write_bytes(b"")
        if logs is not None:
            logs.open(log.group, log.stream)
        return log

    def write(self, message: str) -> None:
        self._put([message])

    def copy(self) -> None:
        """Copy the lines that children have written since the last call; a line of progress as it is at last."""
        with self.path.open("rb") as file:
            file.seek(self._copied)
            lines, newline, _ = file.read().rpartition(b"\n")
        self._copied += len(lines) + len(newline)
        found = [line.rpartition("\r")[2] for line in lines.decode(errors="replace").split("\n")]
        self._put([line for line in found if line.strip()])

    def last_error(self) -> str:
        """Return the text of the last `Error: ...` line, else the last line."""
        lines = self.path.read_text("utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.startswith(_ERROR_MARK)] or [line for line in lines if line.strip()]
        return said[-1].removeprefix(_ERROR_MARK).strip() if said else ""

    def _put(self, messages: Sequence[str]) -> None:
        if self.logs is not None and messages:
            now_ms, name = time.time_ns() // 1_000_000, open_name(self.group, self.stream)
            with suppress(OSError):  # it was deleted, or the disk is full: the job goes on
                self.logs.put(name, [(now_ms, message[:_MAX_LINE]) for message in messages])


async def run_child(
    *arguments: str,
    marker: Path,
    log: JobLog,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> None:
    """
    Run a command of `headrace` to its end; its output goes to the log.

    `marker` is a path among the arguments. When cancelled, the child is killed. Raises `JobFailed` with its error.
    """
    assert str(marker) in arguments
    await asyncio.to_thread(_end_earlier, marker)
    process = await asyncio.to_thread(spawn, (*command, *arguments), {**os.environ, **(environment or {})}, log.path)
    try:
        while is_running(process):
            await asyncio.sleep(_POLL_S)
            await asyncio.to_thread(log.copy)
    finally:
        code = await asyncio.to_thread(_finish, process)
        await asyncio.to_thread(log.copy)
    if code:
        raise JobFailed(f"AlgorithmError: {await asyncio.to_thread(log.last_error) or f'exit code {code}'}")


def _finish(process: ProcessId) -> int | None:
    """Kill what still runs, and return the exit code."""
    kill_session(process)
    deadline_s = time.monotonic() + _KILL_S
    while is_running(process) and time.monotonic() < deadline_s:
        time.sleep(_KILL_POLL_S)
    return reap(process)


def _end_earlier(marker: Path) -> None:
    for process in processes_with_argument(str(marker)):
        kill_session(process)


async def measure_bandwidth(folder: Path, log: JobLog) -> float:
    """Return the bytes per second that this machine reads from memory, measured once for a job, in a child."""
    path = folder / "bandwidth"
    if not path.exists():
        await run_child("-c", _MEASURE, str(path), marker=path, log=log, command=COMMAND[:2])
    return float(await asyncio.to_thread(path.read_text))
