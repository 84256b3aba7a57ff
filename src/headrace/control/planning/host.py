"""
The plan for the components of one endpoint, and for the instances of its variants.

Each component is planned as an endpoint is; this module decides where its missing copies are placed. A copy that fits
nowhere waits for copies that are leaving; if there are none, its deployment has failed, or goes on without it
(`rollout`). It is then tried again at each pass, while all other components have what they had.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as evolve

from headrace.control.model.component import ComponentRecord
from headrace.control.model.endpoint import HostInstance
from headrace.control.model.resources import resources_of_type
from headrace.control.model.worker import WorkerView
from headrace.control.model.workload import TRANSIENT, Progress, State, Workload, serving_revision, visible_state
from headrace.control.planning.consolidation import ConsolidationWindow, Tenant, with_leaving
from headrace.control.planning.fleet import Limits
from headrace.control.planning.placement import Placed
from headrace.control.planning.placement_state import PlacementState
from headrace.control.planning.plan import Action, Drain, GiveUp, Plan, Start, plan_deployable
from headrace.control.planning.pool import PoolRules, first_instances, pool_rules
from headrace.control.planning.rollout import NO_CONDITIONS, Deployment, ExternalConditions
from headrace.state.routes import ComponentRoute, Route

_NO_SPARE_ROOM = " An update needs room for a batch of new copies (MaximumBatchSize) beside those that serve."


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """An inference component and its copies."""

    record: ComponentRecord
    workers: Sequence[WorkerView]
    placed: Mapping[str, Placed]
    """By worker: the places of its copies that have not ended."""
    alarm: str = ""
    """Why its update is rolled back, if an alarm demands it."""

    @property
    def variant(self) -> str:
        """The endpoint's variant whose instances it is on."""
        return self.record.spec.revision.variant

    @property
    def is_settled(self) -> bool:
        """True if the observed state has reached the desired one."""
        return visible_state(self.record) not in TRANSIENT

    @property
    def is_at_rest(self) -> bool:
        """True if it is being deleted, or is settled and lacks no copy that had a place."""
        if self.record.deleting_s is not None:
            return True
        progress = self.record.status.progress
        if not self.is_settled or progress is None:
            return False
        num_standing = sum(worker.is_wanted for worker in self.workers)
        return progress.stable is None or num_standing >= self.record.status.revisions[progress.stable].copies

    @property
    def workload(self) -> Workload:
        """The workload that serves."""
        (workload,) = serving_revision(self.record).workloads
        return workload


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The plans for all components of an endpoint."""

    plans: Mapping[str, Plan]
    """By component."""
    routes: tuple[ComponentRoute, ...]
    instances: Mapping[str, Sequence[HostInstance]]
    """By variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    now_s: float
    limits: Limits
    new_id: Callable[[], str]


def plan_host(
    host: Deployment | None,
    components: Sequence[Component],
    *,
    instances: Mapping[str, Sequence[HostInstance]],
    endpoint_arn: str,
    now_s: float,
    limits: Limits,
    new_id: Callable[[], str],
    unreadable: Sequence[Placed] = (),
) -> HostPlan:
    """
    Plan the components of one endpoint.

    Args:
        host: the endpoint's deployment; None: it is being deleted.
        components: oldest first.
        instances: by variant, as they were after the last pass; a variant that is missing has none yet.
        endpoint_arn: for the routes.
        now_s: seconds since 1970.
        limits: time limits.
        new_id: makes the id of an instance.
        unreadable: copies of components that cannot be read: they stay where they are.
    """
    moment = _Moment(now_s=now_s, limits=limits, new_id=new_id)
    states = _states(host, components, instances, unreadable, moment)
    plans = {
        component.record.name: _plan(
            component, states.get(component.variant), endpoint_arn=endpoint_arn, now_s=now_s, limits=limits
        )
        for component in components
    }
    return HostPlan(
        plans=plans,
        routes=_routes(plans, states),
        instances={name: state.kept(now_s) for name, state in states.items()},
    )


