"""The watchdog kills processes by a mark in their environment once the server has ended, and removes their files."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.inference.backends.vllm.watchdog import Watchdog
from tests.inference.backends.vllm.support import process_at, wait_until_gone
from tests.waiting import WAIT_S

MARK = "HEADRACE_TEST_MARK"
SHARED_MEMORY = Path("/dev/shm")
SERVER = """
import pathlib, sys, time
from headrace.inference.backends.vllm.watchdog import Watchdog
watchdog = Watchdog(sys.argv[1], pathlib.Path(sys.argv[2]))
print("watching", flush=True)
time.sleep(3600)
"""


def sleeper(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process with a mark, in a session of its own."""
    return subprocess.Popen(["sleep", "3600"], env={**os.environ, MARK: str(folder)}, start_new_session=True)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = sleeper(Path("another"))
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def segments() -> Iterator[list[Path]]:
    """Shared memory of a rank, and of a rank of another server with a longer name."""
    name = f"vllm_dist_{uuid.uuid4().hex}"
    paths = [SHARED_MEMORY / f"{name}-tp:0-[0-1]-cpushm_0", SHARED_MEMORY / f"{name}0-tp:0-[0-1]-cpushm_0"]
    for path in paths:
        path.touch()
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def test_closing_kills_what_is_left_and_removes_its_files_and_no_others(
    bystander: subprocess.Popen[bytes], segments: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / segments[0].name.partition("-")[0]).touch()
    (tmp_path / segments[1].name.partition("-")[0]).touch()
    watchdog = Watchdog(MARK, folder)
    left = [sleeper(folder) for _ in range(2)]
    watchdog.kill()
    assert [process.wait(timeout=WAIT_S) for process in left] == [-9, -9]
    watchdog.close()
    watchdog.close()
    assert bystander.poll() is None
    assert [path.exists() for path in (folder, *segments)] == [False, False, True]


def test_a_server_that_is_killed_takes_the_marked_processes_and_their_files_with_it(
    bystander: subprocess.Popen[bytes], segments: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / segments[0].name.partition("-")[0]).touch()
    command = [sys.executable, "-c", SERVER, MARK, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        orphan = sleeper(folder)
        running = process_at(orphan.pid)
        assert running is not None
        os.killpg(server.pid, 9)
    wait_until_gone({orphan.pid: running})
    assert orphan.wait() == -9
    deadline_s = time.monotonic() + WAIT_S
    while folder.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert [path.exists() for path in segments] == [False, True]
    assert bystander.poll() is None
