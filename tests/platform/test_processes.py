"""A platform of several processes on one port."""

import json
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .running import IMAGE, Running, clean_environment, until, up
from .test_end_to_end import make_endpoint
from .test_supervisor import is_alive

pytestmark = pytest.mark.model

NUM_PROCESSES = 3


def processes_of(platform: Running) -> set[int]:
    """The ids of the serving processes."""
    pid = platform.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def events(platform: Running, name: str) -> int:
    return platform.log().count(f'"event": "{name}"')


def ask(platform: Running) -> str:
    """One answer, over a connection of its own: the kernel chooses the process."""
    body = {"model": "shared", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{platform.url}/v1/completions", json=body, trust_env=False, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def num_invocations(platform: Running) -> float:
    """The counter of the metrics page, from a process that the kernel chooses."""
    page = httpx.get(f"{platform.url}/metrics", trust_env=False, timeout=WAIT_S).text
    (family,) = (
        found for found in text_string_to_metric_families(page) if found.name == "headrace_gateway_invocations"
    )
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


def test_processes_that_are_killed_are_replaced_and_no_connection_is_refused(
    tmp_path: Path, smollm2_path: Path
) -> None:
    platform = up(tmp_path / "data", "--processes", str(NUM_PROCESSES))
    try:
        make_endpoint(platform, "shared", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
        platform.until_in_service("shared")
        expected = ask(platform)
        before = processes_of(platform)
        assert len(before) == NUM_PROCESSES
        for _ in range(5):
            ask(platform)
        until(lambda: {num_invocations(platform) for _ in range(6)} == {6.0}, "each process answers for all")
        for number, pid in enumerate(sorted(before), start=1):  # the leader among them
            os.kill(pid, signal.SIGKILL)
            with ThreadPoolExecutor(8) as threads:
                assert set(threads.map(lambda _: ask(platform), range(16))) == {expected}
            until(lambda number=number: events(platform, "process.ended") == number, "its end is noticed")
            until(lambda: len(processes_of(platform)) == NUM_PROCESSES, "the process is replaced")
        until(lambda: events(platform, "platform.leads") > 1, "another process leads")
        assert not before & processes_of(platform)
        worker = worker_of(tmp_path / "data")
        assert is_alive(worker), "the new leader adopted the worker"
    finally:
        assert platform.stop() == 0, platform.log()
    assert not is_alive(worker)
    assert events(platform, "platform.stopped") == NUM_PROCESSES


def test_a_new_platform_takes_the_port_over_without_a_failed_request(tmp_path: Path, smollm2_path: Path) -> None:
    folder, two = tmp_path / "data", ("--processes", "2")
    old = up(folder, *two)
    make_endpoint(old, "shared", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    old.until_in_service("shared")
    expected, before = ask(old), (worker_of(folder), processes_of(old))
    answers: list[str] = []
    has_ended = threading.Event()

    def keep_asking() -> None:
        while not has_ended.is_set():
            answers.append(ask(old))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(keep_asking) for _ in range(3)]
        new = Running(old.url, folder, *start(folder, old, *two, "--takeover"))
        try:
            assert old.process.wait(timeout=WAIT_S) == 0, old.log()
            until(lambda: running_pid(folder) == new.process.pid, "the new platform stands for the folder")
            number = len(answers)
            until(lambda: len(answers) > number + 6, "the new platform answers")
        finally:
            has_ended.set()
        for asker in asking:
            asker.result()
    old.close()
    assert set(answers) == {expected}
    assert worker_of(folder) == before[0], "the worker goes on"
    assert not before[1] & processes_of(new)
    assert new.stop() == 0, new.log()
    assert not is_alive(before[0])


def start(folder: Path, old: Running, *flags: str) -> tuple["subprocess.Popen[bytes]", Path]:
    """Start a platform on the port of another one."""
    log_path = folder.parent / "new.log"
    command = [headrace_command(), "up", "--data-dir", str(folder), "--port", old.url.rpartition(":")[2], *flags]
    with log_path.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=clean_environment()), log_path


def running_pid(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "running.json").read_text())["pid"])
    except (OSError, ValueError):
        return None


def worker_of(folder: Path) -> int:
    (handle,) = folder.glob("workers/*/handle.json")
    return int(json.loads(handle.read_text())["facts"]["process"]["pid"])


@pytest.mark.parametrize(
    ("flags", "reason"), [(["--takeover"], "processes is 1"), (["--takeover", "--processes", "2"], "No platform")]
)
def test_a_takeover_that_cannot_be_is_refused(tmp_path: Path, flags: list[str], reason: str) -> None:
    command = [headrace_command(), "up", "--data-dir", str(tmp_path / "data"), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
