"""In-flight requests are counted exactly; quarantines of workers, how long they are, and when they are forgotten."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.gateway.replica_state import FIRST_S, LONGEST_S, Loads, Quarantine
from headrace.platform.state.routes import Replica


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


U, V = (Replica(worker=name, url="http://same") for name in "uv")


def test_a_quarantine_doubles_each_time_and_is_forgotten_when_it_is_lifted_or_the_replica_is_gone() -> None:
    ended: list[float] = []

    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        quarantine = Quarantine(on_end=lambda: ended.append(loop.time()))
        waits = []
        for _ in range(7):
            quarantine.add(U)
            quarantine.add(U)
            assert U in quarantine
            end = quarantine._entries[U].end
            assert end is not None
            waits.append(end.when() - loop.time())
            end.cancel()
            quarantine._ended(quarantine._entries[U])
            assert U not in quarantine
        quarantine.add(U)
        quarantine.lift(U)
        assert U not in quarantine
        quarantine.add(U)
        quarantine.add(V)
        quarantine.retain({V})
        assert (U in quarantine, V in quarantine) == (False, True)
        quarantine.retain(())
        assert not quarantine
        return waits

    waits = asyncio.run(scene())
    assert waits == pytest.approx([FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S], abs=0.1)
    assert len(ended) == 8
