"""The control plane holds what it promises under the faults of many seeds, and each seed runs in one way only."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.chaos.schedule import shortest

from tests.simulation.planted import BUGS, planted
from tests.simulation.scenario import Scenario, draw
from tests.simulation.simulation import simulate

ROOT = Path(__file__).parents[2]
FOUND_BY = {
    "no-fence": 26,
    "endless-lease": 2,
    "lost-commit": 8,
    "lost-update": 40,
    "short-bake": 10,
    "never-stopped": 1,
    "left-orphans": 1,
    "unseen-crash": 0,
    "free-capacity": 4,
    "double-capacity": 37,
    "lost-wake-up": 34,
    "sent-again": 6,
    "stale-route": 34,
    "below-minimum": 6,
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
    """Each bug breaks a promise in a seed that holds without it."""
    with planted(name):
        assert simulate(draw(FOUND_BY[name])).violations


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
    """What a failure does not need is removed, and the rest still fails in the same way."""
    scenario = draw(FOUND_BY["sent-again"])

    def fails(faults: tuple[object, ...]) -> bool:
        return any("sent again" in found for found in simulate(_with(scenario, faults)).violations)

    with planted("sent-again"):
        faults = shortest(scenario.faults, fails)

    assert [fault.kind for fault in faults] == ["worker-die"]


def _with(scenario: Scenario, faults: tuple[object, ...]) -> Scenario:
    import msgspec

    return msgspec.structs.replace(scenario, faults=faults)
