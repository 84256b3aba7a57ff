"""
Choose the replica for a request. Pure: weights, shares, loads and random numbers in, a decision out.

The decision goes from the top down: the inference component that the request names, or else the variant (named by the
request, or drawn by weight); a fleet of the variant, drawn by share; a replica of the fleet (the one that has the
session, or else by the variant's strategy). Variants and fleets without a usable replica are skipped, so that replacing
a replica fails no request while another replica can answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from hashlib import blake2b

from headrace.platform.state.routes import Fleet, PrefixRouting, Replica, Route, VariantRoute

PREFIX_BYTES = 1024
"""Bytes of a body that are compared as its prefix by default. Source: SageMaker's smallest `PrefixLength`."""

MAX_OVERLOAD = 1.25
"""Load of a replica, relative to the mean, above which it gets no more requests for the prefixes that it has cached.
Source: Mirrokni et al., Consistent hashing with bounded loads."""

MIN_BOUND = 4
"""Smallest bound on the load of a replica: a small batch costs less than a second prefill of the prefix."""

Draw = Callable[[], float]
"""Return a random number, 0 <= x < 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuery:
    """The part of a request that routing depends on."""

    target_variant: str | None = None
    endpoint_uid: str | None = None
    """The only endpoint of its name that may answer: one that was created again has another uid. None: any."""
    component: str | None = None
    """Name of an inference component."""
    container: str | None = None
    """Name of the container that answers, for replicas that have several."""
    unserved_member: str | None = None
    """A member of the request that addresses something that no endpoint has, such as `EnableExplanations`."""
    target_model: str | None = None
    """`TargetModel`: the model of a multi-model endpoint."""
    worker: str | None = None
    """The only worker that can answer, because it has the session."""
    affinity: bytes | None = None
    """The id of a session: requests with the same affinity go to the same replica under any strategy."""
    prefix: bytes = b""
    """Requests with the same prefix go to the same replica under the strategy PREFIX_AWARE."""
    longer_prefix: Callable[[int], bytes] | None = None
    """Returns the prefix for a variant's `PrefixLength`; None: `prefix`, whatever the length."""
    is_copy: bool = False
    """The request is a copy for the shadow variant `target_variant`."""
    wakes: bool = True
    """False for a request that asks for no work, such as the list of models: it wakes nothing and never waits."""
    excluded: AbstractSet[str] = frozenset()
    """Workers that must not be chosen: they failed this request before, or are in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDecision:
    variant: VariantRoute
    replica: Replica
    fleet: Fleet
    """The fleet that the replica belongs to."""
    asleep: VariantRoute | None = None
    """A variant scaled to zero that the request would have been sent to; it should be woken."""


class NotRoutable(Exception):
    """The request addresses a part that the endpoint does not have."""


class UnknownVariant(NotRoutable):
    """The request names a variant that the endpoint does not have."""


class UnservedMember(NotRoutable):
    """The request addresses a part of an endpoint that none has, such as one of several containers."""


class UnknownContainer(NotRoutable):
    """The request names a container that the endpoint does not have."""


class ContainerNeeded(NotRoutable):
    """Each request to the endpoint's containers names one of them, and this one names none."""


class TargetNeeded(NotRoutable):
    """The endpoint has many models, and the request names none."""


class UnknownComponent(NotRoutable):
    """The request names an inference component that the endpoint does not have."""


class ComponentNeeded(NotRoutable):
    """The endpoint's models are inference components, and the request names none."""


class NoReplica(Exception):
    def __init__(self, asleep: VariantRoute | None = None) -> None:
        super().__init__()
        self.asleep = asleep
        """The scaled-to-zero variant to wait for, or None."""


def choose(route: Route, query: RoutingQuery, loads: Mapping[str, int], draw: Draw) -> RoutingDecision:
    """
    Choose the replica for one request.

    Raises `NotRoutable`, or `NoReplica` if no replica is usable.
    """
    variants = _for_target(candidates(route, query), query.target_model)
    if query.worker is not None:
        return _with_session(variants, query.worker, query)
    open_to_all = [variant for variant in variants if is_open_to(variant, query)]
    usable = [(variant, fleets) for variant in open_to_all if (fleets := _usable_fleets(variant, query))]
    asleep = _variant_to_wake(open_to_all, has_others=bool(usable), draw=draw)
    if not usable:
        raise NoReplica(asleep)
    weights = [variant.weight for variant, _ in usable]
    variant, fleets = usable[_draw(weights, draw)]
    fleet, replicas = fleets[_draw([fleet.share for fleet, _ in fleets], draw)]
    return RoutingDecision(
        variant=variant,
        replica=_choose_replica(replicas, variant, query, loads, draw),
        fleet=fleet,
        asleep=asleep,
    )


