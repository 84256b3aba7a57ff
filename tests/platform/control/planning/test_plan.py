"""An endpoint from its creation to its deletion, pass by pass."""

from itertools import pairwise

import pytest

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.workload import State
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.worker_actions import restart_at_s
from tests.platform.control.planning.world import BROKEN, DUMB, GOOD, Behaviour, World, config, pass_context, served


def test_an_endpoint_is_creating_before_the_first_pass() -> None:
    world = World()
    world.create(config())
    assert world.state is State.CREATING


def test_a_good_model_comes_into_service_with_all_its_workers() -> None:
    world = World()
    world.create(config(a=2, b=1))
    world.step()
    assert world.state is State.CREATING
    assert all(not fleet.replicas for variant in world.variants for fleet in variant.fleets)
    world.settle(5)
    assert world.state is State.IN_SERVICE
    assert world.variants[0].fleets[0].share == 1
    assert [len(variant.fleets[0].replicas) for variant in world.variants] == [2, 1]


def test_a_host_of_components_is_in_service_at_once_and_has_no_workers() -> None:
    world = World()
    hosts = config()
    del hosts["ProductionVariants"][0]["ModelName"]
    world.create(hosts)
    world.step()
    assert world.state is State.IN_SERVICE
    assert world.workers == {}
    assert world.variants[0].fleets == ()


def test_a_model_that_says_why_it_cannot_be_loaded_fails_the_endpoint_at_once() -> None:
    world = World()
    world.create(config(a=2), BROKEN)
    world.settle(4)
    assert world.state is State.FAILED
    assert world.reason == "Crashed. The model is broken."
    assert world.num_made == 2
    world.settle(60)
    assert world.num_made == 2
    assert world.wanted() == []


def test_a_worker_that_dies_in_silence_is_tried_once_more() -> None:
    world = World()
    world.create(config(), Behaviour(ready_s=None, crash_s=2.0))
    world.settle(30)
    assert world.state is State.FAILED
    assert world.num_made == 2


def test_a_model_that_never_answers_fails_at_its_time_limit() -> None:
    world = World()
    slow = config()
    slow["ProductionVariants"][0]["ContainerStartupHealthCheckTimeoutInSeconds"] = 60
    world.create(slow, DUMB)
    world.settle(59)
    assert world.state is State.CREATING
    world.settle(4)
    assert world.state is State.FAILED
    assert "60 s" in world.reason


def test_a_download_that_takes_too_long_fails() -> None:
    world = World()
    slow = config()
    slow["ProductionVariants"][0]["ModelDataDownloadTimeoutInSeconds"] = 60
    world.create(slow, Behaviour(fetch_s=10_000, ready_s=None))
    world.settle(100)
    assert world.state is State.FAILED
    assert "model data" in world.reason


