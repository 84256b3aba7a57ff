"""The reconciler when a machine is lost, with fake workers, a real store and a manual clock."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.platform.cluster.launcher import Handle, Observation, WorkerPhase
from headrace.platform.control.model.workload import State
from headrace.testing.fake_launcher import FakeLauncher
from tests.platform.control.loops.reconciler_scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.close()


class AwayLauncher(FakeLauncher):
    """Its workers are lost while their machine is away, and run on there."""

    is_away = False
    is_blameless = False

    async def poll(self, name: str, handle: Handle) -> Observation:
        if self.is_away:
            lost = Observation(phase=WorkerPhase.EXITED, message="The machine was lost.", was_lost=True)
            return replace(lost, is_blameless=self.is_blameless)
        return await super().poll(name, handle)

    async def known(self) -> dict[str, Handle]:
        return {} if self.is_away else await super().known()


async def test_a_worker_that_was_lost_ends_when_its_machine_is_back(scene: Scene) -> None:
    launcher = AwayLauncher(scene.machine)
    scene.reconciler = scene.born(launcher)
    scene.ask()
    await scene.settle()
    (lost,) = scene.living()
    launcher.is_away = True
    await scene.settle(1.0)
    launcher.is_away = False
    await scene.settle(80)
    (replacement,) = scene.living()
    assert replacement != lost
    assert scene.replicas() == [replacement]
    assert scene.state() is State.IN_SERVICE


async def test_workers_of_machines_that_are_lost_again_and_again_are_replaced_at_once(scene: Scene) -> None:
    launcher = AwayLauncher(scene.machine)
    launcher.is_blameless = True
    scene.reconciler = scene.born(launcher)
    scene.ask()
    await scene.settle()
    for _ in range(8):
        before = len(scene.machine.started)
        launcher.is_away = True
        await scene.settle(1.0)
        launcher.is_away = False
        await scene.settle(5.0)
        assert len(scene.machine.started) > before
    assert scene.state() is State.IN_SERVICE
    await scene.settle(40)
    assert len(scene.living()) == 1
