"""
Which replica answers a request. Pure: weights, shares, loads and random numbers in, a choice out.

In this order: the inference component that the request names, if the endpoint has components; else the variant (named
by the request, or drawn by weight); the fleet of the variant (drawn by share), the
replica of the fleet (the one of the session; else by the variant's strategy). What has no replica that may be used is
passed over, so that a replica that is being replaced costs no request as long as another one can answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import blake2b

from headrace.state.routes import Fleet, Replica, Route, VariantRoute

PREFIX_BYTES = 1024
"""So much of a body tells which prefix it has. Source: SageMaker's smallest `PrefixLength`."""

MAX_OVERLOAD = 1.25
"""A replica gets requests for the prefixes that it knows until it has so many times the mean load. Source: Mirrokni et
al., Consistent hashing with bounded loads."""

MIN_BOUND = 4
"""And at least so many: a small batch costs less than reading a prefix again."""

Draw = Callable[[], float]
"""A random number, 0 <= x < 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuery:
    """What of a request matters for its way."""

    target_variant: str | None = None
    component: str | None = None
    """Name of an inference component."""
    worker: str | None = None
    """Only this one will do: it has the session."""
    affinity: bytes | None = None
    """Requests with the same go to the same replica, whatever the strategy: the id of a session."""
    prefix: bytes = b""
    """The same for the strategy PREFIX_AWARE only."""
    excluded: AbstractSet[str] = frozenset()
    """Workers that were tried in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDecision:
    """Who answers."""

    variant: VariantRoute
    replica: Replica
    asleep: VariantRoute | None = None
    """A variant that this request would have gone to if it did not sleep; it should be woken."""


class UnknownVariant(Exception):
    """The request names a variant that the endpoint does not have."""


class UnknownComponent(Exception):
    """The request names an inference component that the endpoint does not have."""


class ComponentNeeded(Exception):
    """The endpoint's models are inference components, and the request names none."""


class NoReplica(Exception):
    """Nobody can answer now."""

    def __init__(self, asleep: VariantRoute | None = None) -> None:
        super().__init__()
        self.asleep = asleep
        """Of this a replica may be waited for; None: of nothing."""


def choose(route: Route, query: RoutingQuery, loads: Mapping[str, int], draw: Draw) -> RoutingDecision:
    """
    Choose the replica for one request.

    Raises:
        UnknownVariant: there is no variant of the name asked for.
        UnknownComponent: there is no inference component of the name asked for.
        ComponentNeeded: the request must name one.
        NoReplica: no replica may be used.
    """
    variants = candidates(route, query)
    if query.worker is not None:
        return _of_session(variants, query.worker, query.excluded)
    open_to_all = [variant for variant in variants if is_open_to(variant, query)]
    usable = [(variant, fleets) for variant in open_to_all if (fleets := _usable_fleets(variant, query.excluded))]
    asleep = _asleep(open_to_all, has_others=bool(usable), draw=draw)
    if not usable:
        raise NoReplica(asleep)
    weights = [variant.weight for variant, _ in usable]
    variant, fleets = usable[0] if len(usable) == 1 else usable[_draw(weights, draw)]
    _, replicas = fleets[0] if len(fleets) == 1 else fleets[_draw([fleet.share for fleet, _ in fleets], draw)]
    return RoutingDecision(variant=variant, replica=_replica(replicas, variant, query, loads, draw), asleep=asleep)


def usable_replicas(route: Route, query: RoutingQuery) -> list[Replica]:
    """All replicas that may answer a request; raises as `choose` does."""
    return [
        replica
        for variant in candidates(route, query)
        if is_open_to(variant, query)
        for _, replicas in _usable_fleets(variant, query.excluded)
        for replica in replicas
    ]


def is_open_to(variant: VariantRoute, query: RoutingQuery) -> bool:
    """Whether a variant, or component, may answer: it is named, or has a part of the traffic."""
    return query.target_variant is not None or query.component is not None or variant.weight > 0


def replicas_of(variant: VariantRoute) -> list[Replica]:
    """All replicas that get new traffic."""
    return [replica for fleet in variant.fleets if fleet.share > 0 for replica in fleet.replicas]


def can_answer(variant: VariantRoute, *, can_wake: bool) -> bool:
    """Whether a variant, or a component, has a replica, or one that a request may wait for."""
    return bool(replicas_of(variant)) or (variant.standby and can_wake)


