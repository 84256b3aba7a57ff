"""The end of a worker: in its log, with the signal and the likely cause."""

import json
from pathlib import Path

import pytest

from headrace.platform.cluster.launcher import Observation, WorkerPhase
from headrace.platform.cluster.worker_exit import ExitLog, exit_reason, is_exit_line, likely_cause, num_oom_kills
from headrace.platform.cluster.worker_files import worker_files
from headrace.platform.cluster.worker_logs import WorkerLogs


@pytest.mark.parametrize(
    ("code", "was_stopped", "ran_out_of_memory", "cause"),
    [
        (-9, False, True, "the memory ran out"),
        (137, False, True, "the memory ran out"),
        (None, False, True, "the memory ran out"),
        (-9, False, False, "sent by another program"),
        (-9, True, False, "the platform stopped it"),
        (-15, False, False, "sent by another program"),
        (-11, False, True, "native code crashed"),
        (139, False, False, "native code crashed"),
        (-4, False, False, "this CPU lacks"),
        (-7, False, False, "cut short"),
        (None, False, False, "killed or crashed"),
        (3, False, True, ""),
        (0, False, False, ""),
    ],
)
def test_the_likely_cause_of_an_end_is_told(
    code: int | None, was_stopped: bool, ran_out_of_memory: bool, cause: str
) -> None:
    told = likely_cause(code, was_stopped=was_stopped, ran_out_of_memory=ran_out_of_memory)
    assert (cause in told) if cause else told == ""
    if cause:
        reason = exit_reason(Observation(phase=WorkerPhase.EXITED, exit_code=code, cause=told))
        assert told in reason


def test_the_line_stands_alone_after_what_the_worker_wrote_last(tmp_path: Path) -> None:
    files = worker_files(tmp_path, "w")
    files.folder.mkdir()
    files.log.write_bytes(b"first\nin the middle of a")
    logs, kills = WorkerLogs(tmp_path), iter([3, 4])
    exits = ExitLog(logs, now_s=lambda: 1e9, oom_kills=lambda: next(kills))
    exits.saw_running("w")
    exits.note("w", -9, exits.cause("w", -9, was_stopped=False), phase="ready")

    first, cut, last = [event.message for event in logs.read("w")]
    assert (first, cut) == ("first", "in the middle of a")
    assert is_exit_line(last)
    assert json.loads(last) == {
        "event": "worker.exited",
        "exit_code": -9,
        "signal": "SIGKILL",
        "cause": "most likely the memory ran out: the kernel killed a process for it at that time",
        "phase": "ready",
        "level": "error",
        "timestamp": "2001-09-09T01:46:40Z",
    }


def test_the_kernel_counts_its_kills(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 1\noom_kill 7\n")
    assert num_oom_kills(vmstat) == 7
    assert num_oom_kills(tmp_path / "missing") == 0
