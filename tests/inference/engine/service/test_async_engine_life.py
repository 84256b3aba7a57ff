"""The lifecycle of the engine on the fake runner: queueing, cancellation, failures, shutdown."""

import asyncio
import math
from dataclasses import replace

import pytest

from headrace.core.errors import Busy, EngineFailed, Unavailable
from headrace.core.generation import FinishReason
from headrace.inference.engine.core.choice import Choice
from headrace.inference.engine.core.observer import EngineObserver
from headrace.inference.engine.core.step_plan import StepPlan
from tests.inference.engine.support import (
    EOS,
    LIMITS,
    Gate,
    ask,
    core_of,
    make_engine,
    request,
    running,
    settled,
    thread_of,
)

NO_EOS = {EOS: -math.inf}


async def test_the_queue_is_bounded_and_refusals_say_when_to_retry() -> None:
    gate = Gate()
    limits = replace(
        LIMITS,
        max_model_len=64,
        max_prompt_tokens=32,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        max_waiting_seqs=3,
    )
    async with running(make_engine(limits=limits, before_step=gate)) as engine:
        gate.is_open.clear()
        tasks = [asyncio.create_task(ask(engine, request("x", max_new_tokens=2))) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await ask(engine, request("x", max_new_tokens=2))
        assert refused.value.retry_after_s >= 1
        gate.is_open.set()
        await asyncio.gather(*tasks)
        assert (await ask(engine, request("x", max_new_tokens=2))).finish.output_tokens > 0


async def test_closing_the_iterator_frees_the_blocks_before_the_next_step() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate, bias=NO_EOS)) as engine:
        other = asyncio.create_task(ask(engine, request("o" * 20, "other", max_new_tokens=300)))
        chunks = engine.generate(request("x" * 100, max_new_tokens=300))
        await anext(chunks)
        await settled(engine, lambda stats: stats.num_running == 2)
        gate.is_open.clear()
        await chunks.aclose()
        num_steps = len(gate.steps)
        gate.is_open.set()
        await settled(engine, lambda stats: stats.num_running == 1)
        await other
    # The step that was under way, and from then on only the other one.
    assert all(len(step.context_lens) == 1 for step in gate.steps[num_steps + 2 :])


async def test_cancelling_the_reader_aborts_the_request() -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        task = asyncio.create_task(ask(engine, request("x", max_new_tokens=400)))
        await settled(engine, lambda stats: stats.num_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(engine, lambda stats: stats.num_free_blocks == stats.num_blocks)


async def test_a_request_that_is_aborted_right_before_the_end_frees_its_blocks() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate, bias=NO_EOS)) as engine:
        chunks = engine.generate(request("x", max_new_tokens=300))
        await anext(chunks)
        gate.is_open.clear()
        await chunks.aclose()
        closing = asyncio.create_task(engine.close(deadline_s=5))
        await settled(engine, lambda _: thread_of(engine)._is_stopping)
        gate.is_open.set()
        await closing


async def test_an_idle_engine_runs_no_steps_and_its_thread_sleeps() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate)) as engine:
        await ask(engine, request("x", max_new_tokens=3))
        await settled(engine, lambda _: bool(thread_of(engine)._wakeup._waiters))
        rounds, steps = thread_of(engine).num_rounds, len(gate.steps)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert (thread_of(engine).num_rounds, len(gate.steps)) == (rounds, steps)


async def test_a_failed_step_ends_its_requests_and_the_engine_continues() -> None:
    # Steps 0-3 are the warm-up.
    async with running(make_engine(fail_on_steps={6})) as engine:
        broken = await ask(engine, request("x" * 40, max_new_tokens=20, ignore_eos=True))
        healthy = await ask(engine, request("x" * 40, max_new_tokens=20, ignore_eos=True))
        assert engine.is_healthy
    assert broken.finish.reason is FinishReason.ERROR
    assert "told to fail" in (broken.finish.message or "")
    assert len(broken.tokens) == 2
    assert healthy.finish.reason is FinishReason.LENGTH


