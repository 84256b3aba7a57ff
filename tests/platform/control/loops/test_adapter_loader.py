"""Calls that load and unload adapters: their outcome, their errors, and their end."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.loops.adapter_loader import AdapterLoader, message_of, outcome
from headrace.platform.control.model.worker import WORKER, AdapterState, ReplicaSpec
from headrace.platform.control.planning.worker_actions import LoadAdapter, UnloadAdapter
from headrace.platform.state.records import Record
from headrace.platform.state.store import open_store
from headrace.testing.fake_launcher import ManualClock

LOAD = LoadAdapter(worker="w", url="http://w", adapter="a", version="uid/2", source="s3://b/a", timeout_s=60)
UNLOAD = UnloadAdapter(worker="w", url="http://w", adapter="a")
BEFORE = AdapterState(loaded="uid/1")


@given(st.integers(min_value=0, max_value=599), st.text(max_size=20))
def test_a_load_either_replaces_the_version_or_keeps_the_old_one_with_the_failure(status: int, text: str) -> None:
    state = outcome(LOAD, BEFORE, status, text, now_s=5.0)
    assert state is not None
    if 200 <= status < 300:
        assert state == AdapterState(loaded="uid/2")
    else:
        assert (state.loaded, state.failed, state.failed_s, state.failure) == ("uid/1", "uid/2", 5.0, text)


@pytest.mark.parametrize(
    ("status", "is_permanent"),
    [
        (0, False),
        (400, True),
        (403, True),
        (408, False),
        (422, True),
        (429, False),
        (500, False),
        (503, False),
        (507, True),
    ],
)
def test_only_what_cannot_pass_by_itself_ends_a_deployment(status: int, is_permanent: bool) -> None:
    state = outcome(LOAD, BEFORE, status, "no", now_s=5.0)
    assert state is not None
    assert state.is_permanent == is_permanent


@pytest.mark.parametrize(("status", "after"), [(200, None), (404, None), (503, BEFORE), (0, BEFORE)])
def test_an_adapter_is_unloaded_once_the_worker_says_so_or_does_not_know_it(status: int, after: object) -> None:
    assert outcome(UNLOAD, BEFORE, status, "", now_s=5.0) == after


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"error": "It is\\n a DoRA.", "error_type": "validation"}', "It is a DoRA."),
        (b'{"error": {"message": "no", "code": 400}}', "no"),
        (b'{"message": "no"}', "no"),
        (b"<html>no</html>", "<html>no</html>"),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_message_of_an_error_is_found_in_every_dialect(answer: bytes, message: str) -> None:
    assert message_of(answer) == message


@given(st.binary(max_size=2000))
def test_any_answer_has_a_message_of_bounded_length(answer: bytes) -> None:
    assert len(message_of(answer)) <= 900


async def test_one_call_at_a_time_is_sent_for_an_adapter_and_closing_cancels_it() -> None:
    clock = ManualClock()
    store = open_store("sqlite://", now_s=clock)
    spec = ReplicaSpec(endpoint="e", endpoint_uid="u", variant="v", revision=1, log_group="g", log_stream="s")
    store.create(WORKER, "w", spec=spec)
    loader, begun, num_calls = AdapterLoader(store, clock=clock), asyncio.Event(), 0

    async def call(_url: str, _request: object) -> tuple[int, bytes]:
        nonlocal num_calls
        num_calls += 1
        begun.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    loader.call = call
    for _ in range(3):
        loader.act(LOAD)
    await begun.wait()
    await loader.close()
    record = store.get(WORKER, "w")
    store.close()
    assert num_calls == 1
    assert isinstance(record, Record)
    assert not record.status.adapters


async def test_the_outcome_for_a_worker_that_is_gone_is_dropped() -> None:
    store = open_store("sqlite://")
    loader = AdapterLoader(store, clock=ManualClock())

    async def call(_url: str, _request: object) -> tuple[int, bytes]:
        return 200, b"{}"

    loader.call = call
    loader.act(LOAD)
    await loader.settled()
    assert not store.list(WORKER)
    store.close()