def usable_replicas(route: Route, query: RoutingQuery) -> list[Replica]:
    """Return all replicas that may answer a request; raises as `choose` does."""
    return [
        replica
        for variant in candidates(route, query)
        if is_open_to(variant, query)
        for _, replicas in _usable_fleets(variant, query)
        for replica in replicas
    ]


def is_open_to(variant: VariantRoute, query: RoutingQuery) -> bool:
    """Return whether a variant or component may answer: the request names it, or its weight is above 0."""
    return query.target_variant is not None or query.component is not None or variant.weight > 0


def max_concurrency(route: Route, query: RoutingQuery) -> int | None:
    """Return the requests that may be in flight if all variants that may answer are serverless; else None."""
    limits = [variant.max_concurrency for variant in candidates(route, query) if is_open_to(variant, query)]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def replicas_of(variant: VariantRoute) -> list[Replica]:
    """Return the replicas of a variant that get new traffic."""
    return [replica for fleet in variant.fleets if fleet.share > 0 for replica in fleet.replicas]


def all_replicas(routes: Iterable[Route]) -> set[Replica]:
    """Return the replicas of all endpoints and inference components, including draining ones."""
    return {
        replica
        for route in routes
        for variant in (*route.all_variants, *(component.route for component in route.components))
        for fleet in variant.fleets
        for replica in fleet.replicas
    }


def can_answer(variant: VariantRoute, *, can_wake: bool) -> bool:
    """Return whether a variant or component has a replica, or one that a request may wait for."""
    return bool(replicas_of(variant)) or (variant.standby and can_wake)


def is_for_components(route: Route) -> bool:
    """Return whether the models of an endpoint are inference components: its variants have no replicas of their own."""
    return bool(route.components) or (bool(route.variants) and not any(variant.fleets for variant in route.variants))


def prefix_of(endpoint: str, prefix_id: str, body: bytes, num_bytes: int = PREFIX_BYTES) -> bytes:
    """Return the key that requests with the same prefix have in common, for the strategy PREFIX_AWARE."""
    return b"\0".join((endpoint.encode(), prefix_id.encode("latin-1"), body[:num_bytes]))


def candidates(route: Route, query: RoutingQuery) -> Sequence[VariantRoute]:
    """Return the variants that may answer, or the copies of the component; raises as `choose` does."""
    if query.unserved_member is not None:
        raise UnservedMember(query.unserved_member)
    if query.component is not None:
        if query.container is not None:
            raise UnservedMember("TargetContainerHostname")
        return (_component(route, query.component, query.target_variant),)
    if is_for_components(route):
        raise ComponentNeeded
    found = route.shadows if query.is_copy else route.variants
    if query.target_variant is not None:
        found = tuple(variant for variant in found if variant.name == query.target_variant)
        if not found:
            raise UnknownVariant(query.target_variant)
    able = [
        variant
        for variant in found
        if not variant.fleets or any(fleet.answers(query.container) for fleet in variant.fleets)
    ]
    if able or not found:
        return able
    if query.container is None:
        raise ContainerNeeded
    is_direct = any(fleet.is_direct for variant in found for fleet in variant.fleets)
    raise UnknownContainer(query.container) if is_direct else UnservedMember("TargetContainerHostname")


def _for_target(variants: Sequence[VariantRoute], target_model: str | None) -> Sequence[VariantRoute]:
    """Return the variants with many models for a request that names one, else those with one model."""
    found = [variant for variant in variants if bool(variant.model_prefix) is (target_model is not None)]
    if not found and target_model is not None:
        raise UnservedMember("TargetModel")
    if not found and variants:
        raise TargetNeeded
    return found


def _component(route: Route, name: str, target_variant: str | None) -> VariantRoute:
    for component in route.components:
        if component.name == name:
            if target_variant not in (None, component.variant):
                raise UnknownVariant(target_variant)
            return component.route
    raise UnknownComponent(name)