def _routes(plans: Mapping[str, Plan], states: Mapping[str, PlacementState]) -> tuple[ComponentRoute, ...]:
    """Return the routes of the components, with the routing strategy of their variant."""
    routes = []
    for name, plan in sorted(plans.items()):
        if plan.route is None or not plan.route.variants:
            continue
        route = plan.route.variants[0]
        if (state := states.get(route.name)) is not None:
            route = replace(route, strategy=state.strategy)
        routes.append(ComponentRoute(name=name, variant=route.name, route=route))
    return tuple(routes)


def with_components(route: Route, plan: HostPlan) -> Route:
    """Return the route of an endpoint with its components, and the instances that they share."""
    variants = [replace(variant, instances=len(plan.instances.get(variant.name, ()))) for variant in route.variants]
    return replace(route, variants=tuple(variants), components=plan.routes)


def _states(
    host: Deployment | None,
    components: Sequence[Component],
    instances: Mapping[str, Sequence[HostInstance]],
    unreadable: Sequence[Placed],
    moment: _Moment,
) -> dict[str, PlacementState]:
    revision = None if host is None else host.stable or host.target
    if host is None or revision is None:
        return {}
    states: dict[str, PlacementState] = {}
    for variant in revision.workloads:
        if not variant.is_host:
            continue
        rules, known = pool_rules(variant), instances.get(variant.variant)
        if known is None:
            known = first_instances(rules, variant.count, now_s=moment.now_s, new_id=moment.new_id)
        here = [component for component in components if component.variant == variant.variant]
        states[variant.variant] = _state(variant, rules, known, here, unreadable, host.progress, moment)
    return states


def _state(
    variant: Workload,
    rules: PoolRules,
    instances: Sequence[HostInstance],
    components: Sequence[Component],
    unreadable: Sequence[Placed],
    host: Progress,
    moment: _Moment,
) -> PlacementState:
    """Return the state of the instances of one variant, with the decision which of them are emptied."""
    ids = {instance.id for instance in instances}
    fixed = [copy for copy in unreadable if copy.instance in ids]
    whole = resources_of_type(variant.instance_type)
    return PlacementState(
        whole=whole,
        instance_type=variant.instance_type,
        strategy=variant.strategy,
        rules=rules,
        instances=with_leaving(
            instances,
            rules,
            [_tenant(component) for component in components],
            fixed=fixed,
            whole=whole,
            window=_window(host, components, instances, moment),
            now_s=moment.now_s,
        ),
        placed=[*fixed, *(copy for component in components for copy in component.placed.values())],
        is_freeing=any(
            not worker.is_wanted and not worker.is_gone and worker.name in component.placed
            for component in components
            for worker in component.workers
        ),
        may_grow=all(component.is_at_rest for component in components),
        new_id=moment.new_id,
    )


def _tenant(component: Component) -> Tenant:
    """Return a component whose copies may be moved; all of them are of one revision then."""
    workload = component.workload
    standing = [
        component.placed[worker.name]
        for worker in component.workers
        if worker.is_wanted and worker.name in component.placed
    ]
    assert workload.need is not None
    return Tenant(
        name=component.record.name,
        need=standing[0].need if standing else workload.need,
        strategy=workload.placement,
        instances=tuple(copy.instance for copy in standing),
    )