def is_for_components(route: Route) -> bool:
    """Whether an endpoint's models are inference components: its own variants have none."""
    return bool(route.components) or (bool(route.variants) and not any(one.fleets for one in route.variants))


def prefix_of(endpoint: str, prefix_id: str, body: bytes) -> bytes:
    """What makes requests alike for the strategy PREFIX_AWARE."""
    return b"\0".join((endpoint.encode(), prefix_id.encode("latin-1"), body[:PREFIX_BYTES]))


def candidates(route: Route, query: RoutingQuery) -> Sequence[VariantRoute]:
    """The variants that may answer, or the copies of the component; raises as `choose` does."""
    if query.component is not None:
        return (_component(route, query.component, query.target_variant),)
    if is_for_components(route):
        raise ComponentNeeded
    if query.target_variant is None:
        return route.variants
    found = [variant for variant in route.variants if variant.name == query.target_variant]
    if not found:
        raise UnknownVariant(query.target_variant)
    return found


def _component(route: Route, name: str, target_variant: str | None) -> VariantRoute:
    for component in route.components:
        if component.name == name:
            if target_variant not in (None, component.variant):
                raise UnknownVariant(target_variant)
            return component.route
    raise UnknownComponent(name)


def _asleep(variants: Sequence[VariantRoute], *, has_others: bool, draw: Draw) -> VariantRoute | None:
    """Which sleeping variant to wake: one by weight, and where others can answer only as often as it would be drawn."""
    sleeping = [variant for variant in variants if variant.standby]
    if not sleeping:
        return None
    if not has_others:
        return sleeping[0] if len(sleeping) == 1 else sleeping[_draw([max(one.weight, 1e-9) for one in sleeping], draw)]
    drawn = variants[_draw([max(variant.weight, 1e-9) for variant in variants], draw)]
    return drawn if drawn.standby else None


def _of_session(variants: Sequence[VariantRoute], worker: str, excluded: AbstractSet[str]) -> RoutingDecision:
    for variant in variants:
        for fleet in variant.fleets:  # also one that gets no new traffic: its sessions go on
            for replica in fleet.replicas:
                if replica.worker == worker and worker not in excluded:
                    return RoutingDecision(variant=variant, replica=replica)
    raise NoReplica


def _usable_fleets(variant: VariantRoute, excluded: AbstractSet[str]) -> list[tuple[Fleet, list[Replica]]]:
    usable = []
    for fleet in variant.fleets:
        if fleet.share > 0:
            replicas = [replica for replica in fleet.replicas if replica.worker not in excluded]
            if replicas:
                usable.append((fleet, replicas))
    return usable


def _draw(weights: Sequence[float], draw: Draw) -> int:
    """An index, by weight; all weights are above 0."""
    point = draw() * sum(weights)
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return len(weights) - 1


def _replica(
    replicas: Sequence[Replica], variant: VariantRoute, query: RoutingQuery, loads: Mapping[str, int], draw: Draw
) -> Replica:
    if len(replicas) == 1:
        return replicas[0]
    if query.affinity is not None:
        return _by_affinity(replicas, query.affinity)[0]
    if variant.strategy == "PREFIX_AWARE":
        bound = load_bound([loads.get(replica.worker, 0) for replica in replicas])
        ranked = _by_affinity(replicas, query.prefix)
        return next(replica for replica in ranked if loads.get(replica.worker, 0) < bound)
    if variant.strategy == "LEAST_OUTSTANDING_REQUESTS":
        least = min(loads.get(replica.worker, 0) for replica in replicas)
        replicas = [replica for replica in replicas if loads.get(replica.worker, 0) == least]
    return replicas[min(int(draw() * len(replicas)), len(replicas) - 1)]


def load_bound(loads: Sequence[int]) -> int:
    """A replica with so many requests gets no more because of a prefix; the least loaded one is always below it."""
    return max(MIN_BOUND, math.ceil(MAX_OVERLOAD * (sum(loads) + 1) / len(loads)))


def _by_affinity(replicas: Sequence[Replica], key: bytes) -> list[Replica]:
    """
    The replicas, the best for `key` first.

    Rendezvous hashing: if a replica goes, only the keys that it had move; if one comes, it takes its part of each.
    """

    def score(replica: Replica) -> bytes:
        return blake2b(key, key=blake2b(replica.worker.encode(), digest_size=32).digest(), digest_size=8).digest()

    return sorted(replicas, key=score, reverse=True)
