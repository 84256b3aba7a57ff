"""Chaos: its schedules, its model of what must hold, and a short run of it."""

import json
import random
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from benchmarks.chaos.clients import attempt_id
from benchmarks.chaos.history import (
    BROKEN,
    RIGHT,
    UNREADABLE,
    WRONG,
    Activity,
    Applied,
    Attempt,
    EndpointState,
    History,
    Request,
    is_reached,
    latest_errors_s,
    summary,
    violations,
)
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.report import table
from benchmarks.chaos.schedule import Fault, Schedule, Setup, from_json, make_schedule, shrink, to_json
from benchmarks.chaos.watch import Watch
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from benchmarks.harness.platforms import Platform

ROOT = Path(__file__).parent.parent.parent
SETUPS = st.builds(
    Setup,
    processes=st.integers(1, 3),
    is_postgresql=st.booleans(),
    nodes=st.integers(0, 2),
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
        id="0-0",
        api="invoke",
        endpoint="e",
        began_s=began_s,
        ended_s=began_s + seconds,
        outcome=outcome,
        detail="as it was",
    )
    return Request(number=0, attempts=(attempt,))


def fault(kind: str, began_s: float = 49.0, *, what: str = "e-v-i-1") -> Applied:
    return Applied(kind=kind, began_s=began_s, undone_s=began_s + 0.4, ended_s=began_s + 0.5, what=what)


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
        scaled="e",
        bounds=[1, 2],
        activities=[activity(2, id_="2"), activity(1)],
        num_workers=2,
        invocations=1.0,
    )


def activity(capacity: int, status: str = "Successful", *, id_: str = "1", message: str = "Done.") -> Activity:
    return Activity(id=id_, status=status, capacity=capacity, message=message)


def test_a_run_in_which_all_holds_has_no_violation() -> None:
    assert violations(serving()) == []


def test_a_history_that_was_stored_is_judged_as_before() -> None:
    history = replace(serving(), faults=[fault("worker-kill")], requests=[request("ModelError")], leftovers=["7: weed"])
    stored = msgspec.json.decode(msgspec.json.encode(history), type=History)
    assert stored == history
    assert violations(stored) == violations(history) != []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests": [request(WRONG)]}, "ended as wrong"),
        ({"requests": [request(WRONG)], "faults": [fault("worker-kill")]}, "ended as wrong"),
        ({"requests": [request("InternalFailure")], "faults": [fault("worker-kill")]}, "ended as InternalFailure"),
        ({"requests": [request("ModelError")]}, "was refused without a fault"),
        ({"requests": [request("ModelError")], "faults": [fault("worker-kill", what="f-v-i-1")]}, "without a fault"),
        ({"requests": [request("ModelError")], "faults": [fault("worker-kill", 39.0)]}, "without a fault"),
        ({"requests": [request("ModelError")], "faults": [fault("platform-kill", 39.0)]}, "without a fault"),
        ({"requests": [request(UNREADABLE)], "faults": [fault("platform-kill")]}, "ended as unreadable"),
        ({"requests": [request(BROKEN)]}, "is lost"),
        ({"requests": [request(BROKEN)], "faults": [fault("worker-kill")]}, "broke without a fault"),
        ({"requests": [request(RIGHT, seconds=100.0)]}, "took 100 s"),
        ({"answers": {"0-0": 2}}, "was answered 2 times"),
        ({"answers": {}}, "no worker gave"),
        ({"answers": {}, "faults": [fault("worker-kill")]}, "no worker gave"),
        ({"asynchronous": {"a-1": "missing"}}, "a-1 is missing"),
        ({"found": {}}, "is lost"),
        ({"found": {"model m": "other"}}, "token was acknowledged"),
        ({"described": {}, "num_workers": 0}, "Endpoint e is lost"),
        ({"asked": {}, "deleted": {"e"}}, "it was deleted"),
        ({"described": {"e": EndpointState(config="c", count=1)}, "num_workers": 1}, "asked for"),
        ({"activities": [activity(2, "InProgress")]}, "activity 1 is still InProgress"),
        ({"activities": [activity(2), activity(1)]}, "listed twice: 1"),
        ({"activities": [activity(2), activity(3, id_="2")]}, "3, which was never asked for"),
        ({"activities": [activity(2), activity(1, "Failed", id_="2", message="")]}, "no message"),
        ({"activities": [activity(1), activity(2, id_="2")]}, "e has 2 instances; its activities have set [1, 2]"),
        ({"activities": []}, "e has 2 instances; its activities have set []"),
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
        (UNREADABLE, "client-corrupt"),
        ("ValidationError", "client-corrupt"),
    ],
)
def test_what_a_fault_explains_is_no_violation(outcome: str, kind: str) -> None:
    history = replace(serving(), requests=[request(outcome)], faults=[fault(kind)])
    assert violations(history) == [] or (outcome != RIGHT and violations(history)[0].startswith("CloudWatch"))


