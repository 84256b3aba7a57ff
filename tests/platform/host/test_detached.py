"""A platform in the background: `headrace up --detach`, `status --wait` and `down`."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.core.processes import is_running, process_id
from headrace.platform.host.folders import DataFolder
from headrace.tools.cli.detached import _until_it_answers, stop_platform
from headrace.tools.cli.group import Failed
from headrace.tools.cli.platform_client import NotTrusted, Platform
from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .running import clean_environment

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs commands for the data folder `tmp_path`."""
    env = clean_environment(
        HEADRACE_UP_DATA_DIR=str(tmp_path),
        HEADRACE_UP_S3_ENDPOINT="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="k",
        AWS_SECRET_ACCESS_KEY="s",
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [headrace_command(), *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False, env=env
        )

    return run


def test_a_platform_runs_in_the_background_until_it_is_stopped(command: Command, tmp_path: Path) -> None:
    started = command("up", "--detach", "--port", "0", "--strict")
    try:
        assert started.returncode == 0, started.stderr
        assert ["log", str(tmp_path / "platform.log")] in [line.split() for line in started.stdout.splitlines()]
        assert "`headrace down` stops the platform and its workers." in started.stdout
        running = DataFolder(tmp_path).running_platform()
        assert running is not None
        assert running.url in started.stdout
        ready = command("status", "--wait", "--json")
        assert ready.returncode == 0, ready.stderr
        assert (json.loads(ready.stdout)["url"], json.loads(ready.stdout)["status"]) == (running.url, "ok")
        second = command("up", "--detach", "--port", "0")
        assert second.returncode == 2
        assert f"Another platform at {running.url} already uses {tmp_path}" in second.stderr
    finally:
        stopped = command("down")
    assert (stopped.returncode, stopped.stdout) == (0, f"The platform at {running.url} has stopped.\n")
    assert not is_running(running.process)
    assert "platform.stopped" in (tmp_path / "platform.log").read_text()
    again = command("down")
    assert (again.returncode, again.stderr) == (0, f"No platform is running on {tmp_path}.\n")


def test_a_platform_that_does_not_start_is_reported_with_its_reason(command: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = command("up", "--detach", "--port", str(port))
    assert failed.returncode == 2
    assert f"Error: Port {port} on 127.0.0.1 is in use." in failed.stderr
    assert f"The platform did not start. Log: {tmp_path / 'platform.log'}" in failed.stderr


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that ignores SIGTERM, announced as the platform of `tmp_path`."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = process_id(process.pid)
        assert found is not None
        announced = {"url": "http://127.0.0.1:9", "process": asdict(found)}
        (tmp_path / "running.json").write_text(json.dumps(announced))
        yield process
        process.kill()


def test_the_wait_for_the_end_is_bounded(stubborn: subprocess.Popen[str], tmp_path: Path) -> None:
    expected = rf"still stopping after 0\.2 s\. `headrace down` waits for it again; `kill {stubborn.pid}`"
    with pytest.raises(Failed, match=expected):
        stop_platform(DataFolder(tmp_path), 0.2)


def test_a_certificate_that_is_not_accepted_here_does_not_hold_up_the_start(
    stubborn: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def health(_self: Platform) -> None:
        raise NotTrusted("It is for another name.")

    monkeypatch.setattr(Platform, "health", health)
    process = process_id(stubborn.pid)
    assert process is not None
    assert _until_it_answers(DataFolder(tmp_path), process, lambda _stage: None).url == "http://127.0.0.1:9"


def test_a_platform_that_is_stopping_gets_no_second_signal(
    stubborn: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataFolder(tmp_path).announce_stop()
    sent: list[int] = []
    monkeypatch.setattr("headrace.tools.cli.detached.send_signal", lambda _process, number: sent.append(number))
    with pytest.raises(Failed, match="still stopping"):
        stop_platform(DataFolder(tmp_path), 0.1)
    assert sent == []
    assert stubborn.poll() is None


def test_a_process_id_that_another_program_uses_now_is_not_signalled(tmp_path: Path) -> None:
    other = {"pid": os.getpid(), "start_ticks": 1, "boot_id": "another boot"}
    (tmp_path / "running.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "process": other}))
    assert stop_platform(DataFolder(tmp_path), 0.1) is None


def test_a_platform_of_another_container_is_left_alone(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with folder.locked(), pytest.raises(Failed, match="runs in another container"):
        stop_platform(folder, 0.1)
