"""The choice of a replica: weights, shares, sessions, prefixes, loads."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.platform.gateway.routing import (
    ContainerNeeded,
    NoReplica,
    NotRoutable,
    RoutingQuery,
    UnknownContainer,
    UnknownVariant,
    UnservedMember,
    choose,
    load_bound,
    prefix_of,
    replicas_of,
)
from headrace.platform.state.routes import ANY_CONTAINER, PrefixRouting, Route

from .routes import route, variant

NUMBER = st.floats(0, 1, exclude_max=True)
WORKERS = [f"http://w{number}" for number in range(9)]
STRATEGIES = ["RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE"]


@st.composite
def routes(draw) -> Route:
    names = iter(WORKERS)
    variants = []
    for number in range(draw(st.integers(1, 3))):
        fleets = [list(itertools.islice(names, draw(st.integers(0, 3)))) for _ in range(draw(st.integers(1, 2)))]
        shares = [draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) for _ in fleets]
        weight = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
        strategy = draw(st.sampled_from(STRATEGIES))
        variants.append(variant(f"v{number}", *fleets, weight=weight, shares=shares, strategy=strategy))
    return route(*variants)


def usable(of: Route, *, target: str | None, excluded: set[str]) -> set[str]:
    return {
        replica.worker
        for variant in of.variants
        if (variant.weight > 0 if target is None else variant.name == target)
        for fleet in variant.fleets
        if fleet.share > 0
        for replica in fleet.replicas
    } - excluded


@given(
    routes(),
    st.sets(st.sampled_from(WORKERS)),
    st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 50)),
    st.binary(max_size=5),
    st.sampled_from([None, "v0", "v1"]),
    st.lists(NUMBER, min_size=3, max_size=3),
)
def test_the_chosen_replica_is_usable_and_there_is_one_if_possible(of, excluded, loads, prefix, target, numbers):
    assume(target is None or any(variant.name == target for variant in of.variants))
    query = RoutingQuery(target_variant=target, prefix=prefix, excluded=frozenset(excluded))
    possible = usable(of, target=target, excluded=excluded)
    if not possible:
        with pytest.raises(NoReplica):
            choose(of, query, loads, iter(numbers).__next__)
        return
    decision = choose(of, query, loads, iter(numbers).__next__)
    assert decision.replica.worker in possible
    assert any(decision.replica in fleet.replicas for fleet in decision.variant.fleets)


def shares_of(of: Route, **query) -> Counter:
    """Count the chosen workers over an even grid of random numbers."""
    steps = [(index + 0.5) / 20 for index in range(20)]
    return Counter(
        choose(of, RoutingQuery(**query), {}, iter(numbers).__next__).replica.worker
        for numbers in itertools.product(steps, repeat=2)
    )


def test_variants_get_their_weights():
    of = route(
        variant("a", ["http://a"], weight=3), variant("b", ["http://b"], weight=1), variant("c", ["http://c"], weight=0)
    )
    assert shares_of(of) == {"http://a": 300, "http://b": 100}


def test_fleets_get_their_shares_of_a_variant():
    of = route(variant("a", ["http://old"], ["http://new"], shares=[0.9, 0.1]))
    assert shares_of(of) == {"http://old": 360, "http://new": 40}


def test_random_routing_gives_replicas_equal_shares():
    of = route(variant("a", ["http://x", "http://y"]))
    assert shares_of(of) == {"http://x": 200, "http://y": 200}


def test_a_named_variant_answers_at_any_weight():
    of = route(variant("a", ["http://a"]), variant("b", ["http://b"], weight=0))
    assert shares_of(of, target_variant="b") == {"http://b": 400}
    with pytest.raises(UnknownVariant, match="x"):
        shares_of(of, target_variant="x")


def test_a_variant_without_replicas_is_skipped_unless_it_is_named():
    of = route(variant("a", []), variant("b", ["http://b"]))
    assert shares_of(of) == {"http://b": 400}
    with pytest.raises(NoReplica):
        shares_of(of, target_variant="a")


@given(st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 9)), NUMBER)
def test_least_outstanding_requests_chooses_one_of_the_least_loaded(loads, number):
    of = route(variant("a", WORKERS, strategy="LEAST_OUTSTANDING_REQUESTS"))
    chosen = choose(of, RoutingQuery(), loads, lambda: number).replica.worker
    assert loads.get(chosen, 0) == min(loads.get(worker, 0) for worker in WORKERS)


@given(st.binary(max_size=20), st.lists(st.sampled_from(WORKERS), min_size=2, unique=True), st.data())
def test_a_prefix_stays_on_its_replica_when_others_leave_or_join(prefix, workers, data):
    def home(replicas):
        return choose(
            route(variant("a", replicas, strategy="PREFIX_AWARE")), RoutingQuery(prefix=prefix), {}, lambda: 0.5
        ).replica.worker

    before = home(workers)
    gone = data.draw(st.sampled_from(workers))
    after = home([worker for worker in workers if worker != gone])
    assert before in {after, gone}


@given(st.binary(max_size=20), st.lists(st.integers(0, 100), min_size=2, max_size=9))
def test_a_prefix_never_overloads_its_replica(prefix, counts):
    workers = WORKERS[: len(counts)]
    loads = dict(zip(workers, counts, strict=True))
    of = route(variant("a", workers, strategy="PREFIX_AWARE"))
    chosen = choose(of, RoutingQuery(prefix=prefix), loads, lambda: 0.5).replica.worker
    assert loads[chosen] < load_bound(counts)


def test_prefixes_are_spread_over_the_replicas():
    of = route(variant("a", WORKERS[:4], strategy="PREFIX_AWARE"))
    homes = Counter(choose(of, RoutingQuery(prefix=b"%d" % n), {}, lambda: 0.5).replica.worker for n in range(1000))
    assert len(homes) == 4
    assert min(homes.values()) > 150


def test_a_variant_sets_the_length_of_its_prefix_and_the_load_at_which_a_replica_gets_no_more() -> None:
    def home(body: bytes, loads: dict[str, int], **routing: int) -> str:
        of = route(replace(variant("a", WORKERS, strategy="PREFIX_AWARE"), prefix_routing=PrefixRouting(**routing)))
        query = RoutingQuery(prefix=prefix_of("ep", "", body), longer_prefix=partial(prefix_of, "ep", "", body))
        return choose(of, query, loads, lambda: 0.5).replica.worker

    bodies = [b"x" * 1024 + b"%d" % number for number in range(50)]
    assert len({home(body, {}) for body in bodies}) == 1
    assert len({home(body, {}, num_bytes=1024) for body in bodies}) == 1
    assert len({home(body, {}, num_bytes=2048) for body in bodies}) > 3
    best = home(b"x", {}, max_load=2)
    assert home(b"x", {best: 1}, max_load=2) == best
    assert home(b"x", {best: 2}, max_load=2) != best
    assert home(b"x", {best: 9}, max_load=10) == best
    full = dict.fromkeys(WORKERS, 7)
    assert home(b"x", full, max_load=2) == best, "all have reached the threshold"


def test_bodies_that_differ_after_the_first_kilobyte_have_the_same_prefix():
    body = b"x" * 1024
    assert prefix_of("ep", "", body + b"1") == prefix_of("ep", "", body + b"2")
    assert prefix_of("ep", "a", body) != prefix_of("ep", "b", body) != prefix_of("other", "b", body)


def test_a_session_goes_to_its_worker_even_without_new_traffic():
    of = route(variant("a", ["http://old"], ["http://new"], shares=[0, 1]))
    assert choose(of, RoutingQuery(worker="http://old"), {}, lambda: 0).replica.worker == "http://old"
    with pytest.raises(NoReplica):
        choose(of, RoutingQuery(worker="http://gone"), {}, lambda: 0)


def test_an_unknown_session_always_goes_to_the_same_replica():
    of = route(variant("a", WORKERS))
    assert (
        len({choose(of, RoutingQuery(affinity=b"s1"), {}, lambda n=n: n / 10).replica.worker for n in range(10)}) == 1
    )


def test_a_draw_on_the_border_of_two_weights_is_of_the_second():
    of = route(variant("a", ["http://a"]), variant("b", ["http://b"]))
    assert choose(of, RoutingQuery(), {}, lambda: 0.5).variant.name == "b"
    assert choose(of, RoutingQuery(), {}, lambda: 0.499).variant.name == "a"


@pytest.mark.parametrize(("loads", "bound"), [([0, 0], 4), ([16, 16], 21), ([40, 0, 0, 0], 13), ([3, 5], 6)])
def test_the_bound_of_a_prefix_is_a_quarter_above_the_mean_load(loads, bound):
    assert load_bound(loads) == bound


def test_a_fleet_without_a_share_has_no_replicas_for_new_traffic():
    old_and_new = variant("v", ["http://old"], ["http://new"], shares=[0.0, 1.0])
    assert [replica.url for replica in replicas_of(old_and_new)] == ["http://new"]


@pytest.mark.parametrize(
    ("containers", "query", "expected"),
    [
        ((), RoutingQuery(), "old"),
        ((), RoutingQuery(container="a"), UnservedMember),
        (("a", "b"), RoutingQuery(), "new"),
        (("a", "b"), RoutingQuery(container="a"), UnservedMember),
        (("a", "b", "direct"), RoutingQuery(), ContainerNeeded),
        (("a", "b", "direct"), RoutingQuery(container="c"), UnknownContainer),
        (("a", "b", "direct"), RoutingQuery(container="b"), "new"),
        (("a", "b", "direct"), RoutingQuery(container=ANY_CONTAINER), "new"),
    ],
)
def test_a_request_reaches_only_a_fleet_with_its_container(
    containers: tuple[str, ...], query: RoutingQuery, expected: "str | type[NotRoutable]"
) -> None:
    """Before an update, and while the fleets of both revisions have traffic, a request never reaches another model."""
    names = containers[:2]
    old, new = variant("v", ["old"], ["new"]).fleets
    new = replace(new, containers=names, is_direct="direct" in containers)
    alone = route(replace(variant("v"), fleets=(new if names else old,)))
    if isinstance(expected, str):
        assert choose(alone, query, {}, lambda: 0.0).replica.worker == expected
    else:
        with pytest.raises(expected):
            choose(alone, query, {}, lambda: 0.0)
    both = route(replace(variant("v"), fleets=(old, new)))
    if new.is_direct:
        for draw in (partial(float, 0.0), partial(float, 0.9)):
            assert choose(both, RoutingQuery(), {}, draw).replica.worker == "old"
            assert choose(both, RoutingQuery(container="a"), {}, draw).replica.worker == "new"