def _window(
    host: Progress, components: Sequence[Component], instances: Sequence[HostInstance], moment: _Moment
) -> ConsolidationWindow:
    """Return whether copies may be moved from one instance to another now."""
    begun_s = max((instance.leaving_s for instance in instances if instance.leaving_s is not None), default=None)
    failed_s = [
        worker.failed_s for component in components for worker in component.workers if worker.failed_s is not None
    ]
    since_s = max(
        [
            host.since_s,
            *(component.record.status.progress.since_s for component in components if component.record.status.progress),
        ]
    )
    is_settled = host.state not in TRANSIENT and all(component.is_settled for component in components)
    living = [worker for component in components for worker in component.workers if not worker.is_gone]
    is_sound = all(moment.now_s - time_s >= moment.limits.crash_window_s for time_s in failed_s)
    return ConsolidationWindow(
        may_begin=is_settled and is_sound and all(worker.can_serve for worker in living),
        may_go_on=is_settled and all(begun_s is not None and time_s < begun_s for time_s in failed_s),
        since_s=since_s,
    )


def _plan(
    component: Component, state: PlacementState | None, *, endpoint_arn: str, now_s: float, limits: Limits
) -> Plan:
    """Plan a component, and once more if a copy has no place."""
    workers = [_marked(worker, component, state) for worker in component.workers]

    def planned(conditions: ExternalConditions) -> Plan:
        return plan_deployable(
            component.record,
            workers,
            endpoint_arn=endpoint_arn,
            now_s=now_s,
            limits=limits,
            conditions=evolve(conditions, alarm=component.alarm),
        )

    plan = planned(_growth(component, state))
    if state is None:
        no_start = tuple(action for action in plan.actions if not isinstance(action, Start))
        return replace(plan, actions=no_start)
    actions, no_room = _placed_actions(plan, component, state)
    is_freeing = state.is_freeing or any(isinstance(action, Drain | GiveUp) for action in plan.actions)
    if no_room and not is_freeing:
        if plan.deployment is not None and plan.deployment.stable and plan.deployment.target:
            no_room += _NO_SPARE_ROOM
        state.trial.clear()
        plan = planned(
            ExternalConditions(no_room=no_room, num_fitting=sum(isinstance(action, Start) for action in actions))
        )
        actions, _ = _placed_actions(plan, component, state)
    state.placed += state.trial
    state.trial.clear()
    state.is_freeing = is_freeing
    return replace(plan, actions=actions)


def _growth(component: Component, state: PlacementState | None) -> ExternalConditions:
    """Return how many of the unplaced copies have room now."""
    progress, workload = component.record.status.progress, component.workload
    num_unplaced = 0 if progress is None or progress.state is not State.IN_SERVICE else progress.num_unplaced
    if (
        state is None
        or workload.need is None
        or not num_unplaced
        or not component.is_settled
        or not state.may_grow
        or state.leaving
    ):
        return NO_CONDITIONS
    need, name = workload.need, component.record.name
    num_fitting = 0
    while num_fitting < num_unplaced and state.place(name, need, workload.placement) is not None:
        num_fitting += 1
    no_room = "" if num_fitting == num_unplaced else state.no_room_reason(need)
    state.trial.clear()
    return ExternalConditions(no_room=no_room, num_fitting=num_fitting, growth=num_fitting)


def _marked(worker: WorkerView, component: Component, state: PlacementState | None) -> WorkerView:
    """Return the copy, marked as leaving if its instance is being emptied."""
    copy = component.placed.get(worker.name)
    is_leaving = state is not None and copy is not None and worker.is_wanted and copy.instance in state.leaving
    return replace(worker, is_leaving=True) if is_leaving else worker


def _placed_actions(plan: Plan, component: Component, state: PlacementState) -> tuple[tuple[Action, ...], str]:
    """Return the actions, with an instance for each start; and why there was none for one."""
    actions: list[Action] = []
    no_room = ""
    for action in plan.actions:
        if not isinstance(action, Start):
            actions.append(action)
            continue
        assert plan.deployment is not None
        (workload,) = plan.deployment.revisions[action.fleet[1]].workloads
        assert workload.need is not None
        instance = state.place(component.record.name, workload.need, workload.placement)
        if instance is None:
            no_room = no_room or state.no_room_reason(workload.need)
        else:
            actions.append(replace(action, instance=instance))
    return tuple(actions), no_room
