"""The plan of an endpoint together with its components."""

from dataclasses import replace
from typing import Any

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.worker import WORKER, CopySpec, ReplicaSpec, ReplicaStatus, WorkerRecord
from headrace.platform.control.model.workload import State
from headrace.platform.control.planning.endpoint import EndpointPlan, plan_endpoint, view_endpoint
from headrace.platform.control.planning.worker_actions import RemoveRecord, Start
from headrace.platform.state.records import Record, Unreadable
from tests.platform.control.planning.host_world import TYPE, HostWorld, component_config, managed
from tests.platform.control.planning.world import World, config, pass_context, served

ENDPOINT_CONFIG = {
    "EndpointConfigName": "host",
    "ProductionVariants": [{"VariantName": "v", "InstanceType": TYPE, "InitialInstanceCount": 1, **managed(most=1)}],
}


def host() -> Any:
    """Return the record of an endpoint whose variant hosts components."""
    world = World(name="host")
    world.create(ENDPOINT_CONFIG)
    world.settle(5)
    return world.record


def component(count: int = 1, gpus: float = 1) -> Any:
    """Return the record of a component that was just created."""
    world = World(name="c", kind=INFERENCE_COMPONENT)
    world.create(component_config(gpus, count=count))
    return world.record


def copy_of(component_uid: str) -> WorkerRecord:
    """Return the record of a copy that has not been started."""
    requirements = {"NumberOfAcceleratorDevicesRequired": 4, "MinMemoryRequiredInMb": 1024}
    spec = ReplicaSpec(
        endpoint="host",
        endpoint_uid="uid-host",
        variant="v",
        revision=1,
        log_group="g",
        log_stream="s",
        copy=CopySpec(component="c", component_uid=component_uid, instance="i1", requirements=requirements),
    )
    return Record(
        kind=WORKER,
        name="w1",
        uid="uid-w1",
        revision=1,
        spec=spec,
        status=ReplicaStatus(),
        created_s=1000.0,
        modified_s=1000.0,
    )


def unreadable(record: Any) -> Unreadable:
    """Return the same record as one that cannot be decoded."""
    return Unreadable(
        kind=record.kind,
        name=record.name,
        uid=record.uid,
        revision=record.revision,
        created_s=record.created_s,
        modified_s=record.modified_s,
        reason="spec: expected object",
    )


def plan(
    record: Any, components: Any = (), workers: Any = None, *, alarms: Any = (), now_s: float = 1010.0
) -> EndpointPlan:
    """Plan once."""
    view = view_endpoint(record, components, workers or {}, alarms=alarms, loads={})
    return plan_endpoint(view, pass_context(now_s))


def test_a_new_component_gets_a_copy_on_an_instance_and_a_route_below_that_of_its_endpoint() -> None:
    planned = plan(host(), [component()])
    (instance,) = planned.instances["v"]
    assert planned.components["c"].actions == (Start(fleet=("v", 1), instance=instance.id),)
    assert planned.route is not None
    assert [route.name for route in planned.route.components] == ["c"]
    assert planned.route.endpoint_arn.endswith("endpoint/host")


def test_the_record_of_an_endpoint_is_removed_after_its_components_and_their_copies() -> None:
    deleted = replace(host(), deleting_s=1005.0)
    orphan = copy_of("uid-gone")
    assert plan(deleted, [component()]).own.actions == ()
    assert plan(deleted, [], {"uid-gone": [orphan]}).own.actions == ()
    assert plan(deleted).own.actions == (RemoveRecord(),)


def test_components_of_an_endpoint_that_is_deleted_are_deleted_with_it() -> None:
    planned = plan(replace(host(), deleting_s=1005.0), [component()])
    assert planned.components["c"].deployment is None
    assert planned.components["c"].actions == (RemoveRecord(),)
    assert planned.route is None


def test_an_unreadable_endpoint_that_is_deleted_is_removed_with_its_components() -> None:
    deleted = replace(unreadable(host()), deleting_s=1005.0)
    planned = plan(deleted, [component()])
    assert (planned.own.deployment, planned.route, planned.own.actions) == (None, None, ())
    assert planned.components["c"].actions == (RemoveRecord(),)


