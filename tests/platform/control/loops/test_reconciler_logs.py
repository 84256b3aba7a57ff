"""The reconciler retains and drops the logs of ended workers."""

from collections.abc import Iterator

import pytest

from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER
from tests.platform.control.loops.reconciler_scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()


async def test_logs_outlive_workers_and_their_endpoint(scene: Scene) -> None:
    scene.logs.write("hello")
    scene.ask(count=2)
    await scene.settle()
    workers = {record.name: record for record in scene.store.list(WORKER)}
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle()
    assert scene.store.list(WORKER) == []
    assert {ended.worker for ended in scene.logs.ended()} == set(workers)
    for ended in scene.logs.ended():
        record = workers[ended.worker]
        assert ended.log_group == record.spec.log_group
        assert ended.log_stream == record.spec.log_stream
        assert ended.created_ms == int(record.created_s * 1000)


async def test_a_log_that_cannot_be_retained_does_not_hold_up_its_worker(scene: Scene) -> None:
    scene.logs.write("hello")
    scene.logs.fault = OSError(28, "No space left on device")
    scene.ask()
    await scene.settle()
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle()
    assert scene.store.get(ENDPOINT, "e") is None
    assert scene.machine.workers == {}
    assert scene.logs.ended() == []
