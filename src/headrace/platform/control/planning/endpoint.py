"""
The plan of one endpoint: its own workers, its inference components, and the instances of its variants.

Each component is planned like an endpoint; this module decides where its missing copies are placed. A copy that fits
nowhere waits for copies that are leaving; if there are none, its deployment fails, or continues without it (`rollout`).
Placing it is then retried in each pass, while all other components have the copies that they had.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as evolve

from headrace.platform.control.model.component import ComponentRecord
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord, HostInstance
from headrace.platform.control.model.names import arn_of
from headrace.platform.control.model.worker import WorkerRecord, WorkerView, view_worker
from headrace.platform.control.model.workload import Deployable, State
from headrace.platform.control.planning.adapters import Base, plan_adapter
from headrace.platform.control.planning.config import PassContext
from headrace.platform.control.planning.deployment import NO_CONDITIONS, Deployment, ExternalConditions
from headrace.platform.control.planning.instances import ComponentView, VariantInstances, variant_instances
from headrace.platform.control.planning.plan import Plan, plan_deployable, plan_removal
from headrace.platform.control.planning.pool import Placed
from headrace.platform.control.planning.worker_actions import Drain, GiveUp, RemoveRecord, Start
from headrace.platform.state.records import Record, Unreadable
from headrace.platform.state.routes import ComponentRoute, Route

_NO_SPARE_ROOM = " An update needs room for a batch of new copies (MaximumBatchSize) beside those that serve."


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """An endpoint with all of its workers and components, as the planner sees it."""

    record: EndpointRecord | Unreadable
    workers: Sequence[WorkerView]
    """Workers of its own models."""
    alarm: str
    """Reason for a rollback that an alarm demands; empty without one."""
    components: Sequence[ComponentView]
    """Readable components, oldest first."""
    unreadable: Sequence[Placed]
    """Copies of components that cannot be read: they stay where they are."""
    is_last: bool
    """True if it has neither components nor copies of any: nothing else has to be removed before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlan:
    """The plan of an endpoint with its components. In this order: publish the route, record the progress, act."""

    route: Route | None
    """None if the endpoint is being deleted: its route is removed."""
    own: Plan
    """For the endpoint's record and the workers of its own models."""
    components: Mapping[str, Plan]
    """By name."""
    instances: Mapping[str, Sequence[HostInstance]]
    """By variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlans:
    plans: Mapping[str, Plan]
    """By component."""
    routes: tuple[ComponentRoute, ...]
    instances: Mapping[str, Sequence[HostInstance]]
    """By variant."""


def view_endpoint(
    record: EndpointRecord | Unreadable,
    components: Sequence[ComponentRecord | Unreadable],
    workers: Mapping[str, Sequence[WorkerRecord]],
    *,
    alarms: Collection[str],
    loads: Mapping[str, int],
) -> EndpointView:
    """
    Return the planner's view of an endpoint.

    Args:
        record: the endpoint's record.
        components: all components on it, oldest first.
        workers: workers by the uid of their component; those of the endpoint's own models have an empty key.
        alarms: names of the alarms that are in ALARM.
        loads: requests in flight by worker.
    """
    return EndpointView(
        record=record,
        workers=view_workers(workers.get("", ()), loads),
        alarm=_alarm_reason(record, alarms) if isinstance(record, Record) else "",
        components=[
            ComponentView(
                # It is deleted with its endpoint.
                record=component
                if component.deleting_s is not None
                else replace(component, deleting_s=record.deleting_s),
                workers=view_workers(workers.get(component.uid, ()), loads),
                placed=_placed_copies(component.name, workers.get(component.uid, ())),
                alarm=_alarm_reason(component, alarms),
            )
            for component in components
            if isinstance(component, Record)
        ],
        unreadable=[
            copy
            for component in components
            if isinstance(component, Unreadable)
            for copy in _placed_copies(component.uid, workers.get(component.uid, ())).values()
        ],
        is_last=not components and not any(copies for uid, copies in workers.items() if uid),
    )


def view_workers(workers: Sequence[WorkerRecord], loads: Mapping[str, int]) -> list[WorkerView]:
    """Return the planner's views of workers, with their in-flight requests."""
    return [view_worker(worker, num_requests=loads.get(worker.name, 0)) for worker in workers]


def _placed_copies(component: str, workers: Sequence[WorkerRecord]) -> dict[str, Placed]:
    """Return the places of a component's copies that have not ended, by their names."""
    return {
        worker.name: Placed(component=component, instance=worker.spec.copy.instance, need=worker.spec.copy.need)
        for worker in workers
        if worker.spec.copy is not None and not view_worker(worker).is_gone
    }


def _alarm_reason(record: Deployable, alarms: Collection[str]) -> str:
    """Return why an update is rolled back, if one of its alarms demands it; else empty."""
    progress = record.status.progress
    number = progress.target if progress is not None else None
    revision = record.spec.revision if number is None else record.status.revisions[number]
    names = [name for name in revision.rollback_alarms if name in alarms]
    return f"Alarm {', '.join(names)} of AutoRollbackConfiguration is in ALARM." if names else ""


