"""The routes of a deployment: weights, shares, replicas, and whether requests may wait for one."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.endpoint import EndpointRevision
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import Progress, Stage, State
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.deployment import Deployment
from headrace.platform.control.planning.plan import (
    effective_shares,
    plan_deployable,
    plan_removal,
    plan_shadows,
    plan_variants,
)
from headrace.platform.control.planning.worker_actions import Forget, RemoveRecord, Stop
from headrace.platform.state.routes import VariantRoute
from tests.platform.control.planning.world import World, config, pass_context, served

CANARY = {
    "BlueGreenUpdatePolicy": {
        "TrafficRoutingConfiguration": {
            "Type": "CANARY",
            "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
            "WaitIntervalInSeconds": 60,
        }
    }
}
RECORD: Any = SimpleNamespace(spec=None)
"""The record of an endpoint: its routes depend on its deployment only."""


def revision(number: int, weights: Mapping[str, float], instance_type: str = "t") -> EndpointRevision:
    """Return a revision with these variants; `s` is a shadow variant."""
    found = config(f"c{number}", **dict.fromkeys(weights, 1))
    for variant in found["ProductionVariants"]:
        variant |= {"InitialVariantWeight": weights[variant["VariantName"]], "InstanceType": instance_type}
    found["ShadowProductionVariants"] = [each for each in found["ProductionVariants"] if each["VariantName"] == "s"]
    found["ProductionVariants"] = [each for each in found["ProductionVariants"] if each["VariantName"] != "s"]
    return EndpointRevision(number=number, config=found, models={"m": {}}, deployment=CANARY)


def worker(name: str, phase: WorkerPhase = WorkerPhase.READY) -> WorkerView:
    """Return worker `a1` of variant `a` and revision 1."""
    return WorkerView(name=name, variant=name[0], revision=int(name[1]), created_s=0.0, phase=phase, url=f"u-{name}")


def routes(
    old: Mapping[str, float], new: Mapping[str, float], stage: Stage, step: int, serving: str
) -> dict[str, VariantRoute]:
    """Return the routes of an update with these weights; `serving` names the workers that are ready."""
    workers = [worker(name) for name in serving.split()]
    found = plan_variants(RECORD, updating(old, new, stage, step), workers)
    return {route.name: route for route in found}


def updating(old: Mapping[str, float], new: Mapping[str, float], stage: Stage, step: int) -> Deployment:
    progress = Progress(
        observed_generation=2, state=State.UPDATING, since_s=0.0, stable=1, target=2, stage=stage, step=step
    )
    return Deployment(progress=progress, revisions={1: revision(1, old, "old"), 2: revision(2, new, "new")})


START, FIRST, LAST = (Stage.PROVISIONING, 0), (Stage.BAKING, 0), (Stage.TERMINATING, 1)
"""Stages in which no traffic, a tenth and all of it is on the new revision."""
ALL = "a1 a2 b1 b2"


@pytest.mark.parametrize(
    ("old", "new", "stage", "serving", "expected"),
    [
        # While the traffic is split, the weights of each revision count in proportion to their sum.
        ({"a": 1, "b": 3}, {"a": 1, "b": 1}, FIRST, ALL, {"a": 0.9 / 4 + 0.1 / 2, "b": 0.9 * 3 / 4 + 0.1 / 2}),
        ({"a": 1, "b": 3}, {"a": 5, "b": 7}, START, ALL, {"a": 1, "b": 3}),
        ({"a": 1, "b": 3}, {"a": 5, "b": 7}, LAST, ALL, {"a": 5, "b": 7}),
        ({"a": 0, "b": 0}, {"a": 0, "b": 0}, FIRST, ALL, {"a": 0.5, "b": 0.5}),
        ({"a": 0, "b": 2}, {"a": 0, "b": 2}, FIRST, ALL, {"a": 0, "b": 1}),
        # A variant of one revision has a route while that revision has traffic.
        ({"a": 1, "b": 1}, {"b": 1, "c": 1}, START, "a1 b1 b2 c2", {"a": 1, "b": 1}),
        ({"a": 1, "b": 1}, {"b": 1, "c": 1}, FIRST, "a1 b1 b2 c2", {"a": 0.45, "b": 0.5, "c": 0.05}),
        ({"a": 1, "b": 1}, {"b": 1, "c": 1}, LAST, "a1 b1 b2 c2", {"b": 1, "c": 1}),
        # The old revision has all of the traffic while no worker of the new one serves, but not the other way round.
        ({"a": 1, "b": 3}, {"a": 5, "b": 7}, LAST, "a1 b1", {"a": 1, "b": 3}),
        ({"a": 1, "b": 3}, {"a": 5, "b": 7}, LAST, "a2 b2", {"a": 5, "b": 7}),
        ({"a": 1, "b": 3}, {"a": 1, "b": 1}, FIRST, "a2 b2", {"a": 0.9 / 4 + 0.1 / 2, "b": 0.9 * 3 / 4 + 0.1 / 2}),
        # A variant without replicas gets no requests if others have some.
        ({"a": 1, "b": 3}, {"a": 1, "b": 1}, FIRST, "b1 b2", {"a": 0, "b": 0.9 * 3 / 4 + 0.1 / 2}),
        ({"a": 1, "b": 3}, {"a": 1, "b": 1}, FIRST, "", {"a": 0.9 / 4 + 0.1 / 2, "b": 0.9 * 3 / 4 + 0.1 / 2}),
    ],
)
def test_the_weights_of_variants_move_with_the_traffic(
    old: dict[str, float],
    new: dict[str, float],
    stage: tuple[Stage, int],
    serving: str,
    expected: dict[str, float],
) -> None:
    found = routes(old, new, *stage, serving)
    assert {name: route.weight for name, route in found.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weight", "stage", "serving", "expected"),
    [
        (1, START, ALL, {1: 1, 2: 0}),
        (1, FIRST, ALL, {1: 0.9, 2: 0.1}),
        (1, LAST, ALL, {1: 0, 2: 1}),
        (0, START, ALL, {1: 1, 2: 0}),
        (0, FIRST, ALL, {1: 0.9, 2: 0.1}),
        (0, LAST, ALL, {1: 0, 2: 1}),
        # A fleet that serves takes the share of one that does not; a worker of another variant does not count.
        (1, FIRST, "a1 b1 b2", {1: 1, 2: 0}),
        (1, FIRST, "a2 b1 b2", {1: 0, 2: 1}),
        (1, LAST, "a1 b2", {1: 1, 2: 0}),
        (1, START, "a2 b1", {1: 0, 2: 1}),
    ],
)
def test_the_shares_of_a_variants_fleets_move_with_the_traffic(
    weight: float, stage: tuple[Stage, int], serving: str, expected: dict[int, float]
) -> None:
    route = routes({"a": weight, "b": 1}, {"a": weight, "b": 1}, *stage, serving)["a"]
    assert {fleet.generation: fleet.share for fleet in route.fleets} == pytest.approx(expected)
    replicas = {fleet.generation: [replica.worker for replica in fleet.replicas] for fleet in route.fleets}
    assert replicas == {number: [f"a{number}"] if f"a{number}" in serving else [] for number in (1, 2)}
    assert [fleet.config for fleet in route.fleets] == ["c1", "c2"]


def test_the_share_of_a_revision_is_its_part_of_the_variants_own_traffic() -> None:
    """Variant `a` has a quarter of nine tenths of the traffic in the old revision, half of a tenth in the new one."""
    route = routes({"a": 1, "b": 3}, {"a": 1, "b": 1}, *FIRST, ALL)["a"]
    shares = {fleet.generation: fleet.share for fleet in route.fleets}
    assert shares == pytest.approx({1: 0.225 / 0.275, 2: 0.05 / 0.275})


def test_a_variant_has_the_settings_of_the_new_revision_once_all_of_its_traffic_is_there() -> None:
    both = {"a": 1.0}
    assert [routes(both, both, *stage, "a1 a2")["a"].instance_type for stage in (START, FIRST, LAST)] == [
        "old",
        "old",
        "new",
    ]
    assert routes({"b": 1}, both, *FIRST, "b1 a2")["a"].instance_type == "new"


@given(st.dictionaries(st.integers(1, 5), st.floats(0, 1), min_size=1), st.data())
def test_shares_add_up_to_one_among_the_fleets_that_serve(intended: dict[int, float], data: st.DataObject) -> None:
    able = data.draw(st.sets(st.sampled_from(sorted(intended))))
    shares = effective_shares(intended, able)
    assert set(shares) == set(intended)
    assert sum(shares.values()) == pytest.approx(1)
    counted = able or set(intended)
    assert all(share == 0 for number, share in shares.items() if number not in counted)
    total = sum(intended[number] for number in counted)
    for number in counted:
        assert shares[number] == pytest.approx(intended[number] / total if total > 1e-9 else shares[number])
    if total == 0:
        assert {shares[number] for number in counted} == {1 / len(counted)}


@pytest.mark.parametrize(
    ("old", "new", "stage", "expected"),
    [
        # Variant `s` gets a share of the requests by its weight relative to the production variant's.
        ({"a": 4, "s": 1}, {"a": 1, "s": 1}, START, {"s": (0.25, {1: 1, 2: 0})}),
        ({"a": 4, "s": 1}, {"a": 1, "s": 1}, FIRST, {"s": (0.325, {1: 0.225 / 0.325, 2: 0.1 / 0.325})}),
        ({"a": 4, "s": 1}, {"a": 1, "s": 3}, LAST, {"s": (1, {1: 0, 2: 1})}),
        ({"a": 1}, {"a": 1, "s": 1}, START, {}),
        ({"a": 1}, {"a": 1, "s": 1}, FIRST, {"s": (0.1, {2: 1})}),
        ({"a": 1, "s": 1}, {"a": 1}, FIRST, {"s": (0.9, {1: 1})}),
        ({"a": 1, "s": 1}, {"a": 1}, LAST, {}),
        ({"a": 0, "s": 1}, {"a": 0, "s": 1}, START, {"s": (0, {1: 1, 2: 0})}),
    ],
)
def test_the_shares_of_shadows_move_with_the_traffic(
    old: dict[str, float], new: dict[str, float], stage: tuple[Stage, int], expected: dict[str, Any]
) -> None:
    deployment = updating(old, new, *stage)
    workers = [worker(name) for name in ("a1", "a2", "s1", "s2")]
    assert [route.name for route in plan_variants(RECORD, deployment, workers)] == ["a"]
    found = {
        route.name: (route.weight, {fleet.generation: fleet.share for fleet in route.fleets})
        for route in plan_shadows(deployment, workers)
    }
    assert found == {
        name: (pytest.approx(weight), pytest.approx(shares)) for name, (weight, shares) in expected.items()
    }


def test_a_promoted_shadow_serves_once_its_new_workers_do() -> None:
    """Variant `s` is the shadow variant of the old revision, and the production variant of the new one."""
    workers = [worker(name) for name in ("a1", "s1", "s2")]

    def found(stage: Stage, step: int) -> list[dict[str, list[int]]]:
        old, new = revision(1, {"a": 1, "s": 1}), revision(2, {"p": 1})
        new.config["ProductionVariants"][0]["VariantName"] = "s"
        new = EndpointRevision(number=2, config=new.config, models={"m": {}}, deployment=CANARY)
        deployment = updating({"a": 1}, {"a": 1}, stage, step)
        deployment = Deployment(progress=deployment.progress, revisions={1: old, 2: new})
        both = plan_variants(RECORD, deployment, workers), plan_shadows(deployment, workers)
        return [{route.name: [fleet.generation for fleet in route.fleets] for route in routes} for routes in both]

    assert found(*START) == [{"a": [1]}, {"s": [1]}]
    assert found(*FIRST) == [{"a": [1], "s": [2]}, {"s": [1]}]
    assert found(*LAST) == [{"s": [2]}, {}]


def test_without_fleets_there_are_no_shares() -> None:
    assert effective_shares({}, set()) == {}


def in_service(state: State = State.IN_SERVICE, count: int = 1) -> Deployment:
    asked = EndpointRevision(number=1, config=config(a=count), models={"m": {}})
    return Deployment(
        progress=Progress(observed_generation=1, state=state, since_s=0.0, stable=1), revisions={1: asked}
    )


@pytest.mark.parametrize(
    ("deployment", "workers", "starting", "is_standby"),
    [
        (in_service(), [worker("a1")], [], False),
        (in_service(), [], [], False),
        (in_service(), [], ["a"], True),
        (in_service(), [], ["b"], False),
        (in_service(), [worker("a1", WorkerPhase.STARTING)], [], True),
        (in_service(), [worker("a1", WorkerPhase.EXITED)], [], False),
        (in_service(count=0), [], [], True),
        (in_service(count=0), [worker("a1")], [], False),
        (in_service(State.FAILED), [worker("a1", WorkerPhase.STARTING)], ["a"], False),
        (in_service(State.UPDATE_ROLLBACK_FAILED), [worker("a1", WorkerPhase.STARTING)], [], True),
    ],
)
def test_requests_wait_for_a_variant_that_is_scaled_to_zero_or_starts_a_worker(
    deployment: Deployment, workers: list[WorkerView], starting: list[str], *, is_standby: bool
) -> None:
    (route,) = plan_variants(RECORD, deployment, workers, starting=starting)
    assert route.standby == is_standby


def test_an_endpoint_that_does_not_serve_has_routes_without_replicas() -> None:
    for state, num_replicas in [(State.CREATING, 0), (State.FAILED, 0), (State.IN_SERVICE, 1), (State.UPDATING, 1)]:
        (route,) = plan_variants(RECORD, in_service(state), [worker("a1")])
        assert [len(fleet.replicas) for fleet in route.fleets] == [num_replicas]


def test_a_plan_is_settled_when_nothing_is_in_progress() -> None:
    world = served(a=1)
    workers = [worker("a1")]
    assert plan_deployable(world.record, workers, pass_context(world.now_s)).is_settled
    starting = [worker("a1"), worker("a1", WorkerPhase.STARTING)]
    assert not plan_deployable(world.record, starting, pass_context(world.now_s)).is_settled
    assert not plan_deployable(world.record, [], pass_context(world.now_s)).is_settled
    creating = World()
    creating.create(config(a=0))
    assert not plan_deployable(creating.record, [worker("a1")], pass_context(1000.0)).is_settled


def test_a_deletion_waits_for_its_workers_for_a_bounded_time() -> None:
    bound_s = ReconcilerConfig().stop_bound_s
    stopping = WorkerView(name="w", variant="a", revision=1, created_s=0.0, phase=WorkerPhase.READY, draining_s=0.0)
    ended = WorkerView(name="x", variant="a", revision=1, created_s=0.0, phase=WorkerPhase.EXITED, draining_s=0.0)
    waiting = plan_removal(0.0, [stopping, ended], pass_context(bound_s))
    assert [type(action) for action in waiting.actions] == [Stop, Forget]
    assert not waiting.is_settled
    draining = replace(stopping, ready_s=0.0)
    early = plan_removal(0.0, [draining], pass_context(0.5))
    assert (early.actions, early.is_settled) == ((), False)
    over = plan_removal(0.0, [stopping, ended], pass_context(bound_s + 1))
    assert over.actions == (Stop(worker="w", grace_s=0), Forget(worker="w"), Forget(worker="x"), RemoveRecord())
    done = plan_removal(0.0, [ended], pass_context(1.0))
    assert done.actions == (Forget(worker="x"), RemoveRecord())
    assert plan_removal(0.0, [], pass_context(0.0)).actions == (RemoveRecord(),)
