"""The pool: batches, limits of time and number, restarts, and the end."""

import asyncio
import gc
import os
import random
import signal
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.telemetry import setup_logging
from headrace.serving.handlers.errors import LoadError, Refused
from headrace.serving.handlers.exchange import HandlerRequest
from headrace.serving.handlers.pool import HandlerPool, PoolPhase
from headrace.serving.handlers.process import ChildProcess
from headrace.serving.handlers.spec import RestartPolicy
from tests.waiting import WAIT_S

from .support import answer, ask, num_descriptors, pool_of, spec_for, submit, until
from .test_children import LOST, pid_of, runs

if TYPE_CHECKING:
    from headrace_handler.contract import Mode


async def test_requests_that_wait_together_are_one_batch(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, batch_size=4, max_batch_delay_ms=60_000)) as pool:
        responses = [await submit(pool, "size") for _ in range(4)]
        assert [await answer(response) for response in responses] == [(200, b"4")] * 4
        streams = [await submit(pool, "stream_in_threads", b"50") for _ in range(4)]
        parts = b"".join(b"part %d\n" % number for number in range(50))
        assert [await answer(stream) for stream in streams] == [(200, parts)] * 4, (
            "each thread waits for its own client"
        )
    async with pool_of(spec_for(tmp_path, batch_size=4, max_batch_delay_ms=10)) as pool:
        assert await ask(pool, "size") == (200, b"1")


async def test_a_response_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path)) as pool:
        gc.collect()
        gc.disable()
        try:
            for path in ("echo", "stream"):
                response = await submit(pool, path, b"3")
                is_alive = weakref.ref(response)
                assert (await answer(response))[0] == 200
                del response
                await until(lambda is_alive=is_alive: is_alive() is None)
        finally:
            gc.enable()


async def test_a_batch_has_one_mode(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, batch_size=4, max_batch_delay_ms=50)) as pool:
        modes: list[Mode] = ["predict", "predict", "explain", "predict"]
        requests = [HandlerRequest(request_id="r", path="/size", mode=mode) for mode in modes]
        responses = [pool.submit(request) for request in requests]
        sizes = [await answer(response) for response in responses]
    assert sizes == [(200, b"2"), (200, b"2"), (200, b"1"), (200, b"1")]


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, queue_size=1)) as pool:
        running, waiting = await submit(pool, "sleep", b"0.2"), await submit(pool, "echo")
        with pytest.raises(Refused) as refused:
            await submit(pool, "echo")
        assert refused.value.response.status == 503
        assert [await answer(running), await answer(waiting)] == [(200, b"slept"), (200, b"")]


async def test_a_late_call_is_answered_and_its_process_replaced_if_it_does_not_obey(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, call_timeout_s=1.0, chunk_timeout_s=1.0)) as pool:
        assert await ask(pool, "until_cancelled") == (500, LOST)
        pid = pid_of(pool)
        late, waiting = await submit(pool, "stall"), await submit(pool, "echo", b"waited")
        assert await answer(late) == (200, b"first!The model's code has passed its time limit.")
        assert await answer(waiting) == (200, b"waited")
        assert pid_of(pool) != pid
        assert pool.counts.late_calls == 1


async def test_the_time_of_a_slow_client_is_not_that_of_the_code(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, chunk_timeout_s=3.0)) as pool:
        response = await submit(pool, "stream", b"20")
        await response.head()
        await asyncio.sleep(3.5)
        status, body = await answer(response)
        assert (status, body.count(b"\n"), b"!" in body) == (200, 20, False)


async def test_children_are_added_under_load_and_removed_when_idle(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, max_workers=2, max_idle_s=0.2)) as pool:
        responses = [await submit(pool, "sleep", b"1") for _ in range(3)]
        await until(lambda: pool.num_ready == 2)
        assert [await answer(response) for response in responses] == [(200, b"slept")] * 3
        await until(lambda: len(pool.workers) == 1)
        assert await ask(pool, "echo", b"one left") == (200, b"one left")


async def test_children_that_become_idle_together_leave_the_minimum(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, max_idle_s=0.05)) as pool:
        pool.scale(2, 2)
        await until(lambda: pool.num_ready == 2)
        pool.scale(1, 2)
        await until(lambda: len(pool.workers) < 2)
        assert [worker.stopping.is_set() for worker in pool.workers] == [False]


async def test_a_request_that_arrives_while_the_last_child_ends_gets_a_new_one(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, max_idle_s=0.05)) as pool:
        pool.scale(0, 1)
        (worker,) = pool.workers
        await worker.stopping.wait()
        assert await ask(pool, "echo", b"late") == (200, b"late")


async def test_a_model_that_is_scaled_to_zero_while_it_loads_has_started(tmp_path: Path) -> None:
    pool = HandlerPool(spec_for(tmp_path))
    starting = asyncio.create_task(pool.start())
    await until(lambda: bool(pool.workers))
    pool.scale(0, 0)
    async with asyncio.timeout(WAIT_S):
        await starting
    pool.scale(1, 1)
    assert await ask(pool, "echo", b"up") == (200, b"up")
    await pool.close(deadline_s=0)


async def test_a_model_that_is_closed_while_it_loads_has_not_started(tmp_path: Path) -> None:
    pool = HandlerPool(spec_for(tmp_path))
    starting = asyncio.create_task(pool.start())
    await until(lambda: bool(pool.workers))
    await pool.close(deadline_s=0)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(LoadError, match="stopped before"):
            await starting