def plan_endpoint(view: EndpointView, context: PassContext) -> EndpointPlan:
    """Plan an endpoint with its components. An unreadable endpoint is planned only while it is being deleted."""
    record = view.record
    if isinstance(record, Unreadable):
        assert record.deleting_s is not None
        own = plan_removal(record.deleting_s, view.workers, context)
    else:
        own = plan_deployable(record, view.workers, context, conditions=ExternalConditions(alarm=view.alarm))
    host, route = own.deployment, None
    instances = record.status.instances if isinstance(record, Record) else {}
    hosted = plan_components(host, view.components, context, instances=instances, unreadable=view.unreadable)
    if host is not None and isinstance(record, Record):
        route = Route(
            endpoint=record.name,
            endpoint_arn=arn_of(context.aws_scope, ENDPOINT, record.name),
            endpoint_uid=record.uid,
            created_s=record.created_s,
            status=host.progress.state.value,
            variants=tuple(
                replace(variant, instances=len(hosted.instances.get(variant.name, ()))) for variant in own.variants
            ),
            components=hosted.routes,
            shadows=own.shadows,
            async_output=(host.stable or record.spec.revision).async_output,
            capture=(host.stable or record.spec.revision).capture,
        )
    # The endpoint's record stays until its components are removed.
    actions = tuple(action for action in own.actions if view.is_last or not isinstance(action, RemoveRecord))
    return EndpointPlan(
        route=route, own=replace(own, actions=actions), components=hosted.plans, instances=hosted.instances
    )


def plan_components(
    host: Deployment | None,
    components: Sequence[ComponentView],
    context: PassContext,
    *,
    instances: Mapping[str, Sequence[HostInstance]],
    unreadable: Sequence[Placed] = (),
) -> ComponentPlans:
    """
    Plan the components of one endpoint, oldest first.

    `host` is None while the endpoint is being deleted. A variant that is missing in `instances` has none yet; the
    copies of `unreadable` components stay where they are.
    """
    hosted = [component for component in components if not component.record.spec.revision.base]
    variants = variant_instances(host, hosted, instances, unreadable, context)
    plans = {
        component.record.name: _plan_component(component, variants.get(component.variant), context)
        for component in hosted
    }
    bases = {component.record.name.lower(): _base(component, plans[component.record.name]) for component in hosted}
    for component in components:
        if base := component.record.spec.revision.base:
            plans[component.record.name] = plan_adapter(component.record, bases.get(base.lower()), context)
    return ComponentPlans(
        plans=plans,
        routes=_component_routes(plans, variants),
        instances={name: variant.kept() for name, variant in variants.items()},
    )


def _base(component: ComponentView, plan: Plan) -> Base:
    """Return a component as the adapters on its copies see it."""
    deployment = plan.deployment
    revision = None if deployment is None else deployment.target or deployment.stable
    return Base(
        name=component.record.name,
        state=State.DELETING if deployment is None else deployment.progress.state,
        route=plan.variants[0] if plan.variants else None,
        workers=component.workers,
        num_copies=0 if revision is None else revision.num_workers,
    )


def _component_routes(
    plans: Mapping[str, Plan], variants: Mapping[str, VariantInstances]
) -> tuple[ComponentRoute, ...]:
    """Return the routes of the components, with the routing strategy of their variant."""
    routes = []
    for name, plan in sorted(plans.items()):
        if not plan.variants:
            continue
        route = plan.variants[0]
        if (variant := variants.get(route.name)) is not None:
            route = replace(route, strategy=variant.host.strategy, prefix_routing=variant.host.prefix_routing)
        routes.append(ComponentRoute(name=name, variant=route.name, route=route))
    return tuple(routes)


def _plan_component(component: ComponentView, instances: VariantInstances | None, context: PassContext) -> Plan:
    """Plan a component, and plan it again if a copy has no place."""
    workers = instances.mark_leaving(component) if instances is not None else component.workers

    def planned(conditions: ExternalConditions) -> Plan:
        return plan_deployable(component.record, workers, context, conditions=evolve(conditions, alarm=component.alarm))

    # First as if there were room for every copy, and for unplaced ones that fit now.
    plan = planned(instances.growth(component) if instances is not None else NO_CONDITIONS)
    if instances is None:
        no_start = tuple(action for action in plan.actions if not isinstance(action, Start))
        return replace(plan, actions=no_start)
    actions, no_room = instances.place_starts(component, plan)
    is_freeing = instances.is_freeing or any(isinstance(action, Drain | GiveUp) for action in plan.actions)
    # Copies that are leaving will make room: wait for it. Otherwise plan again with the copies that fit.
    if no_room and not is_freeing:
        if plan.deployment is not None and plan.deployment.stable and plan.deployment.target:
            no_room += _NO_SPARE_ROOM
        instances.discard_trial()
        plan = planned(
            ExternalConditions(no_room=no_room, num_fitting=sum(isinstance(action, Start) for action in actions))
        )
        actions, _ = instances.place_starts(component, plan)
    instances.accept_trial()
    instances.is_freeing = is_freeing
    return replace(plan, actions=actions)
