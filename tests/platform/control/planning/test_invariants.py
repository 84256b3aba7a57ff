"""Invariants of an endpoint under random events."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.workload import TRANSIENT, State
from headrace.platform.control.planning.rollout import rollout_bound_s
from tests.platform.control.planning.world import GOOD, Behaviour, World, config

SIZES = st.fixed_dictionaries(
    {"Type": st.sampled_from(["CAPACITY_PERCENT", "INSTANCE_COUNT"]), "Value": st.sampled_from([1, 2, 10, 25, 33, 50])}
)
WAITS = st.sampled_from([0, 5, 90])


@st.composite
def deployments(draw: st.DrawFn) -> dict[str, Any]:
    """Any `DeploymentConfig`."""
    kind = draw(st.sampled_from(["NONE", "ALL_AT_ONCE", "CANARY", "LINEAR", "ROLLING"]))
    if kind == "NONE":
        return {}
    if kind == "ROLLING":
        return {"RollingUpdatePolicy": {"MaximumBatchSize": draw(SIZES), "WaitIntervalInSeconds": draw(WAITS)}}
    routing: dict[str, Any] = {"Type": kind, "WaitIntervalInSeconds": draw(WAITS)}
    sizes = {"CANARY": "CanarySize", "LINEAR": "LinearStepSize"}
    if kind in sizes:
        routing[sizes[kind]] = draw(SIZES)
    policy = {"TrafficRoutingConfiguration": routing, "TerminationWaitInSeconds": draw(WAITS)}
    if draw(st.booleans()):
        policy["MaximumExecutionTimeoutInSeconds"] = 600
    return {"BlueGreenUpdatePolicy": policy}


COUNTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 4), min_size=1)
BEHAVIOURS = st.builds(
    Behaviour,
    fetch_s=st.sampled_from([0.0, 2.0, 5000.0]),
    ready_s=st.sampled_from([0.0, 3.0, 100.0, None]),
    crash_s=st.sampled_from([None, None, 0.0, 2.0, 30.0]),
    message=st.sampled_from(["", "broken"]),
    stop_s=st.sampled_from([0.0, 5.0, 1000.0]),
)


class Endpoint(RuleBasedStateMachine):
    """Requests arrive, workers misbehave, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.names = 0
        self.is_disturbed = False
        """Workers of the version that serves were harmed: it may be out for a while."""

    @initialize(counts=COUNTS, behaviour=st.one_of(st.just(GOOD), BEHAVIOURS))
    def create(self, counts: dict[str, int], behaviour: Behaviour) -> None:
        self.world.create(config("c", **counts), behaviour)

    @property
    def is_settled(self) -> bool:
        alive = self.world.record is not None
        return alive and self.world.state in (State.IN_SERVICE, State.UPDATE_ROLLBACK_FAILED)

    @rule(seconds=st.sampled_from([0.0, 0.2, 1.0, 5.0, 40.0, 700.0]), passes=st.integers(1, 10))
    def time(self, seconds: float, passes: int) -> None:
        for _ in range(passes):
            self.world.step(seconds)
            self.check()

    @precondition(lambda self: self.is_settled)
    @rule(counts=COUNTS, behaviour=st.one_of(st.just(GOOD), BEHAVIOURS), deployment=deployments())
    def update(self, counts: dict[str, int], behaviour: Behaviour, deployment: dict[str, Any]) -> None:
        self.names += 1
        self.world.update(config(f"c{self.names}", **counts), behaviour, deployment)

    @precondition(lambda self: self.is_settled)
    @rule(data=st.data(), weight=st.sampled_from([0.0, 1.0, 2.5]), count=st.integers(0, 5))
    def scale(self, data: st.DataObject, weight: float, count: int) -> None:
        world = self.world
        assert world.stable is not None
        names = sorted(world.record.status.revisions[world.stable].desired)
        self.is_disturbed = self.is_disturbed or count == 0
        world.scale(**{data.draw(st.sampled_from(names)): (weight, count)})

    @precondition(lambda self: self.world.record is not None and self.world.wanted())
    @rule(data=st.data(), message=st.sampled_from(["", "boom"]), is_hung=st.booleans())
    def harm(self, data: st.DataObject, message: str, is_hung: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.world.wanted(), key=lambda worker: worker.name)))
        self.is_disturbed = self.is_disturbed or worker.revision == self.world.stable
        if is_hung:
            self.world.show(worker.name, WorkerPhase.UNHEALTHY)
        else:
            self.world.crash(worker.name, message)

    @rule(is_lost=st.booleans())
    def lose_starts(self, is_lost: bool) -> None:
        self.world.loses_starts = is_lost

    @precondition(lambda self: self.world.record is not None)
    @rule()
    def delete(self) -> None:
        self.world.delete()

    @invariant()
    def route_is_sound(self) -> None:
        """Shares add up to 1, and traffic goes to replicas that serve, if there are any."""
        if not self.world.variants:
            return
        for variant in self.world.variants:
            assert variant.weight >= 0
            assert all(0 <= fleet.share <= 1 for fleet in variant.fleets)
            assert sum(fleet.share for fleet in variant.fleets) == pytest.approx(1)
            if any(fleet.replicas for fleet in variant.fleets):
                assert sum(fleet.share for fleet in variant.fleets if fleet.replicas) == pytest.approx(1)

    def check(self) -> None:
        """After each pass."""
        world = self.world
        if world.record is None or world.plan is None or world.plan.deployment is None:
            return
        self.check_deadline()
        self.check_service()
        needed = sum(revision.num_workers for revision in world.record.status.revisions.values())
        assert len(world.wanted()) <= needed

    def check_service(self) -> None:
        """An endpoint that was in service answers, unless the revision that serves is harmed."""
        world = self.world
        if world.stable is not None and world.behaviours[world.stable].crash_s is not None:
            self.is_disturbed = True
        if world.stable is None or self.is_disturbed:
            return
        assert world.variants
        for variant in world.variants:
            assert variant.weight == 0 or any(fleet.share > 0 and fleet.replicas for fleet in variant.fleets)

    def check_deadline(self) -> None:
        world = self.world
        progress = world.record.status.progress
        assert progress is not None
        if progress.state not in TRANSIENT:
            return
        revisions = world.record.status.revisions
        bound_s = max(2 * revision.startup_bound_s for revision in revisions.values()) + world.reconciler.slack_s
        if progress.state is State.UPDATING and progress.target is not None:
            target = revisions[progress.target]
            bound_s = rollout_bound_s(target, world.reconciler) + target.rollout.termination_wait_s
        assert world.now_s - progress.since_s <= bound_s

    def teardown(self) -> None:
        """Everything ends with nothing left."""
        if self.world.record is None:
            return
        self.world.delete()
        self.world.settle(self.world.reconciler.stop_bound_s + 10, pause_s=1.0)
        assert self.world.record is None
        assert self.world.workers == {}


Endpoint.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestEndpoint = Endpoint.TestCase
