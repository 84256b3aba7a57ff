"""The watchdog kills processes by a mark in their environment once the server has ended, and no others."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from headrace.backends.vllm.watchdog import Watchdog
from tests.backends.vllm.support import process_at, wait_until_gone
from tests.waiting import WAIT_S

MARK = "HEADRACE_TEST_MARK"
SERVER = """
import sys, time
from headrace.backends.vllm.watchdog import Watchdog
watchdog = Watchdog(sys.argv[1], sys.argv[2])
print("watching", flush=True)
time.sleep(3600)
"""


def sleeper(value: str) -> subprocess.Popen[bytes]:
    """Start a process with a mark, in a session of its own."""
    return subprocess.Popen(["sleep", "3600"], env={**os.environ, MARK: value}, start_new_session=True)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = sleeper("another")
    yield process
    process.kill()
    process.wait()


def test_closing_kills_what_is_left_and_returns_when_it_is_gone(bystander: subprocess.Popen[bytes]) -> None:
    value = uuid.uuid4().hex
    watchdog = Watchdog(MARK, value)
    left = [sleeper(value) for _ in range(2)]
    watchdog.close()
    watchdog.close()
    assert [process.wait(timeout=WAIT_S) for process in left] == [-9, -9]
    assert bystander.poll() is None


def test_a_server_that_is_killed_takes_the_marked_processes_with_it(bystander: subprocess.Popen[bytes]) -> None:
    value = uuid.uuid4().hex
    command = [sys.executable, "-c", SERVER, MARK, value]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        orphan = sleeper(value)
        running = process_at(orphan.pid)
        assert running is not None
        os.killpg(server.pid, 9)
    wait_until_gone({orphan.pid: running})
    assert orphan.wait() == -9
    assert bystander.poll() is None
