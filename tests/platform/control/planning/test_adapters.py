"""The plan of an adapter component, from what the copies of its base report."""

from typing import Any

import pytest

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRevision, ComponentSpec
from headrace.platform.control.model.worker import AdapterState, WorkerView
from headrace.platform.control.model.workload import Progress, State
from headrace.platform.control.planning.adapters import Base, plan_adapter
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.plan import Plan
from headrace.platform.control.planning.worker_actions import LoadAdapter, RemoveRecord, UnloadAdapter
from headrace.platform.state.records import Record
from headrace.platform.state.routes import AdapterRoute, Fleet, Replica, VariantRoute
from tests.platform.control.planning.world import pass_context

NOW_S = 1000.0
ONE, TWO = "uid-a/1", "uid-a/2"
"""Versions of the adapter."""


def revision(number: int) -> ComponentRevision:
    container = {"ArtifactUrl": f"s3://b/{number}"}
    specification = {
        "BaseInferenceComponentName": "base",
        "Container": container,
        "StartupParameters": {
            "ModelDataDownloadTimeoutInSeconds": 60,
            "ContainerStartupHealthCheckTimeoutInSeconds": 40,
        },
    }
    return ComponentRevision(
        number=number, variant="v", instance_type="t", specification=specification, model={}, copies=0
    )


def adapter(number: int = 1, state: State | None = None, *, deleting_s: float | None = None, **members: Any) -> Any:
    """Return the record of an adapter of which revision `number` was requested; `state` was observed."""
    progress = None
    if state is not None:
        progress = Progress(**{"observed_generation": number, "state": state, "since_s": NOW_S, **members})
    return Record(
        kind=INFERENCE_COMPONENT,
        name="a",
        uid="uid-a",
        revision=1,
        spec=ComponentSpec(endpoint="e", endpoint_uid="u", generation=number, revision=revision(number)),
        status=INFERENCE_COMPONENT.status(
            progress=progress, revisions={index: revision(index) for index in range(1, number + 1)}
        ),
        created_s=0.0,
        modified_s=0.0,
        deleting_s=deleting_s,
    )


CREATING = adapter(1, State.CREATING, target=1)
SERVING = adapter(1, State.IN_SERVICE, stable=1)
UPDATING = adapter(2, State.UPDATING, stable=1, target=2)
FAILED = adapter(1, State.FAILED, target=1)


def copy(name: str, loaded: str = "", *, phase: WorkerPhase = WorkerPhase.READY, **failure: Any) -> WorkerView:
    states = {"a": AdapterState(loaded=loaded, **failure)}
    return WorkerView(
        name=name, variant="v", revision=1, created_s=0.0, phase=phase, url=f"http://{name}", token="t", adapters=states
    )


def base(*workers: WorkerView, state: State = State.IN_SERVICE, num_copies: int = 1, standby: bool = False) -> Base:
    replicas = tuple(
        Replica(worker=worker.name, url=worker.url, token=worker.token) for worker in workers if worker.can_serve
    )
    route = VariantRoute(
        name="v", weight=1.0, fleets=(Fleet(generation=1, share=1.0, replicas=replicas),), standby=standby
    )
    return Base(name="base", state=state, route=route, workers=workers, num_copies=num_copies)


def planned(record: Any, on: Base | None, now_s: float = NOW_S) -> Plan:
    return plan_adapter(record, on, pass_context(now_s))


def state_of(plan: Plan) -> tuple[State, int | None, str]:
    """Return the state, the serving revision and the reason of a failure."""
    assert plan.deployment is not None
    progress = plan.deployment.progress
    return progress.state, progress.stable, progress.failure_reason


def loaded_by(plan: Plan) -> list[tuple[str, str]]:
    return [(action.worker, action.version) for action in plan.actions if isinstance(action, LoadAdapter)]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (base(copy("x", ONE), copy("y", ONE)), State.IN_SERVICE),
        (base(copy("x", ONE), copy("y")), State.CREATING),
        (base(copy("x", "uid-of-an-earlier-a/1")), State.CREATING),
        (base(copy("x", ONE), copy("y", phase=WorkerPhase.STARTING)), State.IN_SERVICE),
        (base(), State.CREATING),
        # A base that is scaled to zero has no copy that could load it; one that is not yet there may get some.
        (base(num_copies=0), State.IN_SERVICE),
        (base(num_copies=0, state=State.CREATING), State.CREATING),
        (base(copy("x"), num_copies=0), State.CREATING),
    ],
)
def test_an_adapter_is_in_service_once_every_serving_copy_has_loaded_it(on: Base, expected: State) -> None:
    plan = planned(CREATING, on)
    assert state_of(plan) == (expected, 1 if expected is State.IN_SERVICE else None, "")
    assert plan.is_stable == (expected is State.IN_SERVICE)


def test_copies_that_have_not_loaded_it_are_told_to() -> None:
    (action,) = planned(CREATING, base(copy("x", ONE), copy("y"), copy("z", phase=WorkerPhase.STARTING))).actions
    assert action == LoadAdapter(
        worker="y", url="http://y", token="t", adapter="a", version=ONE, source="s3://b/1", timeout_s=60
    )
    assert loaded_by(planned(UPDATING, base(copy("x", TWO), copy("y", ONE)))) == [("y", TWO)]
    assert loaded_by(planned(SERVING, base(copy("x", ONE), copy("y")))) == [("y", ONE)]
    assert planned(SERVING, None).actions == ()


