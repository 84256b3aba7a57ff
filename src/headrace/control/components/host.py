"""
What to do for the components of one endpoint now, and which instances its variants have then. Pure.

Each component is planned as an endpoint is; what is decided here is where the copies that it wants go. A copy that fits
nowhere waits for those that are leaving; if none is, the deployment that wants it has failed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.control.components.placement import (
    Placed,
    Resources,
    Strategy,
    choose_instance,
    read_need,
    read_strategy,
    resources_of_type,
    too_large,
)
from headrace.control.components.pool import (
    HostInstance,
    PoolRules,
    first_instances,
    kept_instances,
    read_rules,
)
from headrace.control.deployment import Outside
from headrace.control.fleet import Limits, WorkerView
from headrace.control.plan import Action, Drain, GiveUp, Plan, Start, plan_endpoint
from headrace.control.progress import EndpointView
from headrace.control.version import Version
from headrace.state.records import Json
from headrace.state.routes import ComponentRoute

_NO_ROOM = (
    "There is not enough hardware resources on the instances for this endpoint to create a copy of the inference "
    "component."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component, as it is seen."""

    view: EndpointView
    workers: Sequence[WorkerView]
    placed: Mapping[str, Placed]
    """By worker: where its copies stand, those that have not ended."""
    alarm: str = ""
    """Why its update shall be rolled back, if an alarm says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What is to be done."""

    plans: Mapping[str, Plan]
    """By component."""
    routes: tuple[ComponentRoute, ...]
    instances: Mapping[str, Sequence[HostInstance]]
    """By variant."""


