"""
A simulated fleet: copies that start, serve and stop, and requests that wait for them.

A copy serves `concurrency` requests at once, each for `service_s`; others wait in one FIFO queue. A new copy serves
after `start_s`. Requests are a fluid in steps of 10 s; the wait that random arrivals add is estimated (Sakasegawa 1977,
M/M/c).
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

STEP_S = 10

AtZero = Literal["wake", "fail", "wait"]
"""
The fate of a request that finds no copy: `wake` one and wait for it; `fail`, as on AWS; or only `wait`, as in the queue
of an asynchronous endpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """The performance of one copy."""

    concurrency: int = 8
    """Requests that one copy serves at once."""
    service_s: float = 2.0
    """Seconds from the start of an answer to its end."""
    start_s: float = 30.0
    """Seconds from the decision until a new copy serves."""
    timeout_s: float = 60.0
    """Seconds after which a waiting request is lost."""
    at_zero: AtZero = "wake"


@dataclass(slots=True)
class Cohort:
    """Waiting requests that arrived together."""

    arrived_s: float
    count: float
    is_held: bool = False
    """True if they arrived while no copy served."""


@dataclass(slots=True)
class StepOutcome:
    """The events of one step of ten seconds."""

    serving: int
    """Copies at its beginning."""
    held: float = 0.0
    """Requests that found no copy and wait for one."""
    failed: float = 0.0
    """Requests that found no copy and failed."""
    expired: float = 0.0
    """Requests that reached their timeout."""
    queue: float = 0.0
    """Requests waiting at its end."""
    busy: float = 0.0
    """Average number of requests being served."""
    answered: list[tuple[float, float, float]] = field(default_factory=list)
    """(Latency in seconds, part of it on hold, count) of the answers begun."""

    @property
    def num_answered(self) -> float:
        return math.fsum(count for _, _, count in self.answered)

    @property
    def latency_s(self) -> float:
        """Mean seconds from arrival to the end of the answers begun; NaN if none was."""
        num = self.num_answered
        return math.fsum(latency_s * count for latency_s, _, count in self.answered) / num if num else math.nan


@dataclass(slots=True)
class SimulatedFleet:
    """Copies and the queue in front of them."""

    model: FleetModel
    serving: int
    starting: list[float] = field(default_factory=list)
    """The times from which new copies serve."""
    waiting: deque[Cohort] = field(default_factory=deque)
    """Oldest first."""

    def start_ready(self, now_s: float) -> None:
        """Move copies whose start is complete into service."""
        self.serving += sum(1 for ready_s in self.starting if ready_s <= now_s)
        self.starting = [ready_s for ready_s in self.starting if ready_s > now_s]

    def scale(self, desired: int, now_s: float) -> None:
        """Start or stop copies; those that do not serve yet are stopped first."""
        missing = desired - self.serving - len(self.starting)
        if missing > 0:
            self.starting += [now_s + self.model.start_s] * missing
        elif missing < 0:
            kept = max(0, len(self.starting) + missing)
            self.starting = self.starting[:kept]
            self.serving = min(self.serving, desired - kept)

    def step(self, arriving: float, now_s: float) -> StepOutcome:
        """Simulate ten seconds."""
        step = StepOutcome(serving=self.serving)
        offset_s = 0.0 if self.serving else min((ready_s - now_s for ready_s in self.starting), default=STEP_S)
        offset_s = min(offset_s, STEP_S)
        self._arrive(step, arriving, now_s, offset_s)
        while self.waiting and now_s - self.waiting[0].arrived_s >= self.model.timeout_s:
            step.expired += self.waiting.popleft().count
        self._serve(step, now_s, offset_s)
        step.queue = math.fsum(cohort.count for cohort in self.waiting)
        return step

    def _arrive(self, step: StepOutcome, arriving: float, now_s: float, offset_s: float) -> None:
        """Queue the arrivals; those before the first copy serves find none, at least one if it woke the copy."""
        early = max(arriving * offset_s / STEP_S, min(1.0, arriving)) if offset_s > 0 else 0.0
        if early and self.model.at_zero == "fail":
            step.failed = early
        elif early:
            step.held = early
            self.waiting.append(Cohort(arrived_s=now_s, count=early, is_held=True))
        if arriving > early:
            self.waiting.append(Cohort(arrived_s=now_s + offset_s, count=arriving - early))

    def _serve(self, step: StepOutcome, now_s: float, offset_s: float) -> None:
        """Begin the answers that fit into this step, oldest requests first."""
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
            # The start of its answers, if all waiting requests are begun one after the other.
            begun_s = now_s + offset_s + (STEP_S - offset_s) * (1 - (room - taken / 2) / total)
            if cohort.arrived_s == now_s + offset_s and not cohort.is_held:
                # Their arrivals are spread over the step: those wait that arrive before older ones are begun.
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
    """Return the mean wait due to random arrivals below a load of 1; at most half a step, the queue does the rest."""
    if load <= 0 or slots == 0:
        return 0.0
    if load >= 1:
        return STEP_S / 2
    wait_s: float = service_s * load ** (math.sqrt(2 * (slots + 1)) - 1) / (slots * (1 - load))
    return min(STEP_S / 2, wait_s)
