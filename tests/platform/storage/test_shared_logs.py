"""Logs of several machines: read while workers run, kept when they end, and written by callers."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.exceptions import EndpointConnectionError

from headrace.platform.cluster import shared_logs
from headrace.platform.cluster.platform_logs import open_name
from headrace.platform.cluster.shared_logs import KEEP_LOG, LOG_BYTES, NEW_BYTES, SharedLogs
from headrace.platform.cluster.worker_files import CONTAINERS

from .machines import World

NOTE = {"log_group": "group", "log_stream": "stream", "created_s": 1.0}


class Machines:
    """Machines with logs that ask each other, and share files."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.logs: list[SharedLogs] = []
        self.silent: set[SharedLogs] = set()
        self.now_s = 1_700_000_000.0
        self.num_asked = 0

    def add(self, *, max_bytes: int = 1 << 30, are_copies: bool = False) -> SharedLogs:
        def ask(question: str, argument: Sequence[Any]) -> list[Any]:
            self.num_asked += 1
            answers = [answer(logs, question, argument) for logs in self.logs if logs not in {made, *self.silent}]
            return msgspec.json.decode(msgspec.json.encode(answers))  # type: ignore[no-any-return] -- as the channel does

        files = self.world.machine()
        made = SharedLogs(
            files.root.parent / "workers",
            files,
            ask=ask,
            max_bytes=max_bytes,
            are_copies=are_copies,
            now_s=lambda: self.now_s,
        )
        self.logs.append(made)
        return made


def answer(logs: SharedLogs, question: str, argument: Sequence[Any]) -> Any:
    if question == LOG_BYTES:
        return logs.answer_bytes(*argument)
    if question == NEW_BYTES:
        return logs.answer_new_bytes(*argument)
    assert question == KEEP_LOG
    worker, log_group, log_stream, created_s = argument
    return logs.keep_own(worker, log_group=log_group, log_stream=log_stream, created_s=created_s)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    world = World(tmp_path)
    yield Machines(world)
    world.close()


def write(logs: SharedLogs, worker: str, content: bytes) -> None:
    folder = logs.folders[0] / worker
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("ab") as file:
        file.write(content)


def lines(logs: SharedLogs, worker: str, **more: Any) -> list[str]:
    return [event.message for event in logs.read(worker, **more)]


def test_a_log_is_read_by_all_machines_while_its_worker_runs_and_after(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_logs, "_PULLED_BYTES", 5)  # several answers for a line
    leader, host, third = (machines.add() for _ in range(3))
    write(host, "w", b"first\nsecond\n")
    assert lines(leader, "w") == lines(host, "w") == ["first", "second"]
    [_, last] = leader.read("w")
    write(host, "w", b"third\n")
    assert lines(leader, "w", position=last.next_position) == ["third"]
    assert leader.size_bytes("w") == 19
    assert lines(leader, "w", limit=1, is_backward=True) == ["third"]

    write(host, "w", b"last\n")
    leader.keep("w", **NOTE)
    leader.keep("w", **NOTE)
    machines.silent.add(host)
    for logs in (leader, third, machines.add()):
        assert lines(logs, "w") == ["first", "second", "third", "last"]
        [ended] = logs.ended()
        assert (ended.worker, ended.log_group, ended.log_stream, ended.num_bytes) == ("w", "group", "stream", 24)
        assert logs.size_bytes("w") == 24
        assert logs.read("w")[1].position == last.position
        assert logs.read("w")[-1].timestamp_ms == ended.last_ms
    third.drop(["w"])
    machines.silent.clear()
    assert [logs.ended() for logs in machines.logs] == [[]] * 4
    assert lines(machines.add(), "w") == []
    assert machines.world.s3.buckets["own"] == {}


def test_the_log_of_a_machine_that_is_lost_is_what_others_have_copied(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_logs, "_PIECE_BYTES", 5)  # several answers for a line
    leader, host, third = machines.add(), machines.add(), machines.add()
    write(host, "ended", b"line\n")
    write(host, "w", b"copied\n")
    write(host, f"w/{CONTAINERS}/c", b"of a container\n")
    for logs in (third, leader, leader):
        logs.follow()
    host.keep("ended", **NOTE)
    assert lines(leader, "ended") == ["line"]
    write(host, "w", b"copied, too\n")
    third.follow()
    write(host, "w", b"not copied\n")
    machines.silent.add(host)
    for log in ("w", "w+c", "w"):
        third.keep(log, **NOTE)  # it leads now
    assert lines(leader, "w") == lines(third, "w") == ["copied", "copied, too"]
    assert lines(machines.add(), "w+c") == ["of a container"]
    assert sorted(log.worker for log in leader.ended()) == ["ended", "w", "w+c"]
    leader.keep("unknown", **NOTE)
    assert lines(leader, "no/name") == []


