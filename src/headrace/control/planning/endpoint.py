"""
The plan of one endpoint: its own workers, its inference components, and the instances of its variants.

Each component is planned like an endpoint; this module decides where its missing copies are placed. A copy that fits
nowhere waits for copies that are leaving; if there are none, its deployment fails, or continues without it (`rollout`).
Placing it is then retried in each pass, while all other components have the copies that they had.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as evolve

from headrace.control.model.component import ComponentRecord
from headrace.control.model.endpoint import ENDPOINT, EndpointRecord, HostInstance
from headrace.control.model.names import arn_of
from headrace.control.model.worker import WorkerRecord, WorkerView, view_worker
from headrace.control.model.workload import Deployable, State
from headrace.control.planning.adapters import Base, plan_adapter
from headrace.control.planning.config import PassContext
from headrace.control.planning.deployment import NO_CONDITIONS, Deployment, ExternalConditions
from headrace.control.planning.instances import ComponentView, VariantInstances, variant_instances
from headrace.control.planning.plan import Plan, plan_deployable, plan_removal
from headrace.control.planning.pool import Placed
from headrace.control.planning.worker_actions import Action, Drain, GiveUp, RemoveRecord, Start
from headrace.state.records import Record, Unreadable
from headrace.state.routes import ComponentRoute, Route, VariantRoute

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
    """The plans of all components of an endpoint."""

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
    readable = [component for component in components if isinstance(component, Record)]
    return EndpointView(
        record=record,
        workers=view_workers(workers.get("", ()), loads),
        alarm=_alarm_reason(record, alarms) if isinstance(record, Record) else "",
        components=[
            ComponentView(
                record=_deleted_with(component, record),
                workers=view_workers(workers.get(component.uid, ()), loads),
                placed=_placed_copies(component.name, workers.get(component.uid, ())),
                alarm=_alarm_reason(component, alarms),
            )
            for component in readable
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


def _deleted_with(component: ComponentRecord, endpoint: EndpointRecord | Unreadable) -> ComponentRecord:
    """Return a component that is being deleted if its endpoint is."""
    return component if component.deleting_s is not None else replace(component, deleting_s=endpoint.deleting_s)


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
    record, own = view.record, _plan_own(view, context)
    if own.deployment is None or isinstance(record, Unreadable):
        hosted = plan_components(None, view.components, context, instances={}, unreadable=view.unreadable)
        route = None
    else:
        instances = record.status.instances
        hosted = plan_components(
            own.deployment, view.components, context, instances=instances, unreadable=view.unreadable
        )
        route = _endpoint_route(record, own.deployment, own.variants, hosted, context)
    actions = own.actions if view.is_last else _without_removal(own.actions)
    return EndpointPlan(
        route=route, own=replace(own, actions=actions), components=hosted.plans, instances=hosted.instances
    )


def _plan_own(view: EndpointView, context: PassContext) -> Plan:
    record, now_s, config = view.record, context.now_s, context.config
    if isinstance(record, Unreadable):
        assert record.deleting_s is not None
        return plan_removal(record.deleting_s, view.workers, now_s=now_s, config=config)
    conditions = ExternalConditions(alarm=view.alarm)
    return plan_deployable(record, view.workers, context, conditions=conditions)


def _endpoint_route(
    record: EndpointRecord,
    deployment: Deployment,
    variants: Sequence[VariantRoute],
    hosted: ComponentPlans,
    context: PassContext,
) -> Route:
    """Return the route of an endpoint with its components, and the instances that they share."""
    return Route(
        endpoint=record.name,
        endpoint_arn=arn_of(context.aws_scope, ENDPOINT, record.name),
        endpoint_uid=record.uid,
        created_s=record.created_s,
        status=deployment.progress.state.value,
        variants=tuple(replace(variant, instances=len(hosted.instances.get(variant.name, ()))) for variant in variants),
        components=hosted.routes,
        async_output=(deployment.stable or record.spec.revision).async_output,
    )


def _without_removal(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions of an endpoint whose components are not yet removed."""
    return tuple(action for action in actions if not isinstance(action, RemoveRecord))


def plan_components(
    host: Deployment | None,
    components: Sequence[ComponentView],
    context: PassContext,
    *,
    instances: Mapping[str, Sequence[HostInstance]],
    unreadable: Sequence[Placed] = (),
) -> ComponentPlans:
    """
    Plan the components of one endpoint.

    Args:
        host: the endpoint's deployment; None while it is being deleted.
        components: the components, oldest first.
        context: the values that are fixed during the pass.
        instances: instances by variant after the last pass; a variant that is missing has none yet.
        unreadable: copies of components that cannot be read: they stay where they are.
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
        instances={name: variant.kept(context.now_s) for name, variant in variants.items()},
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
            route = replace(route, strategy=variant.strategy, prefix_routing=variant.prefix_routing)
        routes.append(ComponentRoute(name=name, variant=route.name, route=route))
    return tuple(routes)


def _plan_component(component: ComponentView, instances: VariantInstances | None, context: PassContext) -> Plan:
    """Plan a component, and plan it again if a copy has no place."""
    workers = instances.mark_leaving(component) if instances is not None else component.workers

    def planned(conditions: ExternalConditions) -> Plan:
        return plan_deployable(component.record, workers, context, conditions=evolve(conditions, alarm=component.alarm))

    plan = planned(instances.growth(component) if instances is not None else NO_CONDITIONS)
    if instances is None:
        no_start = tuple(action for action in plan.actions if not isinstance(action, Start))
        return replace(plan, actions=no_start)
    actions, no_room = instances.place_starts(component, plan)
    is_freeing = instances.is_freeing or any(isinstance(action, Drain | GiveUp) for action in plan.actions)
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
