"""Machines in namespaces: what faults of them did to requests and to the leader, and a short run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.chaos.history import BROKEN, RIGHT, Applied, Attempt, History, Request
from benchmarks.machines.judge import broken_promises, by_kind, leader_delay_s, rows
from benchmarks.machines.network import why_not

from tests.waiting import WAIT_S

ROOT = Path(__file__).parent.parent.parent

CUT = Applied(kind="machine-cut", began_s=10.0, undone_s=18.0, ended_s=19.0, what="ada")


def attempt(number: int, *, through: int, at_s: float, outcome: str = RIGHT) -> Request:
    return Request(
        number=number,
        attempts=(
            Attempt(
                id=f"{number}-0",
                api="stream",
                endpoint="steady-0",
                began_s=at_s,
                ended_s=at_s + 2,
                outcome=outcome,
                through=through,
            ),
        ),
    )


def test_a_request_through_another_machine_fails_only_if_its_worker_was_on_the_machine_that_was_hit() -> None:
    history = History(
        requests=[
            attempt(1, through=0, at_s=11, outcome=BROKEN),  # through the machine that was cut off
            attempt(2, through=1, at_s=11),
            attempt(3, through=1, at_s=12, outcome="ModelStreamError"),
            attempt(4, through=2, at_s=13, outcome="ServiceUnavailable"),
            attempt(5, through=2, at_s=20, outcome="ServiceUnavailable"),  # later: for the model of the chaos runs
        ],
        faults=[CUT],
        begun={"3-0": ["ada"], "4-0": ["bob"]},
    )
    (sentence,) = broken_promises(history, [])
    assert "4-0 through cyd" in sentence
    (row,) = rows(history, [])
    assert (row["through_others"], row["failed_through_others"], row["cut_off_with_their_worker"]) == (3, 1, 1)
    kind = by_kind([row, {**row, "led": True, "leader_s": 2.5}])["machine-cut"]
    assert (kind["faults"], kind["led"], kind["failed_through_others"]) == (2, 1, 2)
    assert kind["leader_s"] == {"median": 2.5, "longest": 2.5}


@pytest.mark.parametrize(
    ("leaders", "delay_s"),
    [
        ([(0.0, "ada"), (12.0, ""), (12.5, "bob")], 2.5),
        ([(0.0, "bob")], None),
        ([(0.0, "ada"), (12.0, ""), (13.0, "ada")], None),
        ([(0.0, "ada"), (10.5, ""), (17.0, "cyd"), (30.0, "ada")], 7.0),
    ],
)
def test_the_time_to_a_leader_counts_from_the_fault_of_the_one_before(leaders, delay_s) -> None:
    assert leader_delay_s(CUT, leaders) == delay_s
    if delay_s is not None:
        stop = replace(CUT, kind="machine-stop")
        assert leader_delay_s(stop, leaders) == round(delay_s - next(at_s for at_s, _ in leaders[1:]) + CUT.began_s, 2)
    late = [sentence for sentence in broken_promises(History(faults=[CUT]), leaders) if "leads after" in sentence]
    assert bool(late) == (delay_s == 7.0)


def test_three_machines_serve_on_when_one_loses_its_power_and_its_network(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    output = tmp_path / "result.json"
    times = ["--fault-s", "4", "--gap-s", "2"]
    size = ["--machines", "ada", "--streams", "8", "--writers", "2", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.machines.run", *times, *size],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S * 3,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert [row["fault"] for row in result["rows"]] == ["machine-power", "machine-cut"]
    assert result["requests_lost"] == result["violations"] == 0
    assert set(result["asynchronous"]) == {RIGHT}
