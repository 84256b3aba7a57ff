"""
What to do for the components of one endpoint now, and which instances its variants have then. Pure.

Each component is planned as an endpoint is; what is decided here is where the copies that it wants go. A copy that fits
nowhere waits for those that are leaving; if none is, the deployment that wants it has failed, or goes on without it
(`deployment`). Then it is tried at each pass, as long as all others have what they had.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from headrace.control.api.component_specs import specification_of
from headrace.control.model.component_runtime import serving_version
from headrace.control.model.fleet import Limits, WorkerView
from headrace.control.model.progress import TRANSIENT, EndpointView, Progress, State
from headrace.control.model.version import Variant
from headrace.control.planning.consolidation import Calm, Tenant, with_leaving
from headrace.control.planning.placement import Placed, read_need, read_strategy, resources_of_type
from headrace.control.planning.placement_state import Ground
from headrace.control.planning.plan import Action, Drain, GiveUp, Plan, Start, plan_endpoint
from headrace.control.planning.pool import HostInstance, PoolRules, first_instances, read_rules
from headrace.control.planning.rollout import NOTHING, Deployment, Outside
from headrace.state.records import Json
from headrace.state.routes import ComponentRoute, Route

_NO_SPARE_ROOM = " An update needs room for a batch of new copies (MaximumBatchSize) beside those that serve."


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component, as it is seen."""

    view: EndpointView
    workers: Sequence[WorkerView]
    placed: Mapping[str, Placed]
    """By worker: where its copies stand, those that have not ended."""
    alarm: str = ""
    """Why its update shall be rolled back, if an alarm says so."""

    @property
    def variant(self) -> str:
        """Of the endpoint, whose instances it is on."""
        return self.view.version.variants[0].name

    @property
    def is_settled(self) -> bool:
        """Nobody has asked for something that is not done yet."""
        progress = self.view.progress
        if self.view.deleting_s is not None or progress is None or progress.observed != self.view.asked:
            return False
        return progress.state not in TRANSIENT

    @property
    def is_at_rest(self) -> bool:
        """It is going, or is settled and no copy that had a place is missing."""
        if self.view.deleting_s is not None:
            return True
        if not self.is_settled or self.view.progress is None:
            return False
        stable = self.view.progress.stable
        standing = sum(one.is_wanted for one in self.workers)
        return stable is None or standing >= self.view.versions[stable].variants[0].count


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What is to be done."""

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
    strangers: Sequence[Placed] = (),
) -> HostPlan:
    """
    Decide about the components of one endpoint.

    Args:
        host: the endpoint's own; None: it is being deleted.
        components: oldest first.
        instances: by variant, as they were after the last pass; a variant that is not there has none yet.
        endpoint_arn: for the routes.
        now_s: seconds since 1970.
        limits: how patient to be.
        new_id: makes the id of an instance.
        strangers: copies of components that cannot be read: they stay where they are.
    """
    moment = _Moment(now_s=now_s, limits=limits, new_id=new_id)
    grounds = _grounds(host, components, instances, strangers, moment)
    plans = {
        one.view.name: _plan(one, grounds.get(one.variant), endpoint_arn=endpoint_arn, now_s=now_s, limits=limits)
        for one in components
    }
    return HostPlan(
        plans=plans,
        routes=_routes(plans, grounds),
        instances={name: ground.kept(now_s) for name, ground in grounds.items()},
    )


def _routes(plans: Mapping[str, Plan], grounds: Mapping[str, Ground]) -> tuple[ComponentRoute, ...]:
    """Who serves the components; how one of the copies is chosen is the endpoint's matter."""
    routes = []
    for name, plan in sorted(plans.items()):
        if plan.route is None or not plan.route.variants:
            continue
        route = plan.route.variants[0]
        if (ground := grounds.get(route.name)) is not None:
            route = replace(route, strategy=ground.strategy)
        routes.append(ComponentRoute(name=name, variant=route.name, route=route))
    return tuple(routes)


def with_components(route: Route, plan: HostPlan) -> Route:
    """Return the route of an endpoint with its components, and the instances that they share."""
    variants = [replace(one, instances=len(plan.instances.get(one.name, ()))) for one in route.variants]
    return replace(route, variants=tuple(variants), components=plan.routes)


def read_instances(status: Json) -> dict[str, list[HostInstance]]:
    """`status.instances` of an endpoint."""
    return msgspec.convert(status.get("instances", {}), dict[str, list[HostInstance]])


def instances_json(plan: HostPlan) -> Json:
    """The part of an endpoint's status that tells of them; empty if it has none."""
    return {"instances": msgspec.to_builtins(plan.instances)} if plan.instances else {}


def _grounds(
    host: Deployment | None,
    components: Sequence[Component],
    instances: Mapping[str, Sequence[HostInstance]],
    strangers: Sequence[Placed],
    moment: _Moment,
) -> dict[str, Ground]:
    version = None if host is None else host.stable or host.target
    if host is None or version is None:
        return {}
    configs: dict[str, Json] = {one["VariantName"]: one for one in version.raw["config"]["ProductionVariants"]}
    grounds: dict[str, Ground] = {}
    for variant in version.variants:
        if variant.model is not None:
            continue
        rules = read_rules(configs[variant.name], variant.instances)
        known = instances.get(variant.name)
        if known is None:
            known = first_instances(rules, variant.instances, now_s=moment.now_s, new_id=moment.new_id)
        here = [one for one in components if one.variant == variant.name]
        grounds[variant.name] = _ground(variant, rules, known, here, strangers, host.progress, moment)
    return grounds


