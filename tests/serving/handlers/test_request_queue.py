"""The pure decisions of the pool."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.request_queue import Failures, Take, Wait, next_batch
from headrace.serving.handlers.spec import RestartPolicy

TIMES = st.floats(0, 1e6)


@given(st.integers(1, 100), TIMES, st.integers(1, 32), TIMES, st.booleans())
def test_a_batch_has_items_and_never_more_than_its_size_or_than_there_are(
    num_alike: int, waited_s: float, batch_size: int, max_delay_s: float, is_closed: bool
) -> None:
    decision = next_batch(num_alike, waited_s, batch_size=batch_size, max_delay_s=max_delay_s, is_closed=is_closed)
    if isinstance(decision, Take):
        assert 1 <= decision.num_items <= min(num_alike, batch_size)
    else:
        assert 0 < decision.delay_s <= max_delay_s
        assert num_alike < batch_size
        assert not is_closed


def test_a_full_batch_starts_at_once_and_a_part_of_one_after_the_delay_of_its_first_item() -> None:
    assert next_batch(4, 0.0, batch_size=4, max_delay_s=1.0, is_closed=False) == Take(4)
    assert next_batch(9, 0.0, batch_size=4, max_delay_s=1.0, is_closed=False) == Take(4)
    assert next_batch(3, 0.25, batch_size=4, max_delay_s=1.0, is_closed=False) == Wait(0.75)
    assert next_batch(3, 1.0, batch_size=4, max_delay_s=1.0, is_closed=False) == Take(3)
    assert next_batch(3, 0.0, batch_size=4, max_delay_s=1.0, is_closed=True) == Take(3)


def test_the_delays_of_restarts_grow_to_their_limit() -> None:
    failures, delays = Failures(), []
    for second in range(10):
        failures = failures.add(float(second))
        delays.append(failures.restart_delay_s())
    assert delays == [0, 1, 1, 2, 3, 5, 8, 13, 13, 13]
    assert failures == Failures(10, 0.0)


def test_a_model_is_given_up_by_the_number_of_failures_or_by_their_time() -> None:
    failed_once = Failures().add(100.0)
    assert not failed_once.gives_up(RestartPolicy(), 1e9)
    assert failed_once.gives_up(RestartPolicy(max_failures=0), 100.0)
    assert not failed_once.gives_up(RestartPolicy(max_failures=1), 1e9)
    assert failed_once.add(101.0).gives_up(RestartPolicy(max_failures=1), 101.0)
    assert not failed_once.gives_up(RestartPolicy(max_retry_s=300), 399.0)
    assert failed_once.gives_up(RestartPolicy(max_retry_s=300), 400.0)