def test_the_answer_to_a_request_whose_id_was_corrupted_is_noted_under_another_id() -> None:
    assert not violations(replace(serving(), answers={"0-1": 1}, faults=[fault("client-corrupt")]))


def test_errors_after_kills_of_one_endpoints_workers_are_excused_for_the_backoff() -> None:
    refused = [request("ServiceUnavailable", began_s=65.0)]
    kills = [fault("worker-kill", float(at)) for at in range(46, 51)]
    assert violations(replace(serving(), requests=refused, faults=kills[-2:], invocations=1.0))
    assert violations(replace(serving(), requests=refused, faults=kills, invocations=1.0)) == []
    others = [fault("worker-kill", float(at), what="f-v-i-1") for at in range(46, 51)]
    assert violations(replace(serving(), requests=refused, faults=[*others, kills[-1]], invocations=1.0))


def test_the_longest_time_from_a_fault_to_an_error_is_measured_by_kind() -> None:
    history = History(
        requests=[request("ModelError", began_s=53.0), request(RIGHT, began_s=59.0), request(BROKEN, began_s=70.0)],
        faults=[fault("worker-kill", 49.0), fault("platform-kill", 60.0), fault("disk-full", 80.0)],
    )
    assert latest_errors_s(history) == {"worker-kill": 3.5, "platform-kill": 9.5}


def test_metrics_that_are_lost_without_a_kill_are_a_violation() -> None:
    history = replace(serving(), invocations=0.0)
    assert violations(replace(history, faults=[fault("platform-kill", 55.0)])) == []
    for kind, began_s in (("platform-kill", 59.0), ("platform-kill", 49.0), ("worker-kill", 55.0)):
        assert violations(replace(history, faults=[fault(kind, began_s)])), kind


def test_the_table_of_results_has_a_row_for_each_run() -> None:
    result = {
        **summary(serving()),
        "seed": 3,
        "violations": 0,
        "duration_s": 90.0,
        "arguments": ["--seed", "3", "--output", "/tmp/x", "--keep", "--faults", "9"],
    }
    lines = table([result, result]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| `--seed 3 --faults 9` | 0 | 0 | 1 | 1 |")
    assert lines[2].endswith("| 1.5 |")


class FakePlatform:
    """A platform that has ended, and answers once it was started again."""

    name = "platform 0"

    def __init__(self) -> None:
        self.codes: list[int | None] = [3]

    def restart_if_ended(self) -> int | None:
        return self.codes.pop() if self.codes else None

    def answers(self) -> bool:
        return not self.codes


def test_a_platform_that_ends_on_its_own_is_noted_and_started_again() -> None:
    incidents: list[str] = []
    healthy = threading.Event()
    watch = Watch([cast("Platform", FakePlatform())], incidents)
    watch.when_healthy(healthy.set)
    watch.start()
    assert healthy.wait(WAIT_S)
    watch.close()
    assert watch.is_calm()
    assert incidents == ["platform 0 ended on its own with exit code 3."]


def test_a_proxy_that_closes_leaves_no_client_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:  # it accepts nothing
        proxy = Proxy(target.getsockname()[1])
        held = [socket.create_connection(("127.0.0.1", proxy.port), WAIT_S) for _ in range(8)]
        proxy.close()
    for connection in held:
        with connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""


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
    assert is_reached(asked, replace(asked, count=2, reason="because"), "old")
    assert not is_reached(asked, replace(asked, count=2), "old")


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
