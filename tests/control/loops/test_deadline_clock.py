"""The clock of the reconciler's deadlines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.loops.deadline_clock import Clocks, DeadlineClock
from headrace.control.planning.config import CLOCK_JUMP_S, ReconcilerConfig
from tests.control.support import AWS_SCOPE

START_S = 1_000_000.0


class Machine:
    """A wall clock, and a monotonic one."""

    def __init__(self) -> None:
        self.wall_s = START_S
        self.monotonic_s = 50.0
        clocks = Clocks(lambda: self.wall_s, lambda: self.monotonic_s)
        self.watched = DeadlineClock(ReconcilerConfig(), clocks, aws_scope=AWS_SCOPE)

    def pass_time(self, seconds: float, *, jump_s: float = 0.0) -> None:
        self.wall_s += seconds + jump_s
        self.monotonic_s += seconds

    def waited_s(self, since_s: float) -> float:
        context = self.watched.read()
        assert context.now_s == self.wall_s
        return context.waited_s(since_s)


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_time_that_passes_is_no_jump(steps: list[float]) -> None:
    machine = Machine()
    for seconds in steps:
        machine.pass_time(seconds)
        assert machine.waited_s(START_S) == pytest.approx(machine.wall_s - START_S, abs=1e-6)


@given(st.floats(0, 500), st.floats(1.5, 600), st.floats(0, 500))
def test_deadlines_begin_again_when_the_clock_jumps_forward(before_s: float, jump_s: float, after_s: float) -> None:
    machine = Machine()
    machine.pass_time(before_s, jump_s=jump_s)
    assert machine.waited_s(START_S) == 0.0
    machine.pass_time(after_s)
    assert machine.waited_s(START_S) == pytest.approx(after_s, abs=1e-6)


@given(st.floats(2, 600), st.floats(0, 2000))
def test_a_clock_that_is_set_back_delays_a_deadline_at_most_by_as_much(jump_s: float, after_s: float) -> None:
    machine = Machine()
    machine.pass_time(0.5, jump_s=-jump_s)
    assert -CLOCK_JUMP_S <= machine.waited_s(START_S) <= 1e-6
    machine.pass_time(after_s)
    assert max(-CLOCK_JUMP_S, after_s - jump_s) - 1e-6 <= machine.waited_s(START_S) <= after_s + 1e-6


def test_small_steps_count_for_deadlines_until_they_make_a_jump() -> None:
    machine = Machine()
    machine.pass_time(10.0, jump_s=-0.9 * CLOCK_JUMP_S)
    assert machine.waited_s(START_S) == pytest.approx(10.0 - 0.9 * CLOCK_JUMP_S)
    machine.pass_time(10.0, jump_s=-0.9 * CLOCK_JUMP_S)
    assert machine.waited_s(START_S) == 0.0


def test_a_time_just_ahead_of_the_clock_has_not_been_waited_for() -> None:
    machine = Machine()
    machine.pass_time(100.0)
    assert machine.waited_s(machine.wall_s + 0.5) == pytest.approx(-0.5)
