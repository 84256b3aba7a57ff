"""
A fleet that is played: copies that start, serve and go, and requests that wait for them.

A copy answers `concurrency` requests at once, each takes `service_s`, others wait in one queue, first come first
served; a new copy serves after `start_s`. Requests flow like water in steps of 10 s; what random arrivals add to the
wait is estimated (Sakasegawa 1977, M/M/c).
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

STEP_S = 10

AtZero = Literal["wake", "fail", "wait"]
"""
What becomes of a request that finds no copy: it wakes one and waits for it; it fails, as on AWS; or it only waits, as
in the queue of an asynchronous endpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """What a copy can do."""

    concurrency: int = 8
    """Requests that one copy answers at once."""
    service_s: float = 2.0
    """How long an answer takes once it is begun."""
    start_s: float = 30.0
    """From the decision until a new copy serves."""
    timeout_s: float = 60.0
    """A request that has waited so long is lost."""
    at_zero: AtZero = "wake"


@dataclass(slots=True)
class Cohort:
    """Requests that came together and still wait."""

    arrived_s: float
    count: float
    is_held: bool = False
    """They came while no copy served."""


@dataclass(slots=True)
class Step:
    """What happened in ten seconds."""

    serving: int
    """At its beginning."""
    held: float = 0.0
    """Requests that found no copy, and wait for one."""
    failed: float = 0.0
    """Those that found no copy, and failed."""
    expired: float = 0.0
    """Those that have waited too long."""
    queue: float = 0.0
    """Requests waiting at its end."""
    busy: float = 0.0
    """Requests being answered, on average."""
    answered: list[tuple[float, float, float]] = field(default_factory=list)
    """(Latency in seconds, how long of it on hold, how many) of those begun."""

    @property
    def num_answered(self) -> float:
        """Requests begun."""
        return math.fsum(count for _, _, count in self.answered)

    @property
    def latency_s(self) -> float:
        """Mean, from arrival to the answer's end, of those begun; NaN: none was."""
        num = self.num_answered
        return math.fsum(latency_s * count for latency_s, _, count in self.answered) / num if num else math.nan


@dataclass(slots=True)
class Fleet:
    """Copies and the queue before them."""

    model: FleetModel
    serving: int
    starting: list[float] = field(default_factory=list)
    """When each new copy will serve."""
    waiting: deque[Cohort] = field(default_factory=deque)
    """Oldest first."""

    def start_ready(self, now_s: float) -> None:
        """Let those serve whose time has come."""
        self.serving += sum(1 for ready_s in self.starting if ready_s <= now_s)
        self.starting = [ready_s for ready_s in self.starting if ready_s > now_s]

    def scale(self, desired: int, now_s: float) -> None:
        """Start or stop copies; those that do not serve yet go first."""
        missing = desired - self.serving - len(self.starting)
        if missing > 0:
            self.starting += [now_s + self.model.start_s] * missing
        elif missing < 0:
            kept = max(0, len(self.starting) + missing)
            self.starting = self.starting[:kept]
            self.serving = min(self.serving, desired - kept)

    def step(self, arriving: float, now_s: float) -> Step:
        """Let ten seconds pass."""
        step = Step(serving=self.serving)
        offset_s = 0.0 if self.serving else min((ready_s - now_s for ready_s in self.starting), default=STEP_S)
        offset_s = min(offset_s, STEP_S)
        self._arrive(step, arriving, now_s, offset_s)
        while self.waiting and now_s - self.waiting[0].arrived_s >= self.model.timeout_s:
            step.expired += self.waiting.popleft().count
        self._serve(step, now_s, offset_s)
        step.queue = math.fsum(cohort.count for cohort in self.waiting)
        return step

    def _arrive(self, step: Step, arriving: float, now_s: float, offset_s: float) -> None:
        """Until the first copy serves they find none; one of them, at least, if it was what woke it."""
        early = max(arriving * offset_s / STEP_S, min(1.0, arriving)) if offset_s > 0 else 0.0
        if early and self.model.at_zero == "fail":
            step.failed = early
        elif early:
            step.held = early
            self.waiting.append(Cohort(arrived_s=now_s, count=early, is_held=True))
        if arriving > early:
            self.waiting.append(Cohort(arrived_s=now_s + offset_s, count=arriving - early))

    def _serve(self, step: Step, now_s: float, offset_s: float) -> None:
        """Begin what fits into this step, oldest first."""
        until_s = now_s + STEP_S
        copy_s = self.serving * STEP_S + math.fsum(until_s - ready_s for ready_s in self.starting if ready_s < until_s)
        total = room = copy_s * self.model.concurrency / self.model.service_s
        if not total:
            return
        slots = max(1.0, copy_s / (STEP_S - offset_s)) * self.model.concurrency
        load = math.fsum(cohort.count for cohort in self.waiting) / total
        jitter_s = random_wait_s(load, slots, self.model.service_s)
        while room > 1e-9 and self.waiting:
            cohort = self.waiting[0]
            taken = min(cohort.count, room)
            # When it is begun, if all that waits is begun one after the other.
            begun_s = now_s + offset_s + (STEP_S - offset_s) * (1 - (room - taken / 2) / total)
            if cohort.arrived_s == now_s + offset_s and not cohort.is_held:
                # They come spread over the step: those wait who come before the older ones are begun.
                busy_s = (STEP_S - offset_s) * (1 - room / total)
                begun_s = cohort.arrived_s + busy_s * busy_s / (2 * (STEP_S - offset_s))
            waited_s = begun_s - cohort.arrived_s
            held_s = waited_s if cohort.is_held else 0.0
            room -= taken
            step.answered.append((round(waited_s + jitter_s + self.model.service_s, 2), held_s, taken))
            cohort.count -= taken
            if cohort.count <= 1e-9:
                self.waiting.popleft()
        step.busy = (total - room) * self.model.service_s / STEP_S


def random_wait_s(load: float, slots: float, service_s: float) -> float:
    """The mean wait that random arrivals cause at a load below 1; at most half a step, where the queue takes over."""
    if load <= 0 or slots == 0:
        return 0.0
    if load >= 1:
        return STEP_S / 2
    wait_s: float = service_s * load ** (math.sqrt(2 * (slots + 1)) - 1) / (slots * (1 - load))
    return min(STEP_S / 2, wait_s)
