"""Counts of access keys in files that the processes of a platform share."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.platform.gateway.key_usage import KeyUsages, Usage
from headrace.serving.wire.key_limits import MinuteCount

NUM_PROCESSES, NUM_EACH = 3, 200
NOW_S = 6_000.0
MINUTE_S = 60.0


def test_processes_see_each_others_counts_at_once(tmp_path: Path) -> None:
    first, second = (KeyUsages(tmp_path / "usage") for _ in range(2))
    first.of("K").add(NOW_S, requests=1, tokens=10, in_flight=1)
    second.of("K").add(NOW_S, requests=2, tokens=5)
    second.of("OTHER").add(NOW_S, requests=9)
    assert first.of("K").read(NOW_S).requests == second.of("K").read(NOW_S).requests == MinuteCount(3, 0)
    assert second.of("K").read(NOW_S + 30) == Usage(MinuteCount(3, 0), MinuteCount(15, 0), 0, 30.0)
    second.live = {first.owner}
    assert second.of("K").read(NOW_S).in_flight == 1
    first.of("K").add(NOW_S, tokens=-4, in_flight=-1)
    assert second.of("K").read(NOW_S) == Usage(MinuteCount(3, 0), MinuteCount(11, 0), 0, 0.0)


def test_counts_of_other_machines_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.platform.gateway.key_usage.time.time", lambda: NOW_S + 70)
    here, there = KeyUsages(tmp_path / "here"), KeyUsages(tmp_path / "there")
    here.of("K").add(NOW_S, requests=1, tokens=10, in_flight=1)
    there.of("K").add(NOW_S, requests=2, tokens=5, in_flight=1)
    there.of("K").add(NOW_S + 61, requests=4)
    there.of("OLD").add(NOW_S - 300, requests=4)
    there.of("READ").read(NOW_S)
    here.elsewhere = [there.own()]
    assert list(there.own()) == ["K"]
    assert here.of("K").read(NOW_S + 70) == Usage(MinuteCount(4, 3), MinuteCount(0, 15), 2, 10.0)
    assert here.of("K").read(NOW_S + 130).requests == MinuteCount(0, 4)
    here.elsewhere = []
    assert here.of("K").read(NOW_S).requests == MinuteCount(1, 0)


def test_counts_move_to_the_minute_before_and_then_away(tmp_path: Path) -> None:
    usages = KeyUsages(tmp_path)
    counter = usages.of("K")
    counter.add(NOW_S, requests=5)
    assert counter.read(NOW_S + MINUTE_S).requests == MinuteCount(0, 5)
    counter.add(NOW_S + MINUTE_S, requests=1)
    assert counter.read(NOW_S + MINUTE_S).requests == MinuteCount(1, 5)
    assert counter.read(NOW_S + 2 * MINUTE_S).requests == MinuteCount(0, 1)
    counter.add(NOW_S + 9 * MINUTE_S, requests=1)
    assert counter.read(NOW_S + 9 * MINUTE_S).requests == MinuteCount(1, 0)


def test_a_new_process_goes_on_with_the_counts_of_the_last_one_without_its_requests_in_flight(tmp_path: Path) -> None:
    KeyUsages(tmp_path).of("K").add(NOW_S, requests=7, tokens=70, in_flight=3)  # killed
    new = KeyUsages(tmp_path).of("K")
    new.add(NOW_S + 1, requests=1, in_flight=1)
    assert new.read(NOW_S + 2) == Usage(MinuteCount(8, 0), MinuteCount(70, 0), 1, 2.0)


def test_restarts_fill_no_file(tmp_path: Path) -> None:
    """The slots of processes that have ended are taken, also when there are more processes than slots."""
    for number in range(200):
        counter = KeyUsages(tmp_path).of("K")
        counter.add(NOW_S + number * MINUTE_S, requests=1)
    assert counter.read(NOW_S + 199 * MINUTE_S).requests == MinuteCount(1, 1)
    for _ in range(100):
        counter = KeyUsages(tmp_path).of("K")
        counter.add(NOW_S + 300 * MINUTE_S, requests=1)
    assert 60 <= counter.read(NOW_S + 300 * MINUTE_S).requests.now <= 64


def test_a_slot_that_was_idle_is_not_taken_from_a_process_that_runs(tmp_path: Path) -> None:
    idle, other, stranger = (KeyUsages(tmp_path) for _ in range(3))
    idle.of("K").add(NOW_S, in_flight=1)
    other.live = {idle.owner}
    other.of("K").add(NOW_S + 10 * MINUTE_S, requests=1)
    assert other.of("K").read(NOW_S + 10 * MINUTE_S).in_flight == 1
    stranger.of("K").add(NOW_S + 10 * MINUTE_S, requests=1)  # it does not know of the other processes yet
    idle.of("K").add(NOW_S + 10 * MINUTE_S, requests=1)
    assert other.of("K").read(NOW_S + 10 * MINUTE_S) == Usage(MinuteCount(3, 0), MinuteCount(0, 0), 1, 0.0)


def test_a_folder_that_cannot_be_written_leaves_counts_in_memory(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("a file")
    counter = KeyUsages(tmp_path / "usage").of("K")
    counter.add(NOW_S, requests=1)
    assert counter.read(NOW_S).requests == MinuteCount(1, 0)


def _count(folder: Path, start: Callable[[], object]) -> None:
    counter = KeyUsages(folder).of("K")
    start()
    for _ in range(NUM_EACH):
        counter.add(NOW_S, requests=1, tokens=2)


def test_nothing_is_lost_when_processes_count_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(NUM_PROCESSES)
    processes = [context.Process(target=_count, args=(tmp_path, barrier.wait)) for _ in range(NUM_PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    total = NUM_PROCESSES * NUM_EACH
    found = KeyUsages(tmp_path).of("K").read(NOW_S)
    assert (found.requests.now, found.tokens.now) == (total, 2 * total)
