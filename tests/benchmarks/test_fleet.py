"""The parts of the fleet's simulation that decide."""

import pytest
from benchmarks.fleet.balance import RULES, Fleet, simulate
from benchmarks.fleet.run import gateway_cores, measure_routing


def fleet(gateways: int, load: float = 0.8) -> Fleet:
    return Fleet(replicas=20, gateways=gateways, slots=2, service_s=1.0, requests_per_s=20 * 2 * load)


@pytest.mark.parametrize("rule", RULES)
def test_no_request_waits_in_an_empty_fleet(rule):
    assert simulate(fleet(2, load=0.01), rule, num_requests=500, seed=1).p99_s < 0.5


def test_one_queue_on_one_slot_waits_as_queueing_theory_predicts():
    """M/M/1 at a load of 0.5: the mean wait is the mean service time."""
    single = Fleet(replicas=1, gateways=1, slots=1, service_s=1.0, requests_per_s=0.5)
    assert simulate(single, "random", num_requests=60_000, seed=1).mean_s == pytest.approx(1.0, rel=0.15)


def test_the_knowledge_of_one_gateway_is_worth_less_the_more_gateways_there_are():
    waits = [simulate(fleet(gateways), "own least", num_requests=10_000, seed=1).mean_s for gateways in (1, 4, 64)]
    assert waits[0] < waits[1] < waits[2]
    assert waits[2] <= simulate(fleet(1), "random", num_requests=10_000, seed=1).mean_s


def test_reports_of_other_gateways_help_when_answers_last_longer_than_the_reports_are_old():
    host = Fleet(replicas=4, gateways=4, slots=8, service_s=5.0, requests_per_s=5.12)
    own, shared, true = (
        simulate(host, rule, num_requests=6_000, seed=1).mean_s for rule in ("own least", "shared least", "true least")
    )
    assert true < shared < own


def test_cores_follow_from_the_cost_of_a_piece():
    rows = [{"api": "openai", "streams": 32, "gateway_cpu_us_a_piece": 30.0}, {"api": "openai", "streams": 1}]
    assert gateway_cores(rows) == {"openai": pytest.approx(384.0)}


def test_a_route_grows_with_its_replicas():
    assert measure_routing(100)["route_bytes"] > 5 * measure_routing(10)["route_bytes"]
