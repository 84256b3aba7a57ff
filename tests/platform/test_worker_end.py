"""The end of all workers when a platform stops."""

import contextlib
import sqlite3
from pathlib import Path

from headrace.cluster.launcher import WorkerSpec
from headrace.control.model.worker import WORKER, ReplicaSpec
from headrace.platform.life import end_workers
from headrace.state.records import Record
from headrace.state.store import open_store
from headrace.testing.fake_launcher import FakeLauncher

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
