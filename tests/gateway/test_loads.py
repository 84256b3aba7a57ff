"""Outstanding requests are counted exactly."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.loads import Loads


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20))))
def test_what_is_held_is_what_was_not_released_however_often_and_in_whatever_order(steps):
    loads, holds, expected = Loads(), [], Counter()
    for worker, index in steps:
        holds.append((worker, loads.hold(worker)))
        expected[worker] += 1
        name, hold = holds[index % len(holds)]
        if hold is not None:
            hold.release()
            hold.release()
            expected[name] -= 1
            holds[index % len(holds)] = (name, None)
        assert dict(loads) == dict(+expected)
    for _, hold in holds:
        if hold is not None:
            hold.release()
    assert not loads
