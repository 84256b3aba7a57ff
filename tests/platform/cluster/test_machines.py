"""Workers of several machines, of which one is lost, silent, or returns."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.cluster import machines
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.launcher import Handle, StartPending, WorkerPhase, WorkerSpec
from headrace.platform.cluster.machine import OF_MACHINE, MachineValues, localized, machine_of
from headrace.platform.cluster.machines import ABANDONED_S, LOST_S, SILENT_S, MachinesLauncher, Presence
from tests.waiting import WAIT_S

from .sites import MachinesSite, local_site, machine, machines_site, seen_as, spec


class Clock:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def site(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MachinesSite]:
    monkeypatch.setattr(machines, "PING_TIMEOUT_S", WAIT_S)
    made = machines_site(tmp_path, clock)
    yield made
    made.presence.update(["other:1"])
    made.answers.add("other:1")
    await made.end()


async def test_a_worker_of_a_machine_without_members_is_kept_while_it_answers_and_then_lost(
    site: MachinesSite, clock: Clock
) -> None:
    handle = await site.healthy("w")
    assert (machine_of(handle), handle.memory_bytes) == ("other:1", 1 << 30)
    site.presence.update([])
    clock.now_s = ABANDONED_S - 1
    assert (await site.launcher.poll("w", handle)).phase is WorkerPhase.READY
    clock.now_s = ABANDONED_S
    gone = await site.launcher.poll("w", handle)
    assert (gone.phase, gone.was_lost) == (WorkerPhase.EXITED, True)
    assert gone.message == "the machine other:1 was lost: no platform has run there for 60 s."
    await site.launcher.stop("w", handle, grace_s=0)
    assert await site.launcher.known() == {}
    site.presence.update(["other:1"])
    assert await site.launcher.known() == {"w": handle}, "the reconciler stops what it has replaced"
    await site.launcher.stop("w", handle, grace_s=0)
    await seen_as(site.launcher, "w", handle, WorkerPhase.EXITED)


async def test_a_worker_that_does_not_answer_is_lost_only_some_time_after_its_machine(
    site: MachinesSite, clock: Clock
) -> None:
    handle = await site.healthy("w")
    (site.folder("w") / "healthy").unlink()
    site.presence.update([])
    with pytest.raises(Unavailable, match="has no live member"):
        await site.launcher.poll("w", handle)
    clock.now_s = LOST_S
    assert (await site.launcher.poll("w", handle)).was_lost


async def test_a_silent_machine_is_left_out_and_asked_again_if_it_may_have_started_a_worker(
    site: MachinesSite, tmp_path: Path, clock: Clock
) -> None:
    handle = await site.healthy("w")
    site.answers.clear()
    assert await site.launcher.known() == {}
    assert (await site.launcher.poll("w", handle)).phase is WorkerPhase.READY
    (site.folder("w") / "healthy").unlink()
    with pytest.raises(Unavailable):  # one of two is no majority
        await site.launcher.poll("w", handle)
    second = await site.launcher.start(spec("w"))
    assert machine_of(second) == "own:1"
    site.answers.add("other:1")
    assert await site.launcher.known() == {"w": second}, "it is not asked again at once"
    clock.now_s = SILENT_S
    assert await site.launcher.known() == {"w": handle, "w@own:1": second}
    await site.launcher.stop("w@own:1", second, grace_s=0)
    await seen_as(site.launcher, "w@own:1", second, WorkerPhase.EXITED)
    await site.launcher.forget("w@own:1")
    assert not (tmp_path / "own" / "workers" / "w").exists()
    assert site.folder("w").exists()


async def test_a_worker_that_does_not_answer_is_unhealthy_if_most_machines_do(tmp_path: Path, clock: Clock) -> None:
    own, presence = local_site(tmp_path, HostResources(num_cores=1)), Presence("own:1", max_gap_s=1, clock=clock)
    presence.update(["b:1", "c:1"])
    room = {"num_cores": 1, "num_free_cores": 1, "memory_bytes": 1}
    answering = {"c:1"}

    async def ask(machine: str, _question: str, argument: object, **_: float) -> object:
        if machine not in answering:
            raise Unavailable("no answer in time")
        assert argument == ["room", {}]
        return {"result": room}

    launcher = MachinesLauncher(machine(own.launcher, "own:1", MachineValues(folder=tmp_path)), presence, ask, clock)
    handle = Handle(launcher=launcher.name, url="http://127.0.0.1:9", facts={"machine": "b:1"})
    assert (await launcher.poll("w", handle)).phase is WorkerPhase.UNHEALTHY
    answering.clear()
    for clock.now_s in (100.0, 104.0):
        with pytest.raises(Unavailable, match="no answer in time"):
            await launcher.poll("w", handle)
        assert not presence.take_isolation()


async def test_a_machine_that_falls_silent_during_a_start_is_asked_first_the_next_time(
    tmp_path: Path, clock: Clock
) -> None:
    own, presence = local_site(tmp_path), Presence("own:1", max_gap_s=1, clock=clock)
    presence.update(["b:1", "c:1"])
    room = {"num_cores": 1, "num_free_cores": 99, "memory_bytes": 1 << 40}
    asked: list[str] = []

    async def ask(machine: str, _question: str, argument: object, **_: float) -> object:
        assert isinstance(argument, list)
        if argument[0] == "room":
            return {"result": {**room, "num_free_cores": {"b:1": 99, "c:1": 98}[machine]}}
        asked.append(machine)
        if machine == "b:1" and len(asked) < 3:
            return {"error": "pending", "message": "The GPUs are in use."}
        raise Unavailable("no answer in time")

    launcher = MachinesLauncher(machine(own.launcher, "own:1", MachineValues(folder=tmp_path)), presence, ask, clock)
    presence.live -= {"own:1"}
    for clock.now_s, reason in ((0.0, "no answer in time"), (0.1, "has not answered"), (SILENT_S, "no answer in time")):
        with pytest.raises(StartPending, match=reason):
            await launcher.start(WorkerSpec(name="w"))
    assert asked == ["b:1", "c:1", "c:1"]
    presence.live = frozenset()
    with pytest.raises(StartPending, match="No machine of the platform answers"):
        await launcher.start(WorkerSpec(name="w"))


def test_after_a_pause_of_its_own_heartbeats_the_time_of_the_others_begins_again(clock: Clock) -> None:
    presence = Presence("a", max_gap_s=2.0, clock=clock)
    presence.update(["a", "b"])
    presence.update(["a"])
    clock.now_s = 1.0
    presence.update(["a"])
    assert presence.absent_s("b") == 1.0
    clock.now_s = 4.0
    presence.update(["a"])
    assert presence.absent_s("b") == 0.0, "the database was away: none of them had a heartbeat"
    assert presence.absent_s("never seen") == 0.0
    clock.now_s = 5.0
    assert (presence.absent_s("b"), presence.absent_s("never seen")) == (1.0, 1.0)
    presence.update(["b"])
    assert presence.live == {"a", "b"}


def test_a_machine_is_isolated_if_most_others_do_not_answer_for_a_while(clock: Clock) -> None:
    presence = Presence("a", max_gap_s=2.0, clock=clock)
    presence.update(["b", "c"])
    seen = []
    for clock.now_s, is_isolated in (
        (50, True),
        (54, True),
        (60, True),
        (61, True),
        (62, False),
        (66, True),
        (80, True),
    ):
        presence.note_isolation(is_isolated=is_isolated)
        seen.append(presence.take_isolation())
    assert seen == [False, False, True, False, False, False, False]
    presence.update(["b"])
    for clock.now_s in (100, 106, 112):
        presence.note_isolation(is_isolated=True)
    assert not presence.take_isolation(), "of two machines none is a majority"


def test_each_machine_fills_in_its_own_values() -> None:
    values = MachineValues(folder=Path("/data"), environment={"URL": "http://me"})
    environment = {"URL": OF_MACHINE, "CA": OF_MACHINE, "DIR": f"{OF_MACHINE}/prefixes/1", "MINE": "URL"}
    container = WorkerSpec(name="c", environment=environment)
    here = localized(WorkerSpec(name="w", environment=environment, containers=(container,)), values)
    assert here.environment == {"URL": "http://me", "DIR": "/data/prefixes/1", "MINE": "URL"}
    assert here.containers[0].environment == here.environment
