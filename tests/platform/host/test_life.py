"""Signals and failures that stop a platform, and those that do not; the end of its workers; what runs beside it."""

import asyncio
import contextlib
import gc
import json
import os
import pty
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.control.model.worker import WORKER, ReplicaSpec
from headrace.platform.host.life import bound_logs, end_workers, warm_up
from headrace.platform.state.records import Record
from headrace.platform.state.store import open_store
from headrace.serving.wire.aws import services
from headrace.testing.fake_launcher import FakeLauncher
from tests import plain_http
from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .running import clean_environment, until, up


def seaweed_pid(folder: Path) -> int | None:
    try:
        process = json.loads((folder / "s3" / "state.json").read_text())["process"]
    except OSError:
        return None
    return process["pid"] if process else None


def test_a_terminal_that_is_closed_ends_the_platform_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", headrace_command(), "up", "--data-dir", str(folder), "--port", "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment(),
    )
    os.close(theirs)
    try:
        shown = b""
        while b"Ctrl-C stops" not in shown:
            shown += os.read(ours, 65536)
        assert f'eval "$(headrace env --data-dir {folder})"'.encode() in shown
        os.close(ours)
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert seaweed_pid(folder) is None
    assert not (folder / "running.json").exists()


def test_nohup_keeps_the_platform_running(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = up(tmp_path / "data")
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(running.process.pid, signal.SIGHUP)
    time.sleep(0.2)
    assert running.process.poll() is None
    assert running.stop() == 0, running.log()


def test_a_signal_that_comes_twice_at_once_ends_the_platform_in_order(tmp_path: Path) -> None:
    running = up(tmp_path / "data")
    # As from a wrapper and its group; two alike could become one. Stopped, so that both arrive at one moment.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        running.process.send_signal(number)
    assert running.process.wait(timeout=WAIT_S) == 0, running.log()
    assert "platform.stopped" in running.log()
    assert "platform.killed" not in running.log()


def test_an_embedded_server_that_dies_is_started_again(tmp_path: Path) -> None:
    running = up(tmp_path / "data")
    try:
        s3 = running.client("s3")
        s3.create_bucket(Bucket="bucket")
        pid = seaweed_pid(running.folder)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: seaweed_pid(running.folder) not in (None, pid), "another one was started")
        assert until(lambda: [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]], "it answers") == ["bucket"]
    finally:
        assert running.stop() == 0, running.log()


def test_a_second_platform_on_the_same_store_is_refused_and_the_first_keeps_running(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'shared.db'}"
    running = up(tmp_path / "data", "--database", store)
    try:
        second = subprocess.run(
            [headrace_command(), "up", "--data-dir", str(tmp_path / "other"), "--port", "0", "--database", store],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert second.returncode == 2
        assert "Another platform uses the store" in second.stderr
        assert running.client("sagemaker").list_models()["Models"] == []
    finally:
        assert running.stop() == 0, running.log()


FLAGS = ("--shutdown-delay-s", "600", "--shutdown-grace-s", "600", "--s3-endpoint", "http://127.0.0.1:9")
"""No object storage of its own, which would outlive a platform that is killed."""


def test_after_sigterm_health_is_503_and_everything_else_is_still_answered(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    running = up(tmp_path / "data", *FLAGS, env=keys)
    running.process.send_signal(signal.SIGTERM)
    until(lambda: "platform.stopping" in running.log(), "the signal")
    for path in ("/ping", "/health"):
        answer = plain_http.get(f"{running.url}{path}", trust_env=False)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert (answer.json()["status"], "shutting down" in answer.json()["reason"]) == ("terminating", True)
    assert running.client("sagemaker").list_models()["Models"] == []
    time.sleep(0.6)  # signals that are closer to each other count as one
    assert running.stop() == 128 + signal.SIGTERM, running.log()


REPLICA = ReplicaSpec(endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s")
_FULL = "CREATE TRIGGER full BEFORE UPDATE ON headrace_records BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"


async def test_workers_are_marked_and_stopped(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    await launcher.start(WorkerSpec(name="w"))
    with contextlib.closing(open_store(tmp_path / "state.db")) as store:
        store.create(WORKER, "w", spec=REPLICA)
        assert await end_workers(store, launcher, grace_s=0) == 1
        record = store.get(WORKER, "w")
    assert isinstance(record, Record)
    assert record.deleting_s is not None
    assert launcher.machine.asked_to_stop == ["w"]


async def test_workers_are_stopped_if_their_records_cannot_be_written(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    await launcher.start(WorkerSpec(name="w"))
    with contextlib.closing(open_store(tmp_path / "state.db")) as store:
        store.create(WORKER, "w", spec=REPLICA)
        with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as connection:
            connection.execute(_FULL)
        assert await end_workers(store, launcher, grace_s=0) == 1
    assert launcher.machine.asked_to_stop == ["w"]


def test_all_models_are_loaded_and_not_visited_by_the_garbage_collector() -> None:
    gc.unfreeze()  # what `tests/conftest.py` froze
    try:
        asyncio.run(warm_up())
        before = services.model.cache_info().misses
        for service in services.WARMED:
            assert services.operation_names(service)
        assert services.model.cache_info().misses == before
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


async def test_logs_are_cut_while_the_platform_runs_and_one_that_cannot_be_cut_stops_nothing(tmp_path: Path) -> None:
    log, folder = tmp_path / "platform.log", tmp_path / "folder"
    log.write_bytes(b"line\n" * 1000)
    folder.mkdir()
    bounding = asyncio.create_task(bound_logs((folder, log), max_bytes=10, kept_bytes=8, pause_s=0.01))
    async with asyncio.timeout(WAIT_S):
        while log.stat().st_size > 10:
            await asyncio.sleep(0.01)
        log.write_bytes(b"line\n" * 1000)
        while log.stat().st_size > 10:
            await asyncio.sleep(0.01)
    assert not bounding.done()
    bounding.cancel()
    await asyncio.wait({bounding})
    assert log.read_bytes() == b"line\n"
