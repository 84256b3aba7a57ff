"""The figures of the benchmark of wake-ups."""

from benchmarks.wake.figures import Request, WakeUp, quantile, summary, table
from hypothesis import given
from hypothesis import strategies as st


def wake(*times: float | None) -> WakeUp:
    return WakeUp(number=0, requests=tuple(Request(api="d", first_s=time) for time in times))


def test_lost_and_late_requests_are_counted() -> None:
    found = summary([wake(1.0, 2.0), wake(None, 4.0)])
    assert (found["wake_ups"], found["requests"], found["lost"], found["over_goal"]) == (2, 4, 1, 1)
    assert (found["first_request_p50_s"], found["first_request_max_s"]) == (1.0, 4.0)
    assert "2 wake-ups, 4 requests, 1 lost, 1 over 3 s." in table(found)


def test_a_run_with_losses_only_has_no_times() -> None:
    assert "all_requests_p50_s" not in summary([wake(None)])


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_one_of_the_values_and_enough_are_not_above_it(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
