"""In-flight requests are counted exactly."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.replica_state import Loads


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20))))
def test_loads_count_the_leases_not_released_yet_in_any_order_of_releases(steps):
    loads, leases, expected = Loads(), [], Counter()
    for worker, index in steps:
        leases.append((worker, loads.acquire(worker)))
        expected[worker] += 1
        name, lease = leases[index % len(leases)]
        if lease is not None:
            lease.release()
            lease.release()
            expected[name] -= 1
            leases[index % len(leases)] = (name, None)
        assert dict(loads) == dict(+expected)
    for _, lease in leases:
        if lease is not None:
            lease.release()
    assert not loads


def test_the_requests_of_other_gateways_count_until_they_report_others():
    loads = Loads()
    lease = loads.acquire("a")
    loads.set_others({"a": 2, "b": 1})
    assert dict(loads) == {"a": 3, "b": 1}
    assert loads.own() == {"a": 1}, "what this gateway reports itself"
    lease.release()
    assert dict(loads) == {"a": 2, "b": 1}
    loads.set_others({})
    assert not loads


def test_a_report_of_the_other_gateways_may_release_requests():
    loads, reports = Loads(), []
    loads.on_release(lambda: reports.append(dict(loads)))
    loads.set_others({"a": 2})
    loads.set_others({})
    assert reports == [{"a": 2}, {}]