async def test_queued_requests_are_refused_when_no_child_may_run(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path)) as pool:
        running, queued = await submit(pool, "sleep", b"0.5"), await submit(pool, "echo")
        pool.scale(0, 0)
        assert await answer(running) == (200, b"slept")
        assert (await answer(queued))[0] == 503


async def test_a_refused_request_leaves_no_descriptor(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path)) as pool:
        pool.scale(0, 0)
        await until(lambda: not pool.workers)  # the end of a child opens files, too
        before = num_descriptors()
        for _ in range(5):
            with pytest.raises(Refused):
                await submit(pool, "echo", b"x" * (2 << 20))
        await until(lambda: num_descriptors() <= before)


async def test_the_number_of_children_can_be_set_and_they_spread_over_the_gpus(tmp_path: Path) -> None:
    spec = spec_for(tmp_path, num_gpus=2)
    environment = {**spec.environment, "CUDA_VISIBLE_DEVICES": "4,7"}
    async with pool_of(replace(spec, load=replace(spec.load, device=0), environment=environment)) as pool:
        pool.scale(2, 2)
        await until(lambda: pool.num_ready == 2)
        assert [visible_gpus(worker.child) for worker in pool.workers] == ["4", "7"]
        pool.scale(0, 0)
        await until(lambda: not pool.workers)
        with pytest.raises(Refused):
            await submit(pool, "echo")
        pool.scale(1, 1)
        assert await ask(pool, "echo", b"back") == (200, b"back")


def visible_gpus(child: ChildProcess | None) -> str:
    assert child is not None
    variables = Path(f"/proc/{child.pid}/environ").read_text().split("\0")
    return next(value for name, _, value in (variable.partition("=") for variable in variables) if name == _GPUS)


_GPUS = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("refuses", "System out of memory"),
        ("raises", "KeyError: 'model_id'"),
        ("exits", "SystemExit: 3\nThe last lines of its output:\nno weights here"),
        ("raises", 'raise KeyError("model_id")'),  # of the traceback
    ],
)
async def test_a_start_fails_with_the_cause_and_the_last_lines(tmp_path: Path, entry: str, text: str) -> None:
    pool = HandlerPool(spec_for(tmp_path, entry=entry))
    with pytest.raises(LoadError) as failed:
        await pool.start()
    assert text in failed.value.message
    assert pool.phase is PoolPhase.CLOSED


async def test_a_load_that_hangs_ends_at_its_limit_without_a_process(tmp_path: Path) -> None:
    pool = HandlerPool(spec_for(tmp_path, entry="hangs", load_timeout_s=0.5))
    starting = asyncio.create_task(pool.start())
    await until(lambda: bool(pool.workers) and pool.workers[0].child is not None)
    pid = pid_of(pool)
    with pytest.raises(LoadError, match=r"not loaded within 0\.5 s\. Raise SAGEMAKER_STARTUP_TIMEOUT"):
        await starting
    assert not runs(pid)


async def test_a_model_is_given_up_by_its_policy_and_queued_requests_are_refused(tmp_path: Path) -> None:
    spec = spec_for(tmp_path, entry="dies on the second start", restart=RestartPolicy(max_failures=1))
    async with pool_of(spec) as pool:
        dying, waiting = await submit(pool, "kill"), await submit(pool, "echo")
        assert await answer(dying) == (500, LOST)
        assert (await answer(waiting))[0] == 503
        assert pool.phase is PoolPhase.FAILED
        with pytest.raises(Refused):
            await submit(pool, "echo")


async def test_requests_in_flight_end_before_the_pool_within_its_deadline(tmp_path: Path) -> None:
    pool = HandlerPool(spec_for(tmp_path))
    await pool.start()
    running, waiting = await submit(pool, "sleep", b"0.2"), await submit(pool, "echo", b"last")
    closing = asyncio.create_task(pool.close(deadline_s=WAIT_S))
    assert [await answer(running), await answer(waiting)] == [(200, b"slept"), (200, b"last")]
    await closing
    assert not pool.workers


async def test_every_call_ends_once_while_children_are_killed_at_random(tmp_path: Path) -> None:
    choose = random.Random(16)
    pids: set[int] = set()
    async with pool_of(spec_for(tmp_path, min_workers=2, max_workers=2)) as pool:

        async def kill() -> None:
            while True:
                await asyncio.sleep(choose.uniform(0.01, 0.1))
                children = [worker.child for worker in pool.workers if worker.child is not None]
                pids.update(child.pid for child in children)
                victim = choose.choice(children)
                if victim.is_alive and victim.num_answered:  # others would be started again with a delay
                    os.kill(victim.pid, signal.SIGKILL)

        killing = asyncio.create_task(kill())
        responses = [await submit(pool, "pid") for _ in range(200)]
        answers = [await answer(response) for response in responses]
        killing.cancel()
        assert len(answers) == 200
        assert {status for status, _ in answers} <= {200, 500}
        assert sum(status == 200 for status, _ in answers) > 100
        assert pool.counts.restarts > 0
    assert not [pid for pid in pids if runs(pid)]


async def test_a_start_that_fails_does_not_repeat_the_lines_that_a_terminal_has_shown(tmp_path: Path) -> None:
    setup_logging(format="console")
    try:
        with pytest.raises(LoadError) as failed:
            await HandlerPool(spec_for(tmp_path, entry="raises")).start()
    finally:
        setup_logging()
    assert failed.value.message == "KeyError: 'model_id'"