def test_a_piece_that_comes_late_does_not_change_a_log_that_was_kept(machines: Machines) -> None:
    leader, host = machines.add(), machines.add()
    write(host, "w", b"line\n")
    host.keep("w", **NOTE)
    assert lines(leader, "w") == ["line"]
    write(host, "w", b"line\nof another worker\n")
    machines.num_asked = 0
    leader.follow()
    leader.follow()
    assert lines(leader, "w") == ["line"]
    assert machines.num_asked == 3


def test_a_machine_that_led_reads_what_the_leader_has_copied_since(machines: Machines) -> None:
    before, leader = machines.add(are_copies=True), machines.add(are_copies=True)
    write(before, "w", b"first\n")
    leader.follow()
    (before.folders[0] / "w" / "log.txt").unlink()
    for logs in (before, leader):
        write(logs, "w", b"first\n")
    write(leader, "w", b"second\n")
    assert lines(before, "w") == lines(leader, "w") == ["first", "second"]
    leader.keep("w", **NOTE)
    assert lines(machines.add(), "w") == ["first", "second"]


def test_a_log_that_was_cut_keeps_its_positions(machines: Machines) -> None:
    host, other = machines.add(), machines.add()
    write(host, "w", b"kept\n")
    (host.folders[0] / "w" / "log.base").write_text("1000")
    assert [event.position for event in other.read("w")] == [1000]
    host.keep("w", **NOTE)
    assert [(event.position, event.message) for event in machines.add().read("w")] == [(1000, "kept")]


def test_callers_write_to_a_log_by_any_machine(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machines.add(), machines.add()
    name = open_name("group", "own")
    assert first.open("group", "own")
    assert not second.open("group", "own")
    first.put(name, [(1, "one"), (2, "two\nlines")])
    assert lines(second, name) == ["one", "two\nlines"]
    second.put(name, [(3, "three")])
    assert lines(first, name) == lines(second, name) == lines(machines.add(), name) == ["one", "two\nlines", "three"]
    [stream] = second.ended()
    assert (stream.is_open, stream.num_bytes) == (True, first.size_bytes(name))
    monkeypatch.setattr(shared_logs, "MAX_LOG_BYTES", 0)
    second.put(name, [(4, "begun again")])
    assert [lines(logs, name) for logs in machines.logs] == [["begun again"]] * 3
    with pytest.raises(ValueError, match="larger"):
        first.put(name, [(5, "x" * (1 << 20))])
    first.drop([name])
    with pytest.raises(OSError, match="removed"):
        second.put(name, [(6, "late")])
    assert second.open("group", "own")
    assert [lines(logs, name) for logs in machines.logs] == [[]] * 3


def test_logs_beyond_the_bounds_are_removed_for_all_machines(machines: Machines) -> None:
    host, other = machines.add(max_bytes=1 << 20), machines.add(max_bytes=1 << 20)
    for number in range(3):
        machines.now_s += 60
        write(host, f"w{number}", b"x" * 99 + b"\n" + b"y" * (450 << 10) + b"\n")
        other.keep(f"w{number}", **NOTE)
    assert [ended.worker for ended in other.ended()] == ["w1", "w2"]
    machines.now_s += 8 * 86_400
    assert other.ended() == []
    assert machines.world.s3.buckets["own"] == {}


def test_copies_of_logs_that_are_not_used_are_removed(machines: Machines) -> None:
    machines.now_s = time.time()
    host, other = machines.add(), machines.add()
    for worker in ("running", "ended"):
        write(host, worker, b"line\n")
        assert lines(other, worker) == ["line"]
    other.keep("ended", **NOTE)
    assert lines(other, "ended") == ["line"]
    machines.now_s = time.time() + 2 * 86_400
    other.sweep()
    assert [path.name for path in other.folders[1].iterdir()] == ["ended"]
    assert [lines(other, worker) for worker in ("running", "ended")] == [["line"], ["line"]]


def test_a_log_that_cannot_be_kept_is_an_error_of_the_disk(machines: Machines) -> None:
    host, other = machines.add(), machines.add()
    write(host, "w", b"line\n")
    other.open("group", "other")  # the prefix is agreed
    machines.world.s3.failure = EndpointConnectionError(endpoint_url="http://s3")
    with pytest.raises(OSError, match="bucket own"):
        host.keep("w", **NOTE)
    machines.world.s3.failure = None
    host.keep("w", **NOTE)
    assert lines(other, "w") == ["line"]