def test_a_crashed_worker_is_replaced_with_a_growing_delay() -> None:
    world = served()
    world.behaviours[1] = Behaviour(crash_s=3.5, message="again")
    world.crash(world.wanted()[0].name)
    starts: list[float] = []
    for _ in range(1000):
        made = world.num_made
        world.step(0.25)
        if world.num_made > made:
            starts.append(world.now_s)
    gaps = [round(later - earlier - 3.5) for earlier, later in pairwise(starts)]
    assert gaps[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert world.state is State.IN_SERVICE


def test_crashes_in_the_future_delay_no_replacement_because_the_clock_has_been_set_back() -> None:
    world = served(a=2)
    for name in [worker.name for worker in world.wanted()]:
        world.crash(name)
    world.step(0.25)
    views = [played.view for played in world.workers.values()]
    fleet, limits = views[0].fleet, ReconcilerConfig()
    assert restart_at_s(views, fleet, pass_context(world.now_s)) == world.now_s + limits.backoff_s
    assert restart_at_s(views, fleet, pass_context(world.now_s - 300)) == world.now_s - 300


def test_a_clock_that_is_set_back_makes_no_idle_worker_drain_longer() -> None:
    world = served(a=2)
    world.scale(a=(1.0, 1))
    world.step(0.25)
    assert any(played.view.draining_s for played in world.workers.values())
    world.now_s -= 300
    world.settle(5)
    assert len([played for played in world.workers.values() if not played.view.is_gone]) == 1


def test_a_worker_that_stops_answering_is_replaced_after_a_while() -> None:
    world = served()
    hung = world.wanted()[0].name
    world.show(hung, WorkerPhase.UNHEALTHY)
    world.step(1)
    assert world.shares() == {1: 1.0}
    assert world.variants[0].fleets[0].replicas == ()
    world.settle(40)
    assert [worker.name for worker in world.wanted()] != [hung]
    assert world.variants[0].fleets[0].replicas


def test_new_weights_hold_at_once_and_new_counts_when_they_are_there() -> None:
    world = served(a=1, b=1)
    world.scale(a=(3.0, 2))
    assert world.state is State.UPDATING
    world.step()
    assert [variant.weight for variant in world.variants] == [3.0, 1.0]
    assert world.state is State.UPDATING
    world.settle(5)
    assert world.state is State.IN_SERVICE
    assert len(world.wanted()) == 3
    world.scale(a=(1.0, 0))
    world.settle(10)
    assert [worker.variant for worker in world.wanted()] == ["b"]


def test_workers_that_cannot_be_had_leave_the_count_as_it_was() -> None:
    world = served(a=1)
    world.behaviours[1] = BROKEN
    world.scale(a=(1.0, 3))
    world.settle(10)
    assert world.state is State.IN_SERVICE
    assert world.reason == "Crashed. The model is broken."
    assert len(world.wanted()) == 1
    assert world.record.status.revisions[1].desired["a"].count == 1


def test_a_worker_that_goes_gets_no_requests_before_it_is_stopped() -> None:
    world = served(a=2)
    world.scale(a=(1.0, 1))
    world.step(0.1)
    (leaving,) = [played for played in world.workers.values() if played.view.draining_s is not None]
    assert leaving.view.name not in {replica.worker for replica in world.variants[0].fleets[0].replicas}
    world.step(0.5)
    assert leaving.view.stopping_s is None
    world.step(0.6)
    assert leaving.view.stopping_s is not None


def test_a_variant_that_wakes_may_be_waited_for_in_every_moment() -> None:
    world = served(a=1)
    world.scale(a=(1.0, 0))
    world.settle(10)
    world.scale(a=(1.0, 1))
    for _ in range(100):
        world.step(0.1)
        (variant,) = world.variants
        assert variant.standby != any(fleet.replicas for fleet in variant.fleets)
    assert not variant.standby


def test_a_crashed_worker_is_waited_for_until_it_has_crashed_too_often() -> None:
    world = served(a=1)
    world.behaviours[1] = Behaviour(crash_s=3.5, message="again")
    world.crash(world.wanted()[0].name)
    seen: list[tuple[int, bool]] = []
    for _ in range(400):
        world.step(0.25)
        (variant,) = world.variants
        if not any(fleet.replicas for fleet in variant.fleets):
            seen.append((world.num_made - 1, variant.standby))
    assert all(standby for num_restarts, standby in seen if num_restarts < 5), "delays of 1, 2, 4 and 8 s"
    assert not all(standby for num_restarts, standby in seen if num_restarts >= 5), "16 s and more"


def test_a_worker_that_goes_is_waited_for_while_requests_run_on_it() -> None:
    world = served(a=2)
    for name in list(world.workers):
        world.busy[name] = 1
    world.scale(a=(1.0, 1))
    world.step(0.1)
    (leaving,) = [played for played in world.workers.values() if played.view.draining_s is not None]
    world.settle(60)
    assert leaving.view.stopping_s is None
    world.busy.clear()
    world.step(0.1)
    assert leaving.view.stopping_s is not None


def test_a_worker_that_goes_is_not_waited_for_longer_than_a_stream_may_take() -> None:
    world = served(a=1)
    (name,) = world.workers
    world.busy[name] = 1
    world.scale(a=(1.0, 0))
    world.settle(ReconcilerConfig().max_drain_s + 5)
    assert not world.workers


def test_an_endpoint_that_is_deleted_does_not_wait_for_its_requests() -> None:
    world = served(a=1)
    (name,) = world.workers
    world.busy[name] = 1
    world.delete()
    world.settle(10)
    assert world.record is None


@pytest.mark.parametrize("seconds", [0.0, 2.0, 10.0])
def test_an_endpoint_can_be_deleted_in_every_state(seconds: float) -> None:
    world = World()
    world.create(config(a=2), GOOD)
    world.settle(seconds)
    world.delete()
    assert world.state is State.DELETING
    world.step(0.1)
    assert world.variants == ()
    world.settle(10)
    assert world.record is None
    assert world.workers == {}


def test_a_failed_endpoint_can_be_deleted() -> None:
    world = World()
    world.create(config(), BROKEN)
    world.settle(10)
    world.delete()
    world.settle(10)
    assert world.record is None


def test_a_worker_that_will_not_die_does_not_keep_its_endpoint() -> None:
    world = World()
    world.create(config(), Behaviour(is_immortal=True))
    world.settle(5)
    world.delete()
    world.settle(60)
    assert world.state is State.DELETING
    world.settle(60)
    assert world.record is None


def test_time_without_a_reconciler_counts_for_no_deadline() -> None:
    world = World()
    world.create(config(), Behaviour(ready_s=200_010.0, fetch_s=5.0))
    world.settle(10)
    world.now_s += 200_000
    world.reconciler = ReconcilerConfig(awake_since_s=world.now_s)
    world.settle(20)
    assert world.state is State.IN_SERVICE


def test_a_worker_whose_start_was_interrupted_is_started() -> None:
    world = World(loses_starts=True)
    world.create(config())
    world.step()
    assert [played.view.phase for played in world.workers.values()] == [None]
    world.loses_starts = False
    world.settle(5)
    assert world.state is State.IN_SERVICE
    assert world.num_made == 1


def test_logs_of_failed_workers_are_kept_but_not_without_end() -> None:
    world = served()
    world.behaviours[1] = Behaviour(crash_s=3.5)
    world.crash(world.wanted()[0].name)
    world.settle(1500, pause_s=2.0)
    dead = [played for played in world.workers.values() if played.view.is_gone]
    assert 3 <= len(dead) <= 9