@pytest.mark.parametrize(
    ("failed", "age_s", "is_retried"), [(ONE, 0, False), (ONE, 9.5, False), (ONE, 10, True), (TWO, 0, True)]
)
def test_a_failed_load_is_tried_again_after_ten_seconds_and_another_version_at_once(
    failed: str, age_s: float, *, is_retried: bool
) -> None:
    on = base(copy("x", failed=failed, failed_s=NOW_S - age_s, failure="Busy."))
    assert loaded_by(planned(CREATING, on)) == ([("x", ONE)] if is_retried else [])
    loaded = base(copy("x", ONE, failed=failed, failed_s=NOW_S - age_s, failure="Busy."))
    assert loaded_by(planned(CREATING, loaded)) == []


@pytest.mark.parametrize(
    ("on", "waited_s", "reason"),
    [
        (None, 0, "Its base inference component does not exist any more."),
        (base(state=State.DELETING), 0, "Its base inference component does not exist any more."),
        (base(state=State.FAILED), 0, "Its base inference component base has failed."),
        (base(copy("x", failed=ONE, failure="Broken.", is_permanent=True)), 0, "Broken."),
        (base(copy("x", failed=ONE, failure="Busy.")), 100, ""),
        (base(copy("x", failed=TWO, failure="Broken.", is_permanent=True)), 100, ""),
        (base(copy("x", failed=ONE, failure="Busy.")), 101, "have not loaded it within 100 s. Busy."),
        (base(), 101, "within 100 s. No copy of its base base has served meanwhile."),
    ],
)
def test_an_adapter_that_cannot_be_loaded_has_failed(on: Base | None, waited_s: float, reason: str) -> None:
    plan = planned(CREATING, on, NOW_S + waited_s)
    state, stable, found = state_of(plan)
    assert (state, stable) == (State.FAILED if reason else State.CREATING, None)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)
    assert plan.is_stable == bool(reason)


def test_an_update_that_cannot_be_loaded_leaves_the_version_that_serves() -> None:
    broken = base(copy("x", ONE, failed=TWO, failure="Broken.", is_permanent=True))
    plan = planned(UPDATING, broken)
    assert state_of(plan) == (State.IN_SERVICE, 1, "Broken.")
    assert plan.deployment is not None
    assert (plan.deployment.progress.target, list(plan.deployment.revisions)) == (None, [1])
    assert state_of(planned(UPDATING, base(copy("x", TWO)))) == (State.IN_SERVICE, 2, "")


def test_another_number_of_copies_is_no_update_of_an_adapter() -> None:
    scaling = adapter(1, State.UPDATING, stable=1)
    assert state_of(planned(scaling, base(copy("x", ONE)))) == (State.IN_SERVICE, 1, "")


def test_a_failed_adapter_is_unloaded_and_gets_no_requests() -> None:
    plan = planned(FAILED, base(copy("x", ONE), copy("y"), copy("z", ONE, phase=WorkerPhase.STARTING)))
    assert plan.actions == (UnloadAdapter(worker="x", url="http://x", token="t", adapter="a"),)
    assert plan.is_stable
    (route,) = plan.variants
    assert route.fleets[0].replicas == ()
    assert not route.standby


@pytest.mark.parametrize(
    ("on", "replicas", "is_waited_for"),
    [
        (base(copy("x", ONE), copy("y")), ["x"], False),
        (base(copy("x")), [], True),
        (base(copy("x", ONE, phase=WorkerPhase.STARTING)), [], False),
        (base(standby=True), [], True),
        (base(copy("x", ONE), standby=True), ["x"], False),
    ],
)
def test_requests_go_to_copies_that_have_loaded_it_or_wait_for_one(
    on: Base, replicas: list[str], *, is_waited_for: bool
) -> None:
    (route,) = planned(SERVING, on).variants
    assert [replica.worker for replica in route.fleets[0].replicas] == replicas
    assert (route.standby, route.adapter) == (is_waited_for, AdapterRoute(name="a", base="base"))
    assert route.fleets[0].share == 1.0
    assert planned(SERVING, None).variants == ()


def test_a_deleted_adapter_is_unloaded_before_its_record_is_removed() -> None:
    bound_s = ReconcilerConfig().stop_bound_s
    unload = (UnloadAdapter(worker="x", url="http://x", token="t", adapter="a"),)
    on, record = base(copy("x", ONE), copy("y")), adapter(1, State.IN_SERVICE, stable=1, deleting_s=NOW_S)
    assert planned(record, on).actions == unload
    assert planned(record, on, NOW_S + bound_s).actions == unload
    for plan in (
        planned(record, on, NOW_S + bound_s + 1),
        planned(record, None),
        planned(record, base(copy("x", ONE), state=State.DELETING)),
        planned(record, base(copy("y"))),
        planned(record, base(copy("x", "uid-of-an-earlier-a/1"))),
    ):
        assert plan.actions == (RemoveRecord(),)
        assert (plan.deployment, plan.variants) == (None, ())
