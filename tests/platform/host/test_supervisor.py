"""The process that forks and restarts the others, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.core.processes import is_running, process_id
from tests.waiting import WAIT_S

from .running import until

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from headrace.platform.host.supervisor import NOT_RESTARTED, Supervisor

folder, behaviour = Path(sys.argv[1]), sys.argv[2]

def run(child):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    index, is_first = child.index, child.is_first
    if behaviour == "unusable":
        return 2 if index == 1 else wait()
    (folder / f"{index}-{os.getpid()}-{is_first}").touch()
    (folder / f"member-{child.member_id}-after-{child.predecessor}").touch()
    if behaviour == "displaced" and index == 0 and not is_first:
        return NOT_RESTARTED
    child.is_ready()
    if behaviour in ("crashes", "displaced") and is_first and index == 0:
        raise RuntimeError("a bug")
    return wait()

def wait():
    while True:
        time.sleep(1)

failures = [OSError("too many processes")] if behaviour == "cannot-fork" else []

def fork():
    if failures:
        raise failures.pop()
    return os.fork()

supervisor = Supervisor(
    2,
    run,
    fork=fork,
    on_stop=lambda: (folder / "stopping").touch(),
    on_ready=lambda: (folder / "all-ready").touch(),
)
sys.exit(supervisor.run())
"""


def start(folder: Path, behaviour: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), behaviour])


def started(folder: Path) -> list[tuple[int, int, bool]]:
    """Index, process id, and whether it was the first of its index."""
    found = [path.name.split("-") for path in folder.glob("[0-9]-*-*")]
    return sorted((int(index), int(pid), first == "True") for index, pid, first in found)


def test_a_process_that_cannot_be_started_is_started_later(tmp_path: Path) -> None:
    with start(tmp_path, "cannot-fork") as process:
        until((tmp_path / "all-ready").exists, "both are ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
    assert [index for index, _, _ in started(tmp_path)] == [0, 1]


def test_a_signal_ends_all_processes(tmp_path: Path) -> None:
    with start(tmp_path, "waits") as process:
        until((tmp_path / "all-ready").exists, "both are ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert (tmp_path / "stopping").exists()


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    with start(tmp_path, "waits") as process:
        until(lambda: len(started(tmp_path)) == 2, "both run")
        (_, pid, _), _ = started(tmp_path)
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(started(tmp_path)) == 3, "the first one runs again")
        assert [(index, is_first) for index, _, is_first in started(tmp_path)].count((0, False)) == 1
        names = [path.name.split("-") for path in tmp_path.glob("member-*")]
        members, predecessors = {name[1] for name in names}, [name[3] for name in names if name[3]]
        assert len(members) == 3
        assert len(predecessors) == 1
        assert set(predecessors) < members, "the new process knows whose lease has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_a_process_that_crashes_is_started_again(tmp_path: Path) -> None:
    with start(tmp_path, "crashes") as process:
        until(lambda: len(started(tmp_path)) == 3, "the first one runs again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_settings_that_are_wrong_stop_all_processes(tmp_path: Path) -> None:
    with start(tmp_path, "unusable") as process:
        assert process.wait(WAIT_S) == 2


def test_a_process_whose_successor_would_end_too_stops_all_processes(tmp_path: Path) -> None:
    with start(tmp_path, "displaced") as process:
        assert process.wait(WAIT_S) == 1


def test_the_processes_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "waits") as process:
        until(lambda: len(started(tmp_path)) == 2, "both run")
        process.kill()
    pids = [pid for _, pid, _ in started(tmp_path)]
    until(lambda: not any(is_alive(pid) for pid in pids), "both have ended")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie whose new parent has not waited for it yet does not."""
    process = process_id(pid)
    return process is not None and is_running(process)
