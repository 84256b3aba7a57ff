"""
The plan of one endpoint or component: its record, its workers and the time give actions, routes and a status.

The reconciler calls it once per pass with the current state, not with events: after a crash of a worker or of the
platform the next pass decides again. Executing an action twice, or partly, does no harm.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.control.model.component import is_component
from headrace.platform.control.model.definitions import container_of, model_prefix
from headrace.platform.control.model.worker import WorkerView
from headrace.platform.control.model.workload import Deployable, Revision, State, Workload
from headrace.platform.control.planning.config import PassContext
from headrace.platform.control.planning.deployment import (
    NO_CONDITIONS,
    Deployment,
    ExternalConditions,
    start_deployment,
)
from headrace.platform.control.planning.rollout import advance, traffic_fraction, wanted_workers
from headrace.platform.control.planning.worker_actions import (
    Action,
    Forget,
    RemoveRecord,
    Stop,
    end_workers,
    plan_workers,
)
from headrace.platform.state.routes import Fleet, Replica, VariantRoute

_SERVING = frozenset({State.IN_SERVICE, State.UPDATING, State.ROLLING_BACK, State.UPDATE_ROLLBACK_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of planning one endpoint or component."""

    deployment: Deployment | None
    """The deployment; None while the record is being deleted."""
    variants: tuple[VariantRoute, ...] = ()
    """Routes of its production variants."""
    shadows: tuple[VariantRoute, ...] = ()
    """Routes of its shadow variants."""
    actions: tuple[Action, ...]
    is_stable: bool = False
    """The state is not transient, and each worker is ready or has ended."""

    @property
    def is_settled(self) -> bool:
        """True if nothing is in progress, so that the next pass may come later."""
        return self.is_stable and not self.actions


def plan_deployable(
    record: Deployable,
    workers: Sequence[WorkerView],
    context: PassContext,
    *,
    conditions: ExternalConditions = NO_CONDITIONS,
) -> Plan:
    """Plan one endpoint, or one inference component, by all of its workers, dead ones included."""
    if record.deleting_s is not None:
        return plan_removal(record.deleting_s, workers, context)
    deployment = advance(start_deployment(record, context.now_s), workers, context, conditions=conditions)
    changes = plan_workers(deployment, workers, context)
    variants = plan_variants(record, deployment, changes.staying, starting=changes.starting)
    is_calm = deployment.progress.state in (State.IN_SERVICE, State.FAILED, State.UPDATE_ROLLBACK_FAILED)
    is_stable = is_calm and all(worker.phase in (WorkerPhase.READY, WorkerPhase.EXITED) for worker in workers)
    return Plan(
        deployment=deployment,
        variants=variants,
        shadows=plan_shadows(deployment, changes.staying),
        actions=changes.actions,
        is_stable=is_stable,
    )


def plan_removal(deleting_s: float, workers: Sequence[WorkerView], context: PassContext) -> Plan:
    """
    Plan a deletion.

    A worker that does not end in time, or cannot be reached, delays the deletion no further.
    """
    actions: Sequence[Action]
    if context.waited_s(deleting_s) > context.config.stop_bound_s:
        stops = (Stop(worker=worker.name, grace_s=0.0) for worker in workers if not worker.is_gone)
        actions = (*stops, *(Forget(worker=worker.name) for worker in workers))
    else:
        actions = end_workers(workers, context)
    is_last = sum(isinstance(action, Forget) for action in actions) == len(workers)
    return Plan(deployment=None, actions=(*actions, *((RemoveRecord(),) if is_last else ())))


def plan_variants(
    record: Deployable,
    deployment: Deployment,
    workers: Sequence[WorkerView],
    *,
    starting: Collection[str] = (),
) -> tuple[VariantRoute, ...]:
    """
    Return the routes of an endpoint's production variants, or of a component; without replicas while not in service.

    `workers` are those that stay; in the variants `starting` a worker is started now or soon.
    """
    state, old, new = deployment.progress.state, deployment.stable or deployment.target, deployment.target
    assert old is not None
    serving = [worker for worker in workers if worker.can_serve] if state in _SERVING else []
    # An answer of the old revision is better than an error while no worker of the new one serves.
    revisions = {worker.revision for worker in serving}
    is_old_alone = new is not None and old.number in revisions and new.number not in revisions
    routes = _routes(old, new, 0.0 if is_old_alone else traffic_fraction(deployment), serving)
    # A variant without replicas has no weight during an update, if others have some.
    if new is not None and new is not old and any(map(_has_replicas, routes)):
        routes = [route if _has_replicas(route) else replace(route, weight=0.0) for route in routes]
    if state not in _SERVING and not (is_component(record) and state is State.CREATING):
        return tuple(routes)
    # Requests wait for a variant that is scaled to zero, or of which a worker is starting.
    awake = {variant for (variant, _), count in wanted_workers(deployment).items() if count}
    coming = {worker.variant for worker in workers if worker.is_wanted} | set(starting)
    return tuple(
        route
        if _has_replicas(route) or not route.fleets
        else replace(route, standby=route.name not in awake or route.name in coming)
        for route in routes
    )


