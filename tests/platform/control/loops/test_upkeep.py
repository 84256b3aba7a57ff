"""A machine that returns removes what it kept of workers and endpoints that are gone."""

from pathlib import Path

from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.machine import MachineValues, OwnMachine
from headrace.platform.control.loops.upkeep import Upkeep
from headrace.platform.control.model.worker import WORKER, ReplicaSpec
from headrace.platform.state.store import open_store


async def test_folders_without_a_record_are_removed(tmp_path: Path) -> None:
    workers, prefixes, store = tmp_path / "workers", tmp_path / "prefixes", open_store("sqlite://")
    local = LocalLauncher(workers, cache_folder=tmp_path, environment={})
    launcher = OwnMachine(local, "a:1", memory_bytes=1, values=MachineValues(folder=tmp_path))
    upkeep = Upkeep(store=store, launcher=launcher, workers=workers, prefixes=prefixes)
    assert await upkeep.pass_once() == 0
    spec = dict.fromkeys(("endpoint", "endpoint_uid", "variant", "log_group", "log_stream"), "e")
    store.create(WORKER, "known", spec=ReplicaSpec(revision=1, **spec))
    for folder in (workers / "known", workers / "gone", prefixes / "gone"):
        folder.mkdir(parents=True)
    assert await upkeep.pass_once() == 1
    assert [folder.name for folder in (*workers.iterdir(), *prefixes.iterdir())] == ["known"]
    store.close()