async def test_consecutive_failures_make_the_engine_unhealthy_until_a_step_succeeds() -> None:
    async with running(make_engine(fail_on_steps={4, 5, 6})) as engine:
        for _ in range(3):
            assert (await ask(engine, request("x"))).finish.reason is FinishReason.ERROR
        assert not engine.is_healthy
        assert (await ask(engine, request("x", max_new_tokens=1))).finish.reason is not FinishReason.ERROR
        assert engine.is_healthy


async def test_a_runner_that_cannot_go_on_makes_an_idle_engine_unhealthy() -> None:
    async with running(make_engine()) as engine:
        assert engine.is_healthy
        thread_of(engine)._runner.is_healthy = False  # type: ignore[misc]
        assert not engine.is_healthy


async def test_a_model_that_fails_during_warm_up_does_not_start() -> None:
    engine = make_engine(fail_on_steps={0})
    with pytest.raises(EngineFailed, match="no token"):
        await engine.start()
    await engine.close(deadline_s=0)


async def test_a_crash_of_the_engine_ends_every_request_and_refuses_new_ones() -> None:
    engine = make_engine(bias=NO_EOS)
    await engine.start()
    chunks = engine.generate(request("x", max_new_tokens=300))
    await anext(chunks)
    core_of(engine).scheduler.schedule = None  # type: ignore[assignment, method-assign]
    reasons = [chunk.finish.reason async for chunk in chunks if chunk.finish is not None]
    assert reasons == [FinishReason.ERROR]
    assert not engine.is_healthy
    with pytest.raises(Unavailable, match="crashed"):
        await ask(engine, request("x"))
    await engine.close(deadline_s=0)


async def test_closing_lets_running_requests_finish() -> None:
    engine = make_engine(bias=NO_EOS)
    await engine.start()
    chunks = engine.generate(request("x", max_new_tokens=50))
    await anext(chunks)
    closing = asyncio.create_task(engine.close(deadline_s=20))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="shutting down"):
        await ask(engine, request("x"))
    finishes = [chunk.finish async for chunk in chunks if chunk.finish is not None]
    await closing
    await engine.close(deadline_s=0)
    assert [finish.reason for finish in finishes] == [FinishReason.LENGTH]


async def test_closing_aborts_remaining_requests_at_the_deadline() -> None:
    gate = Gate()
    engine = make_engine(bias=NO_EOS, before_step=gate)
    await engine.start()
    task = asyncio.create_task(ask(engine, request("x", max_new_tokens=400)))
    await settled(engine, lambda stats: stats.num_running == 1)
    gate.is_open.clear()
    closing = asyncio.create_task(engine.close(deadline_s=0))
    await asyncio.sleep(0)
    gate.is_open.set()
    answer = await task
    await closing
    assert (answer.finish.reason, answer.finish.output_tokens < 400) == (FinishReason.ABORT, True)


async def test_an_engine_that_is_not_started_refuses_requests() -> None:
    engine = make_engine()
    with pytest.raises(Unavailable, match="starting"):
        await ask(engine, request("x"))
    await engine.close(deadline_s=0)


async def test_an_observer_sees_steps_and_ends_but_not_the_warm_up() -> None:
    class Recorder(EngineObserver):
        def __init__(self) -> None:
            self.steps: list[tuple[StepPlan, float]] = []
            self.choices: list[Choice] = []

        def step_finished(self, plan: StepPlan, seconds: float) -> None:
            self.steps.append((plan, seconds))

        def choice_finished(self, choice: Choice) -> None:
            self.choices.append(choice)

    recorder = Recorder()
    async with running(make_engine(observer=recorder, bias=NO_EOS)) as engine:
        await ask(engine, request("x" * 10, "mine", max_new_tokens=4))
        stats = engine.stats()
    assert [(s.num_tokens, s.num_decodes) for s, _ in recorder.steps] == [(10, 0), (1, 1), (1, 1), (1, 1)]
    assert all(seconds >= 0 for _, seconds in recorder.steps)
    (choice,) = recorder.choices
    sequence = choice.sequence
    assert (choice.request_id, sequence.num_prompt_tokens, sequence.num_output_tokens) == ("mine", 10, 4)
    assert choice.queue_s is not None
    assert choice.queue_s >= 0
    assert (stats.prompt_tokens_total, stats.output_tokens_total, stats.steps_total) == (10, 4, 4)
    assert stats.step_thread_seconds_total == stats.step_seconds_total > 0, "the fake runner has one thread"
