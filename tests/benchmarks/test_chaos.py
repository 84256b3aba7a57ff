"""Chaos: its schedules, its model of what must hold, and a short run of it."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.chaos.clients import attempt_id
from benchmarks.chaos.history import (
    BROKEN,
    RIGHT,
    WRONG,
    Applied,
    Attempt,
    EndpointState,
    History,
    Request,
    is_reached,
    violations,
)
from benchmarks.chaos.schedule import Fault, Schedule, Setup, from_json, make_schedule, shrink, to_json
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import WAIT_S

ROOT = Path(__file__).parent.parent.parent
SETUPS = st.builds(
    Setup,
    processes=st.integers(1, 3),
    is_postgresql=st.booleans(),
    has_small_disk=st.booleans(),
    has_fake_clock=st.booleans(),
)


@given(st.integers(), st.integers(0, 50), SETUPS)
def test_a_seed_makes_one_schedule_of_possible_faults_in_order(seed: int, num_faults: int, setup: Setup) -> None:
    schedule = make_schedule(seed, num_faults, setup)
    assert schedule == make_schedule(seed, num_faults, setup) == from_json(to_json(schedule))
    assert len(schedule.faults) == num_faults
    assert {fault.kind for fault in schedule.faults} <= set(setup.kinds())
    assert [fault.at_s for fault in schedule.faults] == sorted(fault.at_s for fault in schedule.faults)


def test_faults_that_the_setup_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="process-kill is possible"):
        make_schedule(1, 5, Setup(), kinds=["process-kill"])


@given(st.integers(1, 40), st.data())
def test_shrinking_keeps_what_is_needed_to_fail_and_nothing_else(num_faults: int, data: st.DataObject) -> None:
    faults = tuple(Fault(at_s=float(i), kind="worker-kill", duration_s=0.0, target=i) for i in range(num_faults))
    needed = data.draw(st.sets(st.sampled_from(range(num_faults)), max_size=3))

    def fails(schedule: Schedule) -> bool:
        return needed <= {fault.target for fault in schedule.faults}

    shortest = shrink(Schedule(seed=1, setup=Setup(), faults=faults), fails)
    assert {fault.target for fault in shortest.faults} == needed


@given(st.integers(0, 10**6), st.integers(0, 20), st.integers(0, 2**32))
def test_a_changed_byte_makes_no_other_id(number: int, index: int, seed: int) -> None:
    chooser = random.Random(seed)
    changed = bytearray(attempt_id(number, index).encode())
    changed[chooser.randrange(len(changed))] ^= chooser.randint(1, 255)
    text = changed.decode("latin-1")
    parts = text.split("-")
    if len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
        assert text != attempt_id(int(parts[0]), int(parts[1]))


def request(outcome: str, *, began_s: float = 50.0, seconds: float = 0.1) -> Request:
    attempt = Attempt(
        id="0-0", api="invoke", began_s=began_s, ended_s=began_s + seconds, outcome=outcome, detail="as it was"
    )
    return Request(number=0, attempts=(attempt,))


def fault(kind: str, began_s: float = 49.0) -> Applied:
    return Applied(kind=kind, began_s=began_s, ended_s=began_s + 0.5, what="it")


def serving() -> History:
    state = EndpointState(config="c", count=2)
    return History(
        requests=[request(RIGHT)],
        answers={"0-0": 1},
        asynchronous={"a-1": RIGHT},
        acknowledged={"model m": "token"},
        found={"model m": "token"},
        asked={"e": state},
        described={"e": state},
        num_workers=2,
        invocations=1.0,
    )


def test_a_run_in_which_all_holds_has_no_violation() -> None:
    assert violations(serving()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests": [request(WRONG)]}, "ended as wrong"),
        ({"requests": [request(WRONG)], "faults": [fault("worker-kill")]}, "ended as wrong"),
        ({"requests": [request("InternalFailure")], "faults": [fault("worker-kill")]}, "ended as InternalFailure"),
        ({"requests": [request("ModelError")]}, "was refused without a fault"),
        ({"requests": [request(BROKEN)]}, "is lost"),
        ({"requests": [request(BROKEN)], "faults": [fault("worker-kill")]}, "broke without a fault"),
        ({"requests": [request(RIGHT, seconds=100.0)]}, "took 100 s"),
        ({"answers": {"0-0": 2}}, "was answered 2 times"),
        ({"answers": {}}, "no worker gave"),
        ({"asynchronous": {"a-1": "missing"}}, "a-1 is missing"),
        ({"found": {}}, "is lost"),
        ({"found": {"model m": "other"}}, "token was acknowledged"),
        ({"described": {}, "num_workers": 0}, "Endpoint e is lost"),
        ({"asked": {}, "deleted": {"e"}}, "it was deleted"),
        ({"described": {"e": EndpointState(config="c", count=1)}, "num_workers": 1}, "asked for"),
        ({"num_workers": 3}, "3 worker processes run"),
        ({"leftovers": ["7: weed"]}, "7: weed"),
        ({"invocations": 0.0}, "CloudWatch has 0"),
        ({"invocations": 2.0}, "CloudWatch has 2"),
    ],
)
def test_each_thing_that_does_not_hold_is_found(changes: dict[str, object], expected: str) -> None:
    found = violations(replace(serving(), **changes))
    assert any(expected in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("ModelError", "worker-kill"),
        (RIGHT, "disk-full"),
        (WRONG, "client-corrupt"),
        ("ValidationError", "client-corrupt"),
    ],
)
def test_what_a_fault_explains_is_no_violation(outcome: str, kind: str) -> None:
    history = replace(serving(), requests=[request(outcome)], faults=[fault(kind)])
    assert violations(history) == [] or (outcome != RIGHT and violations(history)[0].startswith("CloudWatch"))


def test_a_broken_attempt_that_is_repeated_is_no_violation() -> None:
    first = request(BROKEN).attempts[0]
    second = replace(first, id="0-1", outcome=RIGHT, began_s=51.0, ended_s=52.0)
    history = replace(
        serving(),
        requests=[Request(number=0, attempts=(first, second))],
        answers={"0-1": 1},
        faults=[fault("platform-kill")],
    )
    assert violations(history) == []


def test_a_deployment_that_failed_is_reached_only_with_a_reason() -> None:
    asked = EndpointState(config="new", count=1)
    assert is_reached(asked, asked, "old")
    assert not is_reached(asked, replace(asked, status="Updating"), "old")
    for state in (replace(asked, status="Failed"), replace(asked, config="old")):
        assert not is_reached(asked, state, "old")
        assert is_reached(asked, replace(state, reason="The primary container failed."), "old")
    assert not is_reached(asked, replace(asked, config="other", reason="because"), "old")


def test_a_platform_keeps_what_must_hold_through_a_few_faults(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    arguments = ["--seed", "5", "--faults", "5", "--gap-s", "0.7", "--threads", "3", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos.run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert result["requests_lost"] == result["violations"] == 0
    assert result["requests_answered_right"] == result["requests"] > 0
