"""The reconciler with fake workers, a real store and a manual clock."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.platform.cloudwatch.alarms.records import AlarmStatus
from headrace.platform.cluster.launcher import Handle, WorkerPhase, WorkerSpec
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.control.model.workload import State, visible_state
from headrace.platform.state.routes import ROUTE
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine, Script, fails_after, ready_after
from tests.platform.cloudwatch.samples import create_alarm
from tests.platform.control.broken_records import insert_record
from tests.platform.control.loops.reconciler_scene import Scene
from tests.waiting import WAIT_S


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()


async def test_an_endpoint_is_created_and_deleted(scene: Scene) -> None:
    scene.ask(count=2)
    await scene.settle()
    assert scene.state() is State.IN_SERVICE
    assert scene.replicas() == scene.living()
    assert len(scene.living()) == 2
    (first, *_) = scene.machine.workers.values()
    assert first.spec.options == {"dialect": "tgi-1.0"}
    assert first.spec.environment["HF_MODEL_ID"] == "smollm2"
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle()
    assert scene.store.get(ENDPOINT, "e") is None
    assert scene.store.get(ROUTE, "e") is None
    assert scene.store.list(WORKER) == []
    assert scene.machine.workers == {}


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_clock_that_jumps_fails_no_worker_that_starts(scene: Scene, jump_s: float) -> None:
    scene.ask()
    await scene.settle(2.0)
    assert scene.state() is State.CREATING
    scene.jump(jump_s)
    await scene.settle()
    assert scene.state() is State.IN_SERVICE
    assert len(scene.living()) == 1
    assert len(scene.machine.started) == 1


async def test_workers_that_wait_for_room_start_when_there_is_room(scene: Scene) -> None:
    scene.machine.waits_for = "No node has room. Free: 1.5 CPU."
    scene.ask(count=2)
    await scene.settle()
    assert scene.state() is State.CREATING
    assert {worker.status.waiting for worker in scene.store.list(WORKER)} == {"No node has room. Free: 1.5 CPU."}
    assert "No node has room. Free: 1.5 CPU." in scene.endpoint().status.placements["a"]
    before = scene.store.revision()
    scene.machine.waits_for = "No node has room. Free: 0 CPU."
    await scene.settle()
    assert scene.store.revision() == before, "numbers that change are no reason to write"
    scene.machine.waits_for = "The cluster does not answer."
    await scene.settle()
    assert {worker.status.waiting for worker in scene.store.list(WORKER)} == {"The cluster does not answer."}
    scene.machine.waits_for = ""
    await scene.settle()
    assert scene.state() is State.IN_SERVICE
    assert not any(worker.status.waiting for worker in scene.store.list(WORKER))
    assert "The cluster does not answer." not in scene.endpoint().status.notices["a"]


async def test_a_launcher_that_does_not_answer_delays_a_start_and_fails_nothing(scene: Scene) -> None:
    scene.machine.is_silent = True
    scene.ask()
    await scene.settle(60)
    assert scene.state() is State.CREATING
    assert "did not answer within 30 s" in scene.endpoint().status.placements["a"][0]
    scene.machine.is_silent = False
    await scene.settle()
    assert scene.state() is State.IN_SERVICE


async def test_a_worker_that_is_lost_with_its_node_while_it_starts_is_replaced(scene: Scene) -> None:
    scene.machine.script = lambda _spec: ready_after(5.0)
    scene.ask()
    await scene.settle(1)
    (lost,) = scene.living()
    scene.machine.lose(lost, "the node was lost.")
    await scene.settle()
    assert scene.state() is State.IN_SERVICE
    assert lost not in scene.replicas()


async def test_a_worker_that_never_finds_room_fails_with_the_reason_of_its_wait(scene: Scene) -> None:
    scene.machine.waits_for = "No node has room."
    scene.ask()
    await scene.settle(239)
    assert scene.state() is State.CREATING
    await scene.settle(3)
    assert scene.state() is State.FAILED
    assert "InsufficientInstanceCapacity" in scene.reason()
    assert "it could not be started within 240 s. No node has room." in scene.reason()
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle()
    assert scene.store.list(WORKER) == []
    assert scene.store.get(ENDPOINT, "e") is None


async def test_an_endpoint_whose_worker_waits_can_be_deleted(scene: Scene) -> None:
    scene.machine.waits_for = "No node has room."
    scene.ask()
    await scene.settle(5)
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle(5)
    assert scene.store.list(WORKER) == []
    assert scene.store.get(ENDPOINT, "e") is None


async def test_nothing_is_written_when_nothing_changes(scene: Scene) -> None:
    scene.ask()
    await scene.settle()
    before = scene.store.revision()
    await scene.settle()
    assert scene.store.revision() == before


async def test_settings_without_effect_become_notices(scene: Scene) -> None:
    scene.ask()
    await scene.settle()
    assert "ml.g5.xlarge has a GPU, which is not here." in scene.endpoint().status.notices["a"]


async def test_a_failure_reason_has_the_last_lines_of_the_log(scene: Scene) -> None:
    scene.logs.write("loading", "ValueError: bad weights")
    scene.machine.script = lambda _spec: fails_after(1.0, message="The file is cut off.")
    scene.ask()
    await scene.settle()
    assert scene.state() is State.FAILED
    assert scene.reason().startswith(
        "The primary container for production variant a did not pass the ping health check. "
        "Please check CloudWatch logs for this endpoint. Reason: The file is cut off.\n"
    )
    (worker,) = scene.store.list(WORKER)
    assert (
        f"\nIts log (/aws/sagemaker/Endpoints/{worker.spec.endpoint}, stream {worker.spec.log_stream})"
        in scene.reason()
    )
    assert scene.reason().endswith(" ends with:\nloading\nValueError: bad weights")
    assert scene.living() == []
    assert len(scene.store.list(WORKER)) == 1


async def test_a_worker_that_cannot_be_started_fails_the_endpoint(scene: Scene) -> None:
    scene.machine.refusal = "There is no free port."
    scene.ask()
    await scene.settle()
    assert scene.state() is State.FAILED
    assert "There is no free port." in scene.reason()


def fails_after_fetching_was_seen(message: str, ended_in: WorkerPhase | None) -> Script:
    fetching = ready_after(9.0, fetch_s=9.0).phases[:1]
    return Script(phases=(*fetching, *fails_after(2.0, message=message, ended_in=ended_in).phases[1:]))


@pytest.mark.parametrize("ended_in", [WorkerPhase.FETCHING, None])
async def test_a_failed_download_is_reported_as_such(scene: Scene, ended_in: WorkerPhase | None) -> None:
    scene.machine.script = lambda _spec: fails_after_fetching_was_seen("s3://b/k does not exist.", ended_in)
    scene.ask()
    await scene.settle()
    assert scene.reason().startswith("Failed to download model data for the primary container of production variant a.")
    assert "s3://b/k does not exist." in scene.reason()


async def test_a_failure_after_the_download_is_not_reported_as_a_failed_download(scene: Scene) -> None:
    scene.machine.script = lambda _spec: fails_after_fetching_was_seen("Not enough memory.", WorkerPhase.STARTING)
    scene.ask()
    await scene.settle()
    assert scene.reason().startswith("The primary container for production variant a did not pass the ping health")
    assert "Not enough memory." in scene.reason()


async def test_a_crashed_worker_leaves_the_route_and_is_replaced(scene: Scene) -> None:
    scene.ask(count=2)
    await scene.settle()
    victim, other = scene.living()
    scene.machine.crash(victim)
    await scene.reconciler.pass_once()
    assert scene.replicas() == [other]
    assert scene.state() is State.IN_SERVICE
    await scene.settle()
    assert len(scene.replicas()) == 2
    assert victim not in scene.replicas()


async def test_a_restarted_platform_adopts_running_workers(scene: Scene) -> None:
    scene.ask(count=2)
    await scene.settle()
    before = scene.replicas()
    scene.reconciler = scene.born()
    await scene.settle()
    assert scene.replicas() == before
    assert len(scene.machine.started) == 2


async def test_an_update_keeps_the_old_worker_until_the_new_one_serves(scene: Scene) -> None:
    scene.ask()
    await scene.settle()
    (old,) = scene.replicas()
    scene.ask(number=2)
    assert scene.state() is State.UPDATING
    for _ in range(40):
        scene.clock.advance(0.2)
        await scene.reconciler.pass_once()
        assert old in scene.living() or old not in scene.replicas()
        assert scene.replicas()
    assert scene.state() is State.IN_SERVICE
    assert scene.replicas() != [old]
    assert scene.living() == scene.replicas()


async def test_an_alarm_during_baking_rolls_the_update_back(scene: Scene) -> None:
    alarm = create_alarm(scene.store, "errors")
    create_alarm(scene.store, "another", "ALARM")
    scene.ask()
    await scene.settle()
    routing = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 300}
    policy = {"TrafficRoutingConfiguration": routing}
    rollback = {"Alarms": [{"AlarmName": "errors"}]}
    scene.ask(number=2, deployment={"BlueGreenUpdatePolicy": policy, "AutoRollbackConfiguration": rollback})
    await scene.settle(60)
    assert visible_state(scene.endpoint()) is State.UPDATING
    scene.store.update(alarm, status=AlarmStatus(state="ALARM"))
    await scene.settle()
    progress = scene.endpoint().status.progress
    assert progress is not None
    assert (progress.state, progress.stable) == (State.IN_SERVICE, 1)
    assert progress.failure_reason == "Alarm errors of AutoRollbackConfiguration is in ALARM."


async def test_a_process_without_a_record_is_stopped(scene: Scene) -> None:
    await scene.reconciler.pass_once()
    launcher = FakeLauncher(scene.machine)
    await launcher.start(WorkerSpec(name="stranger"))
    await scene.settle(80)
    assert scene.machine.workers == {}


async def test_workers_of_a_deleted_endpoint_are_stopped(scene: Scene) -> None:
    scene.ask()
    await scene.settle()
    scene.store.remove(scene.endpoint())
    await scene.settle()
    assert scene.machine.workers == {}
    assert scene.store.list(WORKER) == []
    assert scene.store.get(ROUTE, "e") is None


async def test_the_prefix_cache_of_an_endpoint_is_removed_with_it(scene: Scene, tmp_path: Path) -> None:
    workers = scene.reconciler._workers
    workers.defaults = replace(workers.defaults, prefix_caches=tmp_path)
    scene.ask()
    uid = scene.endpoint().uid
    for name in (uid, "gone"):
        (tmp_path / name / "identity").mkdir(parents=True)
    await scene.settle(80)
    assert [path.name for path in tmp_path.iterdir()] == [uid]
    scene.store.remove(scene.endpoint())
    await scene.settle(80)
    assert not any(tmp_path.iterdir())


async def test_an_unreadable_endpoint_does_not_hold_up_the_others(scene: Scene) -> None:
    insert_record(scene.store, ENDPOINT, "broken", {"generation": 1})
    scene.ask()
    await scene.settle(5, pause_s=1.0)
    assert scene.state() is State.IN_SERVICE


async def test_a_name_can_be_used_again(scene: Scene) -> None:
    scene.ask()
    await scene.settle()
    scene.store.update(scene.endpoint(), is_deleting=True)
    await scene.settle()
    scene.ask()
    await scene.settle()
    assert scene.state() is State.IN_SERVICE
    assert len(scene.living()) == 1


class Killed(BaseException):
    """The platform is dead from here on."""


class MortalLauncher(FakeLauncher):
    """Dies before, or right after, its n-th change."""

    def __init__(self, machine: FakeMachine, *, num_changes: int, is_after: bool) -> None:
        super().__init__(machine)
        self._left = num_changes
        self._is_after = is_after

    async def start(self, spec: WorkerSpec) -> Handle:
        self._live(is_after=False)
        handle = await super().start(spec)
        self._live(is_after=True)
        return handle

    async def stop(self, name: str, handle: Handle, *, grace_s: float) -> None:
        self._live(is_after=False)
        await super().stop(name, handle, grace_s=grace_s)
        self._live(is_after=True)

    async def forget(self, name: str) -> None:
        self._live(is_after=False)
        await super().forget(name)
        self._live(is_after=True)

    def _live(self, *, is_after: bool) -> None:
        if is_after == self._is_after:
            self._left -= 1
            if self._left < 0:
                raise Killed


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("num_changes", range(8))
async def test_a_crash_at_any_write_loses_nothing(scene: Scene, num_changes: int, *, is_after: bool) -> None:
    scene.reconciler = scene.born(MortalLauncher(scene.machine, num_changes=num_changes, is_after=is_after))
    with suppress(Killed):
        scene.ask(count=2)
        await scene.settle(8)
        scene.ask(number=2, count=2)
        await scene.settle(12)
    scene.reconciler = scene.born()
    found = scene.store.get(ENDPOINT, "e")
    assert found is not None
    if found.spec.generation == 1:
        scene.ask(number=2, count=2)
    await scene.settle(80)
    assert scene.state() is State.IN_SERVICE
    assert len(scene.living()) == 2
    assert scene.replicas() == scene.living()


async def test_running_ends_with_its_task_and_leaves_the_workers(scene: Scene) -> None:
    scene.machine.script = lambda _spec: ready_after()
    task = asyncio.create_task(scene.reconciler.run())
    await asyncio.to_thread(scene.ask)
    async with asyncio.timeout(WAIT_S):
        while scene.state() is not State.IN_SERVICE:
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (name,) = scene.living()
    assert scene.machine.look(name).phase is WorkerPhase.READY