def _ground(
    variant: Variant,
    rules: PoolRules,
    instances: Sequence[HostInstance],
    components: Sequence[Component],
    strangers: Sequence[Placed],
    host: Progress,
    moment: _Moment,
) -> Ground:
    """What stands on the instances of one variant, and which of them are emptied."""
    ids = {one.id for one in instances}
    fixed = [copy for copy in strangers if copy.instance in ids]
    whole = resources_of_type(variant.instance_type)
    return Ground(
        whole=whole,
        instance_type=variant.instance_type,
        strategy=variant.strategy,
        rules=rules,
        instances=with_leaving(
            instances,
            rules,
            [_tenant(one) for one in components],
            fixed=fixed,
            whole=whole,
            calm=_calm(host, components, instances, moment),
            now_s=moment.now_s,
        ),
        placed=[*fixed, *(copy for one in components for copy in one.placed.values())],
        is_freeing=any(
            not worker.is_wanted and not worker.is_gone and worker.name in one.placed
            for one in components
            for worker in one.workers
        ),
        may_grow=all(one.is_at_rest for one in components),
        new_id=moment.new_id,
    )


def _tenant(component: Component) -> Tenant:
    """A component, when nothing of it is under way: all copies are of one version."""
    specification = specification_of(serving_version(component.view).raw)
    standing = [
        component.placed[one.name] for one in component.workers if one.is_wanted and one.name in component.placed
    ]
    return Tenant(
        name=component.view.name,
        need=standing[0].need if standing else read_need(specification),
        strategy=read_strategy(specification),
        instances=tuple(copy.instance for copy in standing),
    )


def _calm(host: Progress, components: Sequence[Component], instances: Sequence[HostInstance], moment: _Moment) -> Calm:
    """Whether copies may be moved from one instance to another now."""
    begun_s = max((one.leaving_s for one in instances if one.leaving_s is not None), default=None)
    failed_s = [one.failed_s for component in components for one in component.workers if one.failed_s is not None]
    since_s = max([host.since_s, *(one.view.progress.since_s for one in components if one.view.progress is not None)])
    is_settled = host.state not in TRANSIENT and all(one.is_settled for one in components)
    living = [worker for one in components for worker in one.workers if not worker.is_gone]
    is_sound = all(moment.now_s - one >= moment.limits.crash_window_s for one in failed_s)
    return Calm(
        may_begin=is_settled and is_sound and all(worker.can_serve for worker in living),
        may_go_on=is_settled and all(begun_s is not None and one < begun_s for one in failed_s),
        since_s=since_s,
    )


def _plan(component: Component, ground: Ground | None, *, endpoint_arn: str, now_s: float, limits: Limits) -> Plan:
    """Plan a component, and once more if what it wants has no place."""
    workers = [_marked(worker, component, ground) for worker in component.workers]

    def planned(outside: Outside) -> Plan:
        return plan_endpoint(
            component.view,
            workers,
            endpoint_arn=endpoint_arn,
            now_s=now_s,
            limits=limits,
            outside=replace(outside, alarm=component.alarm),
        )

    plan = planned(_growth(component, ground))
    if ground is None:
        no_start = tuple(action for action in plan.actions if not isinstance(action, Start))
        return replace(plan, actions=no_start)
    actions, why_not = _placed_actions(plan, component, ground)
    is_freeing = ground.is_freeing or any(isinstance(action, Drain | GiveUp) for action in plan.actions)
    if why_not and not is_freeing:
        if plan.deployment is not None and plan.deployment.stable and plan.deployment.target:
            why_not += _NO_SPARE_ROOM
        ground.trial.clear()
        plan = planned(Outside(no_room=why_not, num_fitting=sum(isinstance(one, Start) for one in actions)))
        actions, _ = _placed_actions(plan, component, ground)
    ground.placed += ground.trial
    ground.trial.clear()
    ground.is_freeing = is_freeing
    return replace(plan, actions=actions)


def _growth(component: Component, ground: Ground | None) -> Outside:
    """How many of the copies that are lacking have room now."""
    progress = component.view.progress
    lacking = 0 if progress is None or progress.state is not State.IN_SERVICE else progress.lacking
    if ground is None or not lacking or not component.is_settled or not ground.may_grow or ground.leaving:
        return NOTHING
    specification = specification_of(serving_version(component.view).raw)
    need, strategy = read_need(specification), read_strategy(specification)
    num_fitting = 0
    while num_fitting < lacking and ground.place(component.view.name, need, strategy) is not None:
        num_fitting += 1
    no_room = "" if num_fitting == lacking else ground.why_not(need)
    ground.trial.clear()
    return Outside(no_room=no_room, num_fitting=num_fitting, growth=num_fitting)


def _marked(worker: WorkerView, component: Component, ground: Ground | None) -> WorkerView:
    """The copy, leaving if its instance is."""
    copy = component.placed.get(worker.name)
    is_leaving = ground is not None and copy is not None and worker.is_wanted and copy.instance in ground.leaving
    return replace(worker, is_leaving=True) if is_leaving else worker


def _placed_actions(plan: Plan, component: Component, ground: Ground) -> tuple[tuple[Action, ...], str]:
    """The actions, starts with the instances that they got; and why one got none."""
    actions: list[Action] = []
    why_not = ""
    for action in plan.actions:
        if not isinstance(action, Start):
            actions.append(action)
            continue
        assert plan.deployment is not None
        specification = specification_of(plan.deployment.versions[action.generation].raw)
        need = read_need(specification)
        instance = ground.place(component.view.name, need, read_strategy(specification))
        if instance is None:
            why_not = why_not or ground.why_not(need)
        else:
            actions.append(replace(action, instance=instance))
    return tuple(actions), why_not