def test_copies_of_an_unreadable_component_keep_their_resources() -> None:
    record = host()
    (instance,) = plan(record).instances["v"]
    record = replace(record, status=_with_instance(record.status, instance))
    other = component(gpus=1)
    broken = replace(unreadable(component()), name="broken", uid="uid-broken")
    taken = copy_of("uid-broken")
    planned = plan(record, [broken, other], {"uid-broken": [taken]})
    assert list(planned.components) == ["c"]
    assert planned.components["c"].actions == ()
    assert planned.components["c"].deployment is not None
    assert "not enough hardware resources" in planned.components["c"].deployment.progress.failure_reason
    ended = replace(taken, status=ReplicaStatus(phase=WorkerPhase.EXITED))
    started = plan(record, [broken, other], {"uid-broken": [ended]}).components["c"].actions
    assert started == (Start(fleet=("v", 1), instance="i1"),)


def test_asynchronous_answers_go_to_the_bucket_of_the_revision_that_serves() -> None:
    world = World()
    outputs = {name: {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": f"s3://{name}"}}} for name in "ab"}
    world.create({**config(), **outputs["a"]})
    world.settle(10)
    world.update({**config("c2"), **outputs["b"]})
    world.step()
    route = plan(world.record, now_s=world.now_s).route
    assert route is not None
    assert route.async_output is not None
    assert route.async_output.output_path == "s3://a"


def test_an_alarm_of_the_revision_that_is_deployed_rolls_it_back() -> None:
    world = served(a=1)
    alarms = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]}}
    policy = {
        "BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 60}}
    }
    world.update(config("c2", a=1), deployment={**alarms, **policy})
    world.settle(10)
    workers = {"": []}
    watched = view_endpoint(world.record, [], workers, alarms=["errors", "other"], loads={})
    assert watched.alarm == "Alarm errors of AutoRollbackConfiguration is in ALARM."
    assert view_endpoint(world.record, [], workers, alarms=["other"], loads={}).alarm == ""


def test_an_adapter_waits_for_the_copies_of_its_base_whose_name_has_no_case() -> None:
    world = World(name="a", kind=INFERENCE_COMPONENT)
    specification = {"BaseInferenceComponentName": "C", "Container": {"ArtifactUrl": "s3://b/a"}}
    world.create({**component_config(), "specification": specification, "copies": 0})
    adapter = plan(host(), [component(), world.record]).components["a"].deployment
    assert adapter is not None
    assert adapter.progress.state is State.CREATING
    alone = plan(host(), [world.record]).components["a"].deployment
    assert alone is not None
    assert alone.progress.state is State.FAILED


def test_a_component_is_routed_by_the_strategy_of_its_variant() -> None:
    world = World(name="host")
    (variant,) = ENDPOINT_CONFIG["ProductionVariants"]
    routing = {"RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}}
    world.create({**ENDPOINT_CONFIG, "ProductionVariants": [{**variant, **routing}]})
    world.settle(5)
    planned = plan(world.record, [component()])
    assert planned.route is not None
    assert [route.route.strategy for route in planned.route.components] == ["LEAST_OUTSTANDING_REQUESTS"]


def full(copies: int = 4) -> HostWorld:
    """Return an endpoint with one instance, which has room for four copies of its component `c`."""
    world = HostWorld(variant=managed(most=1))
    world.add("c", copies)
    world.settle(10)
    return world


def test_a_copy_waits_for_the_room_that_another_component_leaves() -> None:
    world = full()
    world.scale("c", 3)
    other = world.add("d")
    world.step(0.5)
    assert other.state is State.CREATING
    world.settle(20)
    assert (other.state, world.serving("c"), world.serving("d")) == (State.IN_SERVICE, 3, 1)


def test_copies_that_have_room_start_and_the_others_wait() -> None:
    world = full(1)
    world.scale("c", 6)
    world.step(0.5)
    assert world.components["c"].num_made == 4, "in the pass that finds that two have no room"
    world.settle(20)
    found = world.components["c"]
    assert (found.state, world.serving("c")) == (State.IN_SERVICE, 4)
    assert "2 of 6 copies are missing" in found.reason


def test_an_update_without_room_says_that_it_needs_spare_room_and_a_creation_does_not() -> None:
    world = full()
    other = world.add("d")
    world.step(0.5)
    assert other.state is State.FAILED
    assert "MaximumBatchSize" not in other.reason
    world.components["c"].update(component_config(count=4))
    world.settle(5)
    assert "needs room for a batch of new copies (MaximumBatchSize)" in world.components["c"].reason


def _with_instance(status: Any, instance: Any) -> Any:
    return type(status)(
        progress=status.progress,
        revisions=status.revisions,
        ready=status.ready,
        notices=status.notices,
        instances={"v": [type(instance)(id="i1", changed_s=instance.changed_s)]},
    )
