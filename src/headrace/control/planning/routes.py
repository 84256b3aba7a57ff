"""Routes of variants: the progress of a deployment and its workers give the replicas and their traffic."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.control.model.component import is_component
from headrace.control.model.worker import WorkerView
from headrace.control.model.workload import Deployable, Revision, State, Workload
from headrace.control.planning.deployment import Deployment, DesiredState
from headrace.state.routes import Fleet, Replica, VariantRoute

_SERVING = frozenset({State.IN_SERVICE, State.UPDATING, State.ROLLING_BACK, State.UPDATE_ROLLBACK_FAILED})


def plan_variants(
    record: Deployable,
    deployment: Deployment,
    desired: DesiredState,
    workers: Sequence[WorkerView],
    *,
    starting: Collection[str] = (),
) -> tuple[VariantRoute, ...]:
    """
    Return the routes of the variants of an endpoint or a component; without replicas while it is not in service.

    Args:
        record: the record of the endpoint or the component.
        deployment: its deployment.
        desired: the workers and the traffic that the deployment needs.
        workers: the workers that stay.
        starting: variants of which a worker is started now or soon.
    """
    progress = deployment.progress
    serving = [worker for worker in workers if worker.can_serve] if progress.state in _SERVING else []
    is_first = is_component(record) and progress.state is State.CREATING
    is_up = is_first or progress.state in _SERVING
    awake = {variant for (variant, _), count in desired.num_workers.items() if count}
    coming = {worker.variant for worker in workers if worker.is_wanted} | set(starting)
    return tuple(
        _on_standby(route, is_awaited=route.name not in awake or route.name in coming) if is_up else route
        for route in _variants(deployment, desired.traffic_fraction, serving)
    )


def _variants(
    deployment: Deployment, traffic_fraction: float, serving: Sequence[WorkerView]
) -> tuple[VariantRoute, ...]:
    old = deployment.stable or deployment.target
    new = deployment.target
    assert old is not None
    if new is None or new is old:
        return tuple(_plain_variant(variant, old, serving) for variant in old.workloads)
    revisions = {worker.revision for worker in serving}
    is_old_alone = old.number in revisions and new.number not in revisions
    fraction = 0.0 if is_old_alone else traffic_fraction
    routes = []
    for name in dict.fromkeys(workload.variant for workload in (*old.workloads, *new.workloads)):
        route = _mixed_variant(name, old, new, fraction, serving)
        if route is not None:
            routes.append(route)
    return _without_empty(routes)


def _on_standby(route: VariantRoute, *, is_awaited: bool) -> VariantRoute:
    """Mark a variant without replicas for which requests wait: it is scaled to zero, or a worker is starting."""
    if not route.fleets or any(fleet.replicas for fleet in route.fleets):
        return route
    return replace(route, standby=is_awaited)


def _without_empty(routes: Sequence[VariantRoute]) -> tuple[VariantRoute, ...]:
    """Take the weight from variants without replicas during an update, if others have some."""
    empty = {route.name for route in routes if not any(fleet.replicas for fleet in route.fleets)}
    if len(empty) == len(routes):
        return tuple(routes)
    return tuple(replace(route, weight=0.0) if route.name in empty else route for route in routes)


def _plain_variant(workload: Workload, revision: Revision, serving: Sequence[WorkerView]) -> VariantRoute:
    replicas = _replicas(serving, workload.variant, revision.number)
    fleet = Fleet(generation=revision.number, share=1.0, replicas=replicas, config=revision.config_name)
    fleets = () if workload.is_host else (fleet,)
    return _route(workload, workload.weight, fleets)


def _mixed_variant(
    name: str, old: Revision, new: Revision, fraction: float, serving: Sequence[WorkerView]
) -> VariantRoute | None:
    """Return a variant's route while `fraction` of the traffic is on the new revision; None if it has no traffic."""
    before, after = old.workload(name), new.workload(name)
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
    configs = {revision.number: revision.config_name for revision in (old, new)}
    replicas = {number: _replicas(serving, name, number) for number in intended}
    shares = effective_shares(intended, {number for number, found in replicas.items() if found})
    fleets = tuple(
        Fleet(generation=number, share=shares[number], replicas=replicas[number], config=configs[number])
        for number in sorted(intended)
    )
    return _route(shown, weight, fleets)


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
    """Return a variant's weight; normalised, the weights of a revision add up to 1."""
    if workload is None:
        return 0.0
    if not is_normalised:
        return workload.weight
    total = sum(workload.weight for workload in revision.workloads)
    return workload.weight / total if total > 0 else 1 / len(revision.workloads)


def _route(workload: Workload, weight: float, fleets: tuple[Fleet, ...]) -> VariantRoute:
    return VariantRoute(
        name=workload.variant,
        weight=weight,
        fleets=fleets,
        strategy=workload.strategy,
        prefix_routing=workload.prefix_routing,
        instance_type=workload.instance_type,
    )


def _replicas(serving: Sequence[WorkerView], variant: str, revision: int) -> tuple[Replica, ...]:
    found = sorted(
        (worker for worker in serving if worker.fleet == (variant, revision)), key=lambda worker: worker.name
    )
    return tuple(Replica(worker=worker.name, url=worker.url, token=worker.token) for worker in found)
