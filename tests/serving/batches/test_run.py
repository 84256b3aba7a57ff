"""Batches whose requests are refused, fail, come too late or are lost with the process."""

import asyncio
from pathlib import Path

import pytest

from headrace.core.files import Files
from headrace.serving.batches import calls
from headrace.serving.batches.calls import Answer, Call, Retries
from headrace.serving.batches.store import BatchStore, Paging
from headrace.serving.wire.batches import Batch
from headrace.serving.wire.unknown_routes import CHAT

from .conftest import lines_of
from .runs import OWNER, Clock, answer, make_batch, results, run_batches


class Killed(Exception):
    """Stands for a kill of the process."""


class MortalStore(BatchStore):
    """A store whose process dies at one of its writes of a batch's state."""

    saves_left: int | None = None

    def save(self, owner: str, batch: Batch) -> None:
        if self.saves_left is not None:
            self.saves_left -= 1
            if self.saves_left < 0:
                raise Killed
        super().save(owner, batch)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> MortalStore:
    return MortalStore(Files(tmp_path / "batches"), max_bytes=1 << 30, clock=clock)


async def test_a_refused_request_is_sent_again_and_one_that_fails_three_times_is_an_error(store, clock, monkeypatch):
    monkeypatch.setattr(calls, "MAX_PAUSE_S", 0.001)
    sent: list[Call] = []
    answers = {"word 0": [429, 503, 200], "word 1": [500, 502, 504, 200], "word 2": [404]}

    async def send(call: Call) -> Answer:
        sent.append(call)
        status = next(statuses.pop(0) for text, statuses in answers.items() if text.encode() in call.body)
        return Answer(status=status, body=b"{}")

    batch = make_batch(store, lines_of(3), clock)
    batches = await run_batches(store, send, clock)
    ended = store.batch(OWNER, batch.id)

    assert (ended.status, ended.counts.completed, ended.counts.failed) == ("completed", 1, 2)
    assert results(store, ended.output_file_id) == ["r0"]
    assert sorted(results(store, ended.error_file_id)) == ["r1", "r2"]
    assert answers == {"word 0": [], "word 1": [200], "word 2": []}
    assert {(call.path, call.owner) for call in sent} == {(f"/endpoints/e/openai{CHAT}", "key")}
    assert batches.metrics.lines == {"completed": 1, "failed": 2, "expired": 0, "cancelled": 0}


def test_a_request_that_never_finds_room_is_an_error_after_hours():
    retries = Retries(began_s=0.0)
    busy = Answer(status=429, headers={"retry-after": "7"})
    assert retries.next_pause_s(busy, 1.0) == 7.0
    assert retries.next_pause_s(Answer(status=429, headers={"retry-after": "nan"}), 1.0) == 2.0
    assert retries.next_pause_s(busy, calls.PATIENCE_S + 1) is None
    assert retries.next_pause_s(Answer(status=503), 1e6) is not None  # a model that is being mended


async def test_requests_beyond_the_window_of_the_batch_are_expired(store, clock):
    async def send(_call: Call) -> Answer:
        clock.now_s += 50_000
        return Answer(status=200, body=b"{}")

    batch = make_batch(store, lines_of(20), clock)
    clock.now_s += 86_400 - 0.05
    batches = await run_batches(store, send, clock)
    ended = store.batch(OWNER, batch.id)

    output, errors = results(store, ended.output_file_id), results(store, ended.error_file_id)
    assert ended.status in {"expired", "completed"}
    assert sorted(output + errors) == sorted(f"r{number}" for number in range(20))
    assert batches.metrics.lines["expired"] == ended.counts.expired == len(errors)


async def test_a_batch_that_was_found_too_late_is_expired_at_once(store, clock):
    async def send(_call: Call) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    batch = make_batch(store, lines_of(3), clock)
    clock.now_s += 86_401
    await run_batches(store, send, clock)
    ended = store.batch(OWNER, batch.id)
    assert (ended.status, ended.counts.expired, ended.output_file_id) == ("expired", 3, None)
    assert sorted(results(store, ended.error_file_id)) == ["r0", "r1", "r2"]


async def test_a_kill_at_any_write_loses_and_doubles_nothing(store, clock):
    """Each time another write of the state is the last one of a process; the next process goes on."""
    batch = make_batch(store, lines_of(9), clock)
    for store.saves_left in (0, 1, 0, 1, 0):
        await run_batches(store, answer, clock)
        assert store.open_batches()
    store.saves_left = None
    await run_batches(store, answer, clock)
    ended = store.batch(OWNER, batch.id)

    assert ended.status == "completed"
    assert sorted(results(store, ended.output_file_id)) == sorted(f"r{number}" for number in range(9))
    files, _ = store.files(OWNER, Paging(limit=10), purpose="batch_output")
    assert [file.id for file in files] == [ended.output_file_id]


async def test_the_folder_forgets_what_has_expired_and_what_killed_processes_left(store, clock):
    batch = make_batch(store, lines_of(1), clock)
    await run_batches(store, answer, clock)
    ended = store.batch(OWNER, batch.id)
    store.new_upload(OWNER).write_bytes(b"half")
    (store.root / "open" / "_.batch_never").touch()

    store.sweep()
    assert store.batch(OWNER, batch.id) == ended
    clock.now_s = 4e9
    store.sweep()

    assert [path.name for path in store.root.rglob("*") if path.is_file()] == []