def _variant_to_wake(variants: Sequence[VariantRoute], *, has_others: bool, draw: Draw) -> VariantRoute | None:
    """Draw the scaled-to-zero variant to wake, by weight; if others can answer, only as often as it would be chosen."""
    sleeping = [variant for variant in variants if variant.standby]
    if not sleeping:
        return None
    if not has_others:
        return _draw_variant(sleeping, draw)
    drawn = _draw_variant(variants, draw)
    return drawn if drawn.standby else None


def _draw_variant(variants: Sequence[VariantRoute], draw: Draw) -> VariantRoute:
    return variants[_draw([max(variant.weight, 1e-9) for variant in variants], draw)]


def _with_session(variants: Sequence[VariantRoute], worker: str, query: RoutingQuery) -> RoutingDecision:
    for variant in variants:
        for fleet in variant.fleets:  # also those without new traffic, which still serve their sessions
            for replica in fleet.replicas:
                if replica.worker == worker and worker not in query.excluded and fleet.answers(query.container):
                    return RoutingDecision(variant=variant, replica=replica, fleet=fleet)
    raise NoReplica


def _usable_fleets(variant: VariantRoute, query: RoutingQuery) -> list[tuple[Fleet, list[Replica]]]:
    usable = []
    for fleet in variant.fleets:
        if fleet.share > 0 and fleet.answers(query.container):
            replicas = [replica for replica in fleet.replicas if replica.worker not in query.excluded]
            if replicas:
                usable.append((fleet, replicas))
    return usable


def _draw(weights: Sequence[float], draw: Draw) -> int:
    """Draw an index by weight; all weights are above 0."""
    if len(weights) == 1:
        return 0
    point = draw() * sum(weights)
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return len(weights) - 1


def _choose_replica(
    replicas: Sequence[Replica], variant: VariantRoute, query: RoutingQuery, loads: Mapping[str, int], draw: Draw
) -> Replica:
    if len(replicas) == 1:
        return replicas[0]
    if query.target_model is not None:  # a model is loaded on few replicas
        query = replace(query, prefix=query.target_model.encode(), longer_prefix=None)
        return _by_prefix(replicas, variant.prefix_routing, query, loads)
    if query.affinity is not None:
        return _by_affinity(replicas, query.affinity)[0]
    if variant.strategy == "PREFIX_AWARE":
        return _by_prefix(replicas, variant.prefix_routing, query, loads)
    if variant.strategy == "LEAST_OUTSTANDING_REQUESTS":
        least = min(loads.get(replica.worker, 0) for replica in replicas)
        replicas = [replica for replica in replicas if loads.get(replica.worker, 0) == least]
    return replicas[min(int(draw() * len(replicas)), len(replicas) - 1)]


def _by_prefix(
    replicas: Sequence[Replica], routing: PrefixRouting, query: RoutingQuery, loads: Mapping[str, int]
) -> Replica:
    """Return the replica that has the prefix cached, or the next one below the bound on its load."""
    counts = [loads.get(replica.worker, 0) for replica in replicas]
    key = query.prefix
    if routing.num_bytes is not None and query.longer_prefix is not None:
        key = query.longer_prefix(routing.num_bytes)
    bound = load_bound(counts) if routing.max_load is None else max(routing.max_load, min(counts) + 1)
    return next(replica for replica in _by_affinity(replicas, key) if loads.get(replica.worker, 0) < bound)


def load_bound(loads: Sequence[int]) -> int:
    """Return the load at which a replica gets no more requests for a prefix; the least loaded is always below it."""
    return max(MIN_BOUND, math.ceil(MAX_OVERLOAD * (sum(loads) + 1) / len(loads)))


def _by_affinity(replicas: Sequence[Replica], key: bytes) -> list[Replica]:
    """
    Sort the replicas by their rendezvous hash with `key`, best first.

    When a replica leaves, only its keys move; when one joins, it takes an equal share from each of the others.
    """

    def score(replica: Replica) -> bytes:
        return blake2b(key, key=blake2b(replica.worker.encode(), digest_size=32).digest(), digest_size=8).digest()

    return sorted(replicas, key=score, reverse=True)
