"""Processes are found again, and other processes are left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.processes import (
    ProcessId,
    is_running,
    kill_session,
    memory_bytes,
    process_id,
    processes_with_argument,
    reap,
    send_signal,
    spawn,
)
from tests.waiting import WAIT_S


def wait_until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ProcessId]]:
    started: list[ProcessId] = []

    def start_shell(script: str, **environment: str) -> ProcessId:
        process = spawn(["/bin/sh", "-c", script], environment, tmp_path / "log")
        started.append(process)
        return process

    yield start_shell
    for process in started:
        kill_session(process)
        wait_until(lambda process=process: reap(process) is not None or process_id(process.pid) != process)


def test_output_is_appended_and_nothing_is_inherited(start, tmp_path) -> None:
    (tmp_path / "log").write_text("before\n")
    script = 'echo "out $NAME"; echo err >&2; cat; ls /proc/self/fd | wc -l; exit 3'
    process = start(script, NAME="x", PATH="/bin:/usr/bin")
    wait_until(lambda: not is_running(process))
    assert reap(process) == 3
    assert (tmp_path / "log").read_text().split() == ["before", "out", "x", "err", "4"]
    assert (tmp_path / "log").stat().st_mode & 0o777 in (0o600, 0o644)


def test_a_process_leads_its_own_session(start) -> None:
    process = start("sleep 100")
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    assert is_running(process)
    assert reap(process) is None


def test_a_zombie_does_not_run(start) -> None:
    process = start("exit 0")
    wait_until(lambda: not is_running(process))
    assert process_id(process.pid) == process
    assert reap(process) == 0
    assert reap(process) is None
    assert process_id(process.pid) is None


def test_a_process_that_reuses_the_id_is_another_process(start) -> None:
    process = start("sleep 100")
    for stranger in (replace(process, start_ticks=process.start_ticks - 1), replace(process, boot_id="another")):
        assert not is_running(stranger)
        send_signal(stranger, signal.SIGKILL)
        kill_session(stranger)
        assert reap(stranger) is None
    assert is_running(process)


def test_the_exit_code_of_a_killed_process_is_its_signal(start) -> None:
    process = start("sleep 100")
    send_signal(process, signal.SIGKILL)
    wait_until(lambda: not is_running(process))
    assert reap(process) == -signal.SIGKILL
    send_signal(process, signal.SIGKILL)


def test_descendants_are_killed_with_a_process_and_after_its_end(start, tmp_path) -> None:
    process = start(f"sleep 100 & echo $! > {tmp_path}/child; exit 0", PATH="/bin:/usr/bin")
    wait_until(lambda: not is_running(process))
    reap(process)
    child = process_id(int((tmp_path / "child").read_text()))
    assert child is not None
    assert is_running(child)
    kill_session(process)
    wait_until(lambda: not is_running(child))


def test_a_program_name_with_brackets_and_blanks_is_parsed(tmp_path) -> None:
    program = tmp_path / "a) R 1 1 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "100"]) as process:
        found = process_id(process.pid)
        assert found is not None
        assert is_running(found)
        process.kill()


def test_signal_dispositions_are_the_default_ones(start, tmp_path) -> None:
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = start("sleep 100")
    finally:
        signal.signal(signal.SIGTERM, old)
    send_signal(process, signal.SIGTERM)
    wait_until(lambda: not is_running(process))
    assert reap(process) == -signal.SIGTERM


def test_a_program_that_cannot_be_started_raises(tmp_path) -> None:
    with pytest.raises(OSError, match="No such file"):
        spawn(["/nowhere/program"], {}, tmp_path / "log")
    with pytest.raises(ValueError, match="null"):
        spawn([sys.executable, "a\0b"], {}, tmp_path / "log")


def test_memory_counts_descendants_in_other_sessions(start) -> None:
    process = start("setsid sleep 100 & sleep 100", PATH="/bin:/usr/bin")
    wait_until(lambda: len(processes_with_argument("sleep")) >= 2)
    one_page = os.sysconf("SC_PAGE_SIZE")
    wait_until(lambda: memory_bytes(process) > 3 * one_page)
    alone = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * one_page
    wait_until(lambda: memory_bytes(process) > alone)
    kill_session(process)
    wait_until(lambda: not is_running(process))
    assert memory_bytes(process) == 0
