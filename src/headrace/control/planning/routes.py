"""What the gateway is told of an endpoint. Pure: progress and workers give a `Route`."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.control.model.fleet import WorkerView
from headrace.control.model.progress import EndpointView, State
from headrace.control.model.version import Variant, Version
from headrace.control.planning.rollout import Deployment, traffic_fraction, wanted_workers
from headrace.state.routes import AsyncOutput, Fleet, Replica, Route, VariantRoute

_SERVING = frozenset({State.IN_SERVICE, State.UPDATING, State.ROLLING_BACK, State.UPDATE_ROLLBACK_FAILED})


def plan_route(
    view: EndpointView,
    deployment: Deployment,
    workers: Sequence[WorkerView],
    *,
    endpoint_arn: str,
    starting: Collection[str] = (),
) -> Route:
    """
    Who serves which part of the traffic; no replicas while the endpoint is not in service.

    Args:
        view: the endpoint's record.
        deployment: how far it is.
        workers: all that stay.
        endpoint_arn: for the route.
        starting: variants of which a worker is going to be made now or soon.
    """
    progress = deployment.progress
    serving = [worker for worker in workers if worker.can_serve] if progress.state in _SERVING else []
    coming = {worker.variant for worker in workers if worker.is_wanted} | set(starting)
    return Route(
        endpoint=view.name,
        endpoint_arn=endpoint_arn,
        endpoint_uid=view.uid,
        created_s=view.created_s,
        status=progress.state.value,
        variants=tuple(_on_standby(one, view, deployment, coming) for one in _variants(deployment, serving)),
        async_output=_async_output(deployment),
    )


def _variants(deployment: Deployment, serving: Sequence[WorkerView]) -> tuple[VariantRoute, ...]:
    old = deployment.stable or deployment.target
    new = deployment.target
    assert old is not None
    if new is None or new is old:
        return tuple(_plain_variant(variant, old, serving) for variant in old.variants)
    generations = {worker.generation for worker in serving}
    is_old_alone = old.generation in generations and new.generation not in generations
    fraction = 0.0 if is_old_alone else traffic_fraction(deployment)
    routes = []
    for name in dict.fromkeys(one.name for one in (*old.variants, *new.variants)):
        route = _mixed_variant(name, old, new, fraction, serving)
        if route is not None:
            routes.append(route)
    return _without_empty(routes)


def _on_standby(
    route: VariantRoute, view: EndpointView, deployment: Deployment, coming: Collection[str]
) -> VariantRoute:
    """Says so of a variant that nobody serves, if it sleeps at zero or somebody is on the way."""
    is_first = view.is_component and deployment.progress.state is State.CREATING
    is_up = is_first or deployment.progress.state in _SERVING
    if not is_up or not route.fleets or any(fleet.replicas for fleet in route.fleets):
        return route
    is_asleep = not any(count for (name, _), count in wanted_workers(deployment).items() if name == route.name)
    return replace(route, standby=is_asleep or route.name in coming)


def _without_empty(routes: Sequence[VariantRoute]) -> tuple[VariantRoute, ...]:
    """During an update, a variant that nobody serves leaves its traffic to the others, if these are served."""
    empty = {one.name for one in routes if not any(fleet.replicas for fleet in one.fleets)}
    if len(empty) == len(routes):
        return tuple(routes)
    return tuple(replace(one, weight=0.0) if one.name in empty else one for one in routes)


def _plain_variant(variant: Variant, version: Version, serving: Sequence[WorkerView]) -> VariantRoute:
    replicas = _replicas(serving, variant.name, version.generation)
    fleets = (Fleet(generation=version.generation, share=1.0, replicas=replicas),) if variant.model else ()
    return _route(variant, variant.weight, fleets)


def _mixed_variant(
    name: str, old: Version, new: Version, fraction: float, serving: Sequence[WorkerView]
) -> VariantRoute | None:
    """A variant while `fraction` of the traffic is on the new version; None if it has no traffic yet, or no more."""
    before, after = old.variant(name), new.variant(name)
    if (before is None and fraction <= 0) or (after is None and fraction >= 1):
        return None
    is_mixed = 0 < fraction < 1
    traffic = {
        old.generation: (1 - fraction) * _weight(before, old, is_normalised=is_mixed),
        new.generation: fraction * _weight(after, new, is_normalised=is_mixed),
    }
    weight = sum(traffic.values())
    intended = {
        version.generation: traffic[version.generation] / weight if weight > 0 else part
        for version, variant, part in ((old, before, 1 - fraction), (new, after, fraction))
        if variant is not None and variant.model is not None
    }
    shown = after if before is None or (after is not None and fraction >= 1) else before
    assert shown is not None
    replicas = {generation: _replicas(serving, name, generation) for generation in intended}
    shares = effective_shares(intended, {generation for generation, found in replicas.items() if found})
    fleets = tuple(
        Fleet(generation=generation, share=shares[generation], replicas=replicas[generation])
        for generation in sorted(intended)
    )
    return _route(shown, weight, fleets)


def effective_shares(intended: dict[int, float], able: set[int]) -> dict[int, float]:
    """
    Shares of a variant's fleets, adding up to 1.

    A fleet without a replica that serves gives its share to the others in proportion, or, if these were to have none,
    in equal parts: an answer of either version is better than an error.
    """
    if not able:
        total = sum(intended.values())
        even = 1 / len(intended) if intended else 0.0
        return {generation: share / total if total > 0 else even for generation, share in intended.items()}
    total = sum(intended[generation] for generation in able)
    return {
        generation: (share / total if total > 0 else 1 / len(able)) if generation in able else 0.0
        for generation, share in intended.items()
    }


def _weight(variant: Variant | None, version: Version, *, is_normalised: bool) -> float:
    """A variant's weight; normalised, the weights of a version add up to 1."""
    if variant is None:
        return 0.0
    if not is_normalised:
        return variant.weight
    total = sum(one.weight for one in version.variants)
    return variant.weight / total if total > 0 else 1 / len(version.variants)


def _route(variant: Variant, weight: float, fleets: tuple[Fleet, ...]) -> VariantRoute:
    return VariantRoute(
        name=variant.name,
        weight=weight,
        fleets=fleets,
        strategy=variant.strategy,
        instance_type=variant.instance_type,
    )


def _replicas(serving: Sequence[WorkerView], variant: str, generation: int) -> tuple[Replica, ...]:
    found = [worker for worker in serving if worker.fleet == (variant, generation)]
    return tuple(
        Replica(worker=one.name, url=one.url, token=one.token) for one in sorted(found, key=lambda one: one.name)
    )


def _async_output(deployment: Deployment) -> AsyncOutput | None:
    """`AsyncInferenceConfig` of the version that serves."""
    version = deployment.stable or deployment.target
    assert version is not None
    config = version.raw["config"].get("AsyncInferenceConfig")
    if config is None:
        return None
    output, client = config["OutputConfig"], config.get("ClientConfig") or {}
    return AsyncOutput(
        output_path=output.get("S3OutputPath", ""),
        failure_path=output.get("S3FailurePath"),
        max_concurrent_per_replica=int(client.get("MaxConcurrentInvocationsPerInstance", 4)),
    )