def plan_shadows(deployment: Deployment, workers: Sequence[WorkerView]) -> tuple[VariantRoute, ...]:
    """Return the routes of the shadow variants, for which no request waits."""
    old, new = deployment.stable or deployment.target, deployment.target
    assert old is not None
    serving = [worker for worker in workers if worker.can_serve] if deployment.progress.state in _SERVING else []
    return tuple(_routes(old, new, traffic_fraction(deployment), serving, are_shadows=True))


def _routes(
    old: Revision,
    new: Revision | None,
    fraction: float,
    serving: Sequence[WorkerView],
    *,
    are_shadows: bool = False,
) -> list[VariantRoute]:
    """Return the routes of the production or the shadow variants; `fraction` of the traffic is on the new revision."""
    before, after = (
        {} if revision is None else {load.variant: load for load in revision.workloads if load.is_shadow == are_shadows}
        for revision in (old, new)
    )
    if new is None or new is old:
        return [
            _route(
                workload,
                _weight(workload, old, is_normalised=False),
                () if workload.is_host else (_fleet(serving, name, old, 1.0),),
            )
            for name, workload in before.items()
        ]
    mixed = (
        _mixed_variant((old, before.get(name)), (new, after.get(name)), fraction, serving) for name in before | after
    )
    return [route for route in mixed if route is not None]


def _has_replicas(route: VariantRoute) -> bool:
    return any(fleet.replicas for fleet in route.fleets)


def _mixed_variant(
    was: tuple[Revision, Workload | None],
    becomes: tuple[Revision, Workload | None],
    fraction: float,
    serving: Sequence[WorkerView],
) -> VariantRoute | None:
    """Return a variant's route while `fraction` of the traffic is on the new revision; None if it has no traffic."""
    (old, before), (new, after) = was, becomes
    if (before is None and fraction <= 0) or (after is None and fraction >= 1):
        return None
    is_mixed = 0 < fraction < 1
    traffic = {
        old.number: (1 - fraction) * _weight(before, old, is_normalised=is_mixed),
        new.number: fraction * _weight(after, new, is_normalised=is_mixed),
    }
    weight = sum(traffic.values())
    intended = {
        revision.number: traffic[revision.number] / weight if weight > 0 else part
        for revision, workload, part in ((old, before, 1 - fraction), (new, after, fraction))
        if workload is not None and not workload.is_host
    }
    shown = after if before is None or (after is not None and fraction >= 1) else before
    assert shown is not None
    able = {worker.revision for worker in serving if worker.variant == shown.variant and worker.revision in intended}
    shares = effective_shares(intended, able)
    fleets = [
        _fleet(serving, shown.variant, revision, shares[revision.number])
        for revision in sorted((old, new), key=lambda revision: revision.number)
        if revision.number in shares
    ]
    return _route(shown, weight, tuple(fleets))


def effective_shares(intended: dict[int, float], able: set[int]) -> dict[int, float]:
    """
    Return the shares of a variant's fleets, which add up to 1.

    A fleet without a serving replica gives its share to the others, in proportion to their shares or in equal parts if
    these are 0: an answer of either revision is better than an error.
    """
    if not able:
        total = sum(intended.values())
        even = 1 / len(intended) if intended else 0.0
        return {revision: share / total if total > 0 else even for revision, share in intended.items()}
    total = sum(intended[revision] for revision in able)
    return {
        revision: (share / total if total > 0 else 1 / len(able)) if revision in able else 0.0
        for revision, share in intended.items()
    }


def _weight(workload: Workload | None, revision: Revision, *, is_normalised: bool) -> float:
    """
    Return a variant's weight; normalised, the weights of a revision's production variants add up to 1.

    A shadow variant's is the share of the requests that it gets, in any case.
    """
    if workload is None:
        return 0.0
    production = [workload.weight for workload in revision.workloads if not workload.is_shadow]
    total = sum(production)
    if workload.is_shadow:
        return min(1.0, workload.weight / total) if total > 0 else 0.0
    if not is_normalised:
        return workload.weight
    return workload.weight / total if total > 0 else 1 / len(production)


def _route(workload: Workload, weight: float, fleets: tuple[Fleet, ...]) -> VariantRoute:
    models = None if workload.model is None else model_prefix(container_of(workload.model))
    return VariantRoute(
        name=workload.variant,
        weight=weight,
        fleets=fleets,
        strategy=workload.strategy,
        prefix_routing=workload.prefix_routing,
        instance_type=workload.instance_type,
        max_concurrency=None if workload.serverless is None else workload.serverless.max_concurrency,
        model_prefix="" if models is None else models.prefix,
    )


def _fleet(serving: Sequence[WorkerView], variant: str, revision: Revision, share: float) -> Fleet:
    workers = (worker for worker in serving if worker.fleet == (variant, revision.number))
    replicas = tuple(
        Replica(worker=worker.name, url=worker.url, token=worker.token)
        for worker in sorted(workers, key=lambda worker: worker.name)
    )
    workload = revision.workload(variant)
    return Fleet(
        generation=revision.number,
        share=share,
        replicas=replicas,
        config=revision.config_name,
        containers=workload.containers if workload is not None else (),
        is_direct=workload is not None and workload.is_direct,
    )
