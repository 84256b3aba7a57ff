"""A platform of several processes on one port."""

import json
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import plain_http
from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .endpoints import make_endpoint
from .running import IMAGE, Running, clean_environment, until, up
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
    answer = plain_http.post(
        f"{platform.url}/v1/completions", json=body, headers=platform.bearer, trust_env=False, timeout=WAIT_S
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def kept_response(platform: Running) -> int:
    """The status of a stored response, each time at a process that the kernel chooses; the worst of several."""
    body = {"model": "shared", "input": "The capital of France is", "max_output_tokens": 4}
    made = plain_http.post(
        f"{platform.url}/v1/responses", json=body, headers=platform.bearer, trust_env=False, timeout=WAIT_S
    )
    assert made.status_code == 200, made.text
    url = f"{platform.url}/v1/responses/{made.json()['id']}"
    return max(
        plain_http.get(url, headers=platform.bearer, trust_env=False, timeout=WAIT_S).status_code for _ in range(6)
    )


def num_invocations(platform: Running) -> float:
    """The counter of the metrics page, from a process that the kernel chooses."""
    page = plain_http.get(f"{platform.url}/metrics", headers=platform.bearer, trust_env=False, timeout=WAIT_S).text
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
        until(lambda: kept_response(platform) == 200, "each process finds a stored response")
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


def test_new_platforms_take_the_port_over_without_a_failed_request(tmp_path: Path, smollm2_path: Path) -> None:
    """A platform of one process hands its port to one, and that one to a platform of two."""
    folder = tmp_path / "data"
    running = up(folder, "--supervised")
    make_endpoint(running, "shared", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    running.until_in_service("shared")
    expected, worker = ask(running), worker_of(folder)
    answers: list[str] = []
    has_ended = threading.Event()

    def keep_asking() -> None:
        while not has_ended.wait(0.05):  # three answers at a time without a pause would take all cores
            answers.append(ask(running))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(keep_asking) for _ in range(3)]
        try:
            for num_processes in (1, 2):
                running = taken_over(folder, running, num_processes)
                number = len(answers)
                until(lambda number=number: len(answers) > number + 6, "the new platform answers")
                assert len(processes_of(running)) == num_processes
        finally:
            has_ended.set()
        for asker in asking:
            asker.result()
    assert set(answers) == {expected}
    assert worker_of(folder) == worker, "the worker goes on"
    assert running.stop() == 0, running.log()
    assert not is_alive(worker)


def taken_over(folder: Path, old: Running, num_processes: int) -> Running:
    """Start the next platform on the port of a running one, and wait until it stands for the folder."""
    flags = ("--takeover", "--processes", str(num_processes))
    new = Running(old.url, folder, *start(folder, old, *flags))
    before = processes_of(old)
    assert old.process.wait(timeout=WAIT_S) == 0, old.log()
    until(lambda: running_pid(folder) == new.process.pid, "the new platform stands for the folder")
    assert not before & processes_of(new)
    old.close()
    return new


def start(folder: Path, old: Running, *flags: str) -> tuple["subprocess.Popen[bytes]", Path]:
    """Start a platform on the port of another one."""
    log_path = folder.parent / f"after-{old.process.pid}.log"
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


def test_a_takeover_that_cannot_be_is_refused(tmp_path: Path) -> None:
    command = [headrace_command(), "up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--takeover"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "No platform hands its port over" in done.stderr
    assert "--supervised" in done.stderr
