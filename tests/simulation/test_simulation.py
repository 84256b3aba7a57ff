"""The control plane holds what it promises under the faults of many seeds, and each seed runs in one way only."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import shrunk_scenario
from tests.simulation.planted import BUGS, planted
from tests.simulation.scenario import SLOWER, Fault, Operation, Scenario, draw
from tests.simulation.simulation import simulate

ROOT = Path(__file__).parents[2]
FOUND_BY = {
    "no-fence": 26,
    "endless-lease": 0,
    "lost-commit": 2,
    "short-bake": 3,
    "skipped-step": 19,
    "never-stopped": 0,
    "left-orphans": 0,
    "unseen-crash": 2,
    "free-capacity": 0,
    "double-capacity": 25,
    "lost-wake-up": 107,
    "sent-again": 16,
    "stale-route": 1,
    "below-minimum": 5,
    "lost-write": 0,
    "async-not-stored": 5,
    "async-twice": 7,
    "lost-line": 8,
    "leads-on": 6,
    "no-backoff": 4,
    "ended-at-once": 3,
    "no-cooldown": 2,
    "leaked-admission": 23,
    "early-removal": 1,
    "never-expires": 5,
    "kept-lease": 86,
    "created-again": 57,
}
"""Bug → a seed that finds it. `scripts/simulate --bugs` finds others after a change."""


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_nothing_is_violated(first: int) -> None:
    """No seed breaks a promise; `scripts/simulate --seeds SEED --shrink` looks closer."""
    failed = {
        seed: outcome.violations for seed in range(first, first + 20) if (outcome := simulate(draw(seed))).violations
    }

    assert not failed


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """Each bug breaks a promise: in the seed that found it first or, after a change of the platform, in another."""
    seeds = sorted(range(200), key=lambda seed: (seed != FOUND_BY.get(name), seed))
    with planted(name):
        assert any(simulate(draw(seed)).violations for seed in seeds)


def test_a_seed_runs_in_one_way_in_all_processes() -> None:
    """The trace does not depend on the process or its hash seed."""
    code = "import sys; from tests.simulation.test_simulation import digests; print(digests(), file=sys.stdout)"
    traces = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert traces == {f"{digests()}\n"}


def digests() -> list[str]:
    return [simulate(draw(seed)).digest for seed in (3, 6, 14)]


def test_a_failing_scenario_shrinks() -> None:
    """Shrinking removes the faults and operations that a failure does not need."""
    faults = [Fault(at_s=at_s, kind=kind, duration_s=2.0, target=0) for at_s, kind in enumerate(_KINDS)]
    requests = [Operation(at_s=float(at_s), kind="request", target=0, amount=2) for at_s in range(5)]
    scenario = Scenario(seed=1, members=1, knobs=SLOWER, faults=tuple(faults), operations=tuple(requests))

    with planted("sent-again"):
        assert simulate(scenario).violations
        shrunk = shrunk_scenario(scenario, lambda smaller: bool(simulate(smaller).violations))

    assert [fault.kind for fault in shrunk.faults] == ["worker-die"]
    assert len(shrunk.operations) == 1


_KINDS = ("network-slow", "worker-die", "clock-jump")