@dataclass(slots=True, kw_only=True)
class _Ground:
    """The instances of one variant while its components are planned."""

    whole: Resources
    instance_type: str
    rules: PoolRules
    instances: list[HostInstance]
    placed: list[Placed]
    is_freeing: bool
    """Copies are leaving: there will be more room."""
    new_id: Callable[[], str]
    trial: "list[Placed]" = field(default_factory=list)
    """What was placed for the component that is planned now."""

    def place(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        """Put a copy on an instance, on a new one if there may be one more."""
        chosen = self._choose(component, need, strategy)
        if chosen is None and need.fits_in(self.whole) and len(self.instances) < self.rules.most:
            self.instances.append(HostInstance(id=self.new_id()))
            chosen = self._choose(component, need, strategy)
        if chosen is not None:
            self.trial.append(Placed(component=component, instance=chosen, need=need))
        return chosen

    def _choose(self, component: str, need: Resources, strategy: Strategy) -> str | None:
        return choose_instance(
            component,
            need,
            whole=self.whole,
            instances=[one.id for one in self.instances],
            placed=[*self.placed, *self.trial],
            strategy=strategy,
        )

    def why_not(self, need: Resources) -> str:
        """FailureReason of a copy that has no place."""
        if not need.fits_in(self.whole):
            return f"{_NO_ROOM} {too_large(need, self.instance_type)}"
        return (
            f"{_NO_ROOM} {len(self.instances)} of at most {self.rules.most} instances of type {self.instance_type} "
            f"hold {len(self.placed) + len(self.trial)} copies. Ask for fewer, or for more instances."
        )


def plan_host(
    host: Version | None,
    components: Sequence[Component],
    *,
    instances: Mapping[str, Sequence[HostInstance]],
    endpoint_arn: str,
    now_s: float,
    limits: Limits,
    new_id: Callable[[], str],
) -> HostPlan:
    """
    Decide about the components of one endpoint.

    Args:
        host: the version of the endpoint that serves; None: it is being deleted.
        components: oldest first.
        instances: by variant, as they were after the last pass; a variant that is not there has none yet.
        endpoint_arn: for the routes.
        now_s: seconds since 1970.
        limits: how patient to be.
        new_id: makes the id of an instance.
    """
    grounds = _grounds(host, components, instances, now_s, new_id)
    plans = {
        one.view.name: _plan(
            one, grounds.get(_variant_of(one.view)), endpoint_arn=endpoint_arn, now_s=now_s, limits=limits
        )
        for one in components
    }
    return HostPlan(
        plans=plans,
        routes=tuple(
            ComponentRoute(name=name, variant=plan.route.variants[0].name, route=plan.route.variants[0])
            for name, plan in sorted(plans.items())
            if plan.route is not None and plan.route.variants
        ),
        instances={
            name: kept_instances(
                ground.instances,
                ground.rules,
                busy={copy.instance for copy in ground.placed},
                now_s=now_s,
                new_id=new_id,
            )
            for name, ground in grounds.items()
        },
    )


def read_instances(status: Json) -> dict[str, list[HostInstance]]:
    """`status.instances` of an endpoint."""
    return msgspec.convert(status.get("instances", {}), dict[str, list[HostInstance]])


def _grounds(
    host: Version | None,
    components: Sequence[Component],
    instances: Mapping[str, Sequence[HostInstance]],
    now_s: float,
    new_id: Callable[[], str],
) -> dict[str, _Ground]:
    grounds: dict[str, _Ground] = {}
    if host is None:
        return grounds
    configs: dict[str, Json] = {one["VariantName"]: one for one in host.raw["config"]["ProductionVariants"]}
    for variant in host.variants:
        if variant.model is not None:
            continue
        rules = read_rules(configs[variant.name], variant.instances)
        known = instances.get(variant.name)
        here = [one for one in components if _variant_of(one.view) == variant.name]
        grounds[variant.name] = _Ground(
            whole=resources_of_type(variant.instance_type),
            instance_type=variant.instance_type,
            rules=rules,
            instances=(
                first_instances(rules, variant.instances, now_s=now_s, new_id=new_id) if known is None else list(known)
            ),
            placed=[copy for one in here for copy in one.placed.values()],
            is_freeing=any(
                not worker.is_wanted and not worker.is_gone and worker.name in one.placed
                for one in here
                for worker in one.workers
            ),
            new_id=new_id,
        )
    return grounds


def _variant_of(view: EndpointView) -> str:
    return view.version.variants[0].name


def _plan(component: Component, ground: _Ground | None, *, endpoint_arn: str, now_s: float, limits: Limits) -> Plan:
    """Plan a component, and once more if what it wants has no place."""

    def planned(no_room: str = "") -> Plan:
        outside = Outside(no_room=no_room, alarm=component.alarm)
        return plan_endpoint(
            component.view,
            component.workers,
            endpoint_arn=endpoint_arn,
            now_s=now_s,
            limits=limits,
            outside=outside,
        )

    plan = planned()
    if ground is None:
        no_start = tuple(action for action in plan.actions if not isinstance(action, Start))
        return replace(plan, actions=no_start)
    actions, why_not = _placed_actions(plan, component, ground)
    is_freeing = ground.is_freeing or any(isinstance(action, Drain | GiveUp) for action in plan.actions)
    if why_not and not is_freeing:
        ground.trial.clear()
        plan = planned(why_not)
        actions, _ = _placed_actions(plan, component, ground)
    ground.placed += ground.trial
    ground.trial.clear()
    ground.is_freeing = is_freeing
    return replace(plan, actions=actions)


def _placed_actions(plan: Plan, component: Component, ground: _Ground) -> tuple[tuple[Action, ...], str]:
    """The actions, starts with the instances that they got; and why one got none."""
    actions: list[Action] = []
    why_not = ""
    for action in plan.actions:
        if not isinstance(action, Start):
            actions.append(action)
            continue
        assert plan.deployment is not None
        specification: Json = plan.deployment.versions[action.generation].raw["config"].get("Specification") or {}
        need = read_need(specification)
        instance = ground.place(component.view.name, need, read_strategy(specification))
        if instance is None:
            why_not = why_not or ground.why_not(need)
        else:
            actions.append(replace(action, instance=instance))
    return tuple(actions), why_not
