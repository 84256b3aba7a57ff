"""The fake launcher keeps the launcher's contract."""

import pytest

from headrace.platform.cluster.launcher import LaunchFailed, WorkerPhase, WorkerSpec
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine, ManualClock, fails_after, ready_after


def machine_of(script=None) -> tuple[FakeMachine, ManualClock]:
    clock = ManualClock()
    return FakeMachine(clock=clock, script=lambda _spec: script or ready_after()), clock


async def test_a_worker_goes_through_its_phases_as_time_passes() -> None:
    machine, clock = machine_of(ready_after(10, fetch_s=4))
    launcher = FakeLauncher(machine)
    handle = await launcher.start(WorkerSpec(name="w"))
    seen = []
    for _ in range(4):
        seen.append((await launcher.poll("w", handle)).phase)
        clock.advance(4)
    assert seen == [WorkerPhase.FETCHING, WorkerPhase.STARTING, WorkerPhase.STARTING, WorkerPhase.READY]


async def test_a_worker_that_fails_says_why() -> None:
    machine, clock = machine_of(fails_after(5, message="no such bucket", exit_code=2))
    launcher = FakeLauncher(machine)
    handle = await launcher.start(WorkerSpec(name="w"))
    assert (await launcher.poll("w", handle)).phase is WorkerPhase.STARTING
    clock.advance(5)
    seen = await launcher.poll("w", handle)
    assert (seen.phase, seen.exit_code, seen.message) == (WorkerPhase.EXITED, 2, "no such bucket")


async def test_a_stop_takes_the_workers_time_but_never_more_than_the_grace() -> None:
    machine, clock = machine_of(ready_after(stop_s=50))
    launcher = FakeLauncher(machine)
    handle = await launcher.start(WorkerSpec(name="w"))
    await launcher.stop("w", handle, grace_s=30)
    clock.advance(29)
    assert (await launcher.poll("w", handle)).phase is WorkerPhase.READY
    await launcher.stop("w", handle, grace_s=30)
    clock.advance(1)
    assert (await launcher.poll("w", handle)).phase is WorkerPhase.EXITED
    await launcher.forget("w")
    assert machine.workers == {}


async def test_a_restarted_platform_finds_the_workers() -> None:
    machine, _ = machine_of()
    first = FakeLauncher(machine)
    handle = await first.start(WorkerSpec(name="w"))
    await first.close()
    second = FakeLauncher(machine)
    assert await second.known() == {"w": handle}
    assert await second.start(WorkerSpec(name="w")) == handle
    assert (await second.poll("w", handle)).phase is WorkerPhase.READY


async def test_a_crash_and_a_refusal_are_seen() -> None:
    machine, _ = machine_of()
    launcher = FakeLauncher(machine)
    old = await launcher.start(WorkerSpec(name="w"))
    machine.crash("w", exit_code=-9)
    assert (await launcher.poll("w", old)).exit_code == -9
    assert await launcher.known() == {}
    new = await launcher.start(WorkerSpec(name="w"))
    assert (await launcher.poll("w", new)).phase is WorkerPhase.READY
    assert (await launcher.poll("w", old)).phase is WorkerPhase.EXITED
    machine.refusal = "no room"
    with pytest.raises(LaunchFailed, match="no room"):
        await launcher.start(WorkerSpec(name="x"))


async def test_a_living_worker_is_not_forgotten_and_an_unknown_one_has_exited() -> None:
    machine, _ = machine_of()
    launcher = FakeLauncher(machine)
    handle = await launcher.start(WorkerSpec(name="w"))
    machine.show("w", WorkerPhase.UNHEALTHY)
    await launcher.forget("w")
    assert (await launcher.poll("w", handle)).phase is WorkerPhase.UNHEALTHY
    assert (await launcher.poll("unknown", handle)).phase is WorkerPhase.EXITED
