"""A step hangs if none ends for the limit while there are requests; waiting requests and idle times are no hang."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.backends.vllm.step_watch import Silence, StepWatch

LIMIT_S = 100.0


@dataclass(eq=False)
class FakeTimer:
    due_s: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class FakeLoop:
    """An event loop whose time passes when the test says so."""

    now_s: float = 0.0
    timers: list[FakeTimer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None], /) -> FakeTimer:
        self.timers.append(FakeTimer(self.now_s + delay, callback))
        return self.timers[-1]

    def pending(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def run(self, seconds: float) -> None:
        """Let time pass, with the timers that are due on the way."""
        end_s = self.now_s + seconds
        while due := sorted((timer for timer in self.pending() if timer.due_s <= end_s), key=lambda timer: timer.due_s):
            self.timers.remove(due[0])
            self.now_s = max(self.now_s, due[0].due_s) + 1e-6  # a callback never comes exactly in time
            due[0].callback()
        self.now_s = end_s

    def suspend(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        self.now_s += seconds


class Watched:
    """A watch, the steps that it sees and the hangs that it found."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_hangs = 0
        self.loop = FakeLoop()
        self.watch = StepWatch(LIMIT_S, num_reports=lambda: self.num_steps, on_hang=self.hang, loop=self.loop)

    def hang(self) -> None:
        self.num_hangs += 1


def test_a_hang_is_found_within_a_tenth_more_than_the_limit_and_once() -> None:
    watched = Watched()
    watched.watch.note(is_busy=True)
    watched.loop.run(LIMIT_S - 1)
    assert watched.num_hangs == 0
    watched.loop.run(LIMIT_S / 10)
    assert watched.num_hangs == 1
    watched.loop.run(10 * LIMIT_S)
    watched.watch.note(is_busy=False)
    assert (watched.num_hangs, watched.loop.pending()) == (1, [])


@given(st.lists(st.floats(0, LIMIT_S * 0.89), max_size=30))
def test_steps_that_end_within_the_limit_are_no_hang_however_long_requests_wait(steps_s: list[float]) -> None:
    watched = Watched()
    watched.watch.note(is_busy=True)
    for step_s in steps_s:
        watched.loop.run(step_s)
        watched.num_steps += 1
    assert watched.num_hangs == 0


@given(open_s=st.floats(0.5, LIMIT_S / 2), idle_s=st.floats(0, 1e5))
def test_clients_that_give_up_early_do_not_hide_a_hang(open_s: float, idle_s: float) -> None:
    watched = Watched()
    waited_s = 0.0
    while watched.num_hangs == 0:
        assert waited_s < 1.2 * LIMIT_S
        watched.watch.note(is_busy=True)
        watched.loop.run(open_s)
        waited_s += open_s
        watched.watch.note(is_busy=False)
        assert watched.loop.pending() == []
        watched.loop.run(idle_s)
    assert waited_s > 0.99 * LIMIT_S


def test_idle_time_and_a_suspended_machine_are_no_hang() -> None:
    watched = Watched()
    watched.loop.run(10 * LIMIT_S)
    for _ in range(5):
        watched.watch.note(is_busy=True)
        watched.loop.suspend(10 * LIMIT_S)
        watched.loop.run(1)
        watched.num_steps += 1
        watched.loop.run(LIMIT_S / 5)
        watched.watch.note(is_busy=False)
    assert watched.num_hangs == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1), st.booleans())))
def test_silence_is_at_most_the_time_with_requests_and_ends_with_a_step(looks: list[tuple[float, int, bool]]) -> None:
    silence, now_s, busy_s = Silence(), 0.0, 0.0
    for elapsed_s, num_new, is_busy in looks:
        now_s += elapsed_s
        busy_s += elapsed_s if silence.is_busy else 0.0
        silence = silence.until(now_s, num_reports=silence.num_reports + num_new, is_busy=is_busy, most_s=10.0)
        if num_new:
            busy_s = 0.0
        assert 0 <= silence.seconds <= busy_s + 1e-6 * now_s
