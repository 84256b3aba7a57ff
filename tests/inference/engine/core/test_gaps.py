"""
The guard of gaps, simulated: clients in a closed loop share a scheduler with a clock that a known step time moves.

The step time is that of SmolLM2 on two cores with AVX2: 4 ms, 2.1 ms a decoding sequence and 1.6 ms a prompt token.
"""

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median, quantiles

import pytest

from headrace.inference.engine.core.step_plan import StepPlan

from .test_scheduler import make_scheduler, make_sequence

PROMPT_TOKENS = OUTPUT_TOKENS = 128
LIMIT_S = 0.075


def step_s(plan: StepPlan) -> float:
    return 0.004 + plan.num_decodes / 470 + (plan.num_tokens - plan.num_decodes) / 632


@dataclass
class Simulation:
    """A scheduler, its clock, and the times at which each sequence got its tokens."""

    max_step_s: float | None = LIMIT_S
    noise: float = 0.0
    """Three steps in ten take this part longer."""
    now_s: float = 0.0
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.scheduler = make_scheduler(
            num_blocks=40_000, max_num_seqs=64, max_step_tokens=512, max_step_s=self.max_step_s
        )
        self._rng = random.Random(1)
        self._num_sent = 0

    def send(self, prompt_tokens: int = PROMPT_TOKENS, output_tokens: int = OUTPUT_TOKENS) -> int:
        """Add a request that shares no prefix; return its number."""
        order = self._num_sent
        self._num_sent += 1
        sequence = make_sequence(order, [order] * prompt_tokens, max_new=output_tokens, salt=str(order))
        sequence.arrived_s = self.now_s
        self.times[order].append(self.now_s)
        self.scheduler.add(sequence)
        return order

    def step(self) -> int:
        """Run a step; return how many sequences ended."""
        plan = self.scheduler.schedule(self.now_s)
        seconds = step_s(plan)
        if self._rng.random() < 0.3:
            seconds *= 1 + self.noise
        self.now_s += seconds
        self.scheduler.commit(plan)
        has_chunk = 0 < plan.num_decodes < len(plan.sequences)
        self.scheduler._step_times.observe(
            tokens=plan.num_tokens, attended=plan.attended, seconds=seconds, has_chunk=has_chunk
        )
        num_ended = 0
        for sequence in plan.sequences:
            if sequence.num_computed_tokens == sequence.num_tokens:
                sequence.append(1)
                self.times[sequence.arrival_id].append(self.now_s)
                if sequence.num_tokens == sequence.max_total_tokens:
                    self.scheduler.finish(sequence)
                    num_ended += 1
        return num_ended

    def gaps_s(self, order: int) -> list[float]:
        tokens = self.times[order][1:]
        return [after - before for before, after in itertools.pairwise(tokens)]


def closed_loop(
    simulation: Simulation, *, num_clients: int, num_requests: int
) -> tuple[float, list[float], list[float]]:
    """Let a client send again when its request ends; return tokens/s, and the TTFTs and gaps of the later half."""
    for _ in range(num_clients):
        simulation.send()
    num_ended = 0
    while num_ended < num_requests:
        ended = simulation.step()
        num_ended += ended
        for _ in range(ended):
            simulation.send()
    settled = [order for order in list(simulation.times)[num_requests // 2 :] if len(simulation.times[order]) > 1]
    ttft_s = [simulation.times[order][1] - simulation.times[order][0] for order in settled]
    gaps_s = [gap for order in settled for gap in simulation.gaps_s(order)]
    return num_ended * OUTPUT_TOKENS / simulation.now_s, ttft_s, gaps_s


@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_prompts_do_not_starve_beside_a_full_batch(noise: float) -> None:
    """Without the limit's growth the median TTFT is 7.9 s, and 9.5 s with noise."""
    rate, ttft_s, gaps_s = closed_loop(Simulation(noise=noise), num_clients=32, num_requests=128)
    unlimited_rate, *_ = closed_loop(Simulation(None, noise=noise), num_clients=32, num_requests=128)
    assert median(ttft_s) < 2.1
    assert quantiles(gaps_s, n=100)[-1] < 0.25
    assert rate > 0.96 * unlimited_rate


def test_a_long_prompt_keeps_the_limit_for_two_seconds_and_twice_the_limit_after_that() -> None:
    simulation = Simulation()
    streams = [simulation.send(16, 400) for _ in range(8)]
    while len(simulation.times[streams[-1]]) < 100:
        simulation.step()
    prompt, sent_s = simulation.send(4000), simulation.now_s
    while len(simulation.times[prompt]) == 1:
        simulation.step()
    for limit_s, from_s, to_s in ((LIMIT_S, sent_s, sent_s + 0.5), (2 * LIMIT_S, sent_s, simulation.now_s)):
        for stream in streams:
            tokens = simulation.times[stream]
            gaps_s = [b - a for a, b in itertools.pairwise(tokens) if a >= from_s and b <= to_s]
            assert max(gaps_s) < limit_s * 1.25
            assert median(gaps_s) > limit_s * 0.8, "the prompt gets the time that is left"
    simulation.step()
    assert max(simulation.gaps_s(streams[0])[-1:]) < LIMIT_S, "nothing is left of it"


def test_streams_without_prompts_beside_them_have_no_limit() -> None:
    simulation = Simulation()
    simulation.send()
    assert simulation.scheduler.schedule(0.0).limit_s is None, "no prompt waits for this step"


@pytest.mark.parametrize(("wait_s", "limit_s"), [(0.0, 0.075), (1.0, 0.1125), (2.0, 0.15), (60.0, 0.15)])
def test_the_limit_grows_with_the_wait_of_the_oldest_prompt(wait_s: float, limit_s: float) -> None:
    simulation = Simulation()
    simulation.send(16, 400)
    simulation.step()
    simulation.send()
    assert simulation.scheduler.schedule(simulation.now_s + wait_s).limit_s == pytest.approx(limit_s)
