"""
Batch invariance: an answer is the same bytes alone and among 64, with any cache hits, chunks and preemptions.

Proves that the engine gives the runner the same rows in any company: a fake runner, whose logits are a hash of
all earlier tokens, sees any block that is lost, shared or overwritten. `test_native_bytes` is the same on the kernels.
"""

import asyncio
import math
import random
from dataclasses import replace

import pytest

from headrace.core.generation import FinishReason, GenerationRequest, RepetitionDetection
from headrace.core.session import Session
from tests.inference.engine.books import check_scheduler
from tests.inference.engine.support import (
    LIMITS,
    Answer,
    ask,
    ask_and_leave,
    ask_together,
    core_of,
    make_engine,
    request,
    runner_limits,
    running,
    settled,
)

NUM_REQUESTS = 64
SHARED = "You are a helpful assistant who answers in one short sentence. "


def mixed_requests() -> list[GenerationRequest]:
    """Return half of them greedy, half seeded."""
    rng = random.Random(11)
    wanted = []
    for index in range(NUM_REQUESTS):
        prompt = (SHARED if index % 2 else "") + "".join(rng.choice("abc é漢🌊") for _ in range(rng.randint(1, 60)))
        sampling: dict[str, object] = {"max_new_tokens": rng.randint(1, 70), "logprobs": rng.choice([None, 0, 2])}
        if index // 2 % 2:
            sampling |= {"temperature": 0.8, "top_p": 0.9, "seed": index}
        if index % 5 == 0:
            sampling |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {65: 4.0}}
        if index % 7 == 0:
            sampling |= {"stop": ("a", "\ufffd\ufffd"), "min_new_tokens": 1}
        if index % 3 == 0:
            rule = RepetitionDetection(max_pattern_size=2, min_pattern_size=1, min_count=2)
            sampling |= {"repetition_detection": rule}
        wanted.append(request(prompt, f"r{index}", **sampling))
    return wanted


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, replace(answer.finish, cached_tokens=0)


async def alone(wanted: list[GenerationRequest]) -> list[tuple[object, ...]]:
    """Each request alone, nothing cached, whole prompts in one step."""
    limits = replace(LIMITS, enable_prefix_caching=False, max_num_batched_tokens=512)
    async with running(make_engine(limits=limits)) as engine:
        return [essence(await ask(engine, request)) for request in wanted]


@pytest.fixture(scope="module")
def expected_answers() -> list[tuple[object, ...]]:
    return asyncio.run(alone(mixed_requests()))


CASES = {
    "cached": (LIMITS, 512),
    "not cached": (replace(LIMITS, enable_prefix_caching=False), 512),
    "small chunks": (replace(LIMITS, max_num_batched_tokens=64), 512),
    "guarded latency": (replace(LIMITS, max_step_s=0.002), 512),
    "tiny pool": (replace(LIMITS, max_num_seqs=32), 28),
}


@pytest.mark.parametrize("case", list(CASES))
async def test_sixty_four_concurrent_answers_equal_those_of_each_request_alone(
    case: str, expected_answers: list[tuple[object, ...]]
) -> None:
    limits, num_blocks = CASES[case]
    wanted = mixed_requests()
    async with running(make_engine(limits=limits, room=runner_limits(num_blocks))) as engine:
        if case == "tiny pool":
            core_of(engine).scheduler._expected_output_tokens = 1.0
        answers = await ask_together(engine, wanted)
        assert [essence(answer) for answer in answers] == expected_answers
        stats = engine.stats()
        if case == "tiny pool":
            assert stats.preemptions_total > 0
        if case == "cached":
            assert stats.cached_tokens_total > 0
        if case == "not cached":
            assert stats.cached_tokens_total == 0


async def test_a_prefix_hit_gives_the_same_bytes() -> None:
    async with running(make_engine()) as engine:
        wanted = request(SHARED * 3, max_new_tokens=30, logprobs=3)
        first, second = await ask(engine, wanted), await ask(engine, wanted)
    assert (first.finish.cached_tokens, second.finish.cached_tokens) == (0, 176)
    assert essence(first) == essence(second)


async def test_the_prompt_of_a_session_stays_cached_while_others_fill_the_cache() -> None:
    session = Session("s", expires_s=math.inf)
    for mine, cached_tokens in ((None, 0), (session, 176)):
        async with running(make_engine(room=runner_limits(40))) as engine:
            wanted = replace(request(SHARED * 3, max_new_tokens=2), session=mine)
            await ask(engine, wanted)
            for letter in "abc":
                await ask(engine, request(letter * 400, max_new_tokens=2))
            assert (await ask(engine, wanted)).finish.cached_tokens == cached_tokens


async def test_a_preempted_answer_continues_where_it_stopped() -> None:
    """Two long answers in a pool that holds one and a half: the newer one is read in again, not drawn again."""
    wanted = [request("x" * 30, "old", max_new_tokens=150), request("y" * 30, "new", max_new_tokens=150)]
    wanted = [replace(w, sampling=replace(w.sampling, temperature=1.0, seed=i)) for i, w in enumerate(wanted)]
    wanted = [replace(w, sampling=replace(w.sampling, ignore_eos=True)) for w in wanted]
    expected = await alone(wanted)
    async with running(make_engine(room=runner_limits(18))) as engine:
        core_of(engine).scheduler._expected_output_tokens = 1.0
        answers = await ask_together(engine, wanted)
        assert engine.stats().preemptions_total >= 1
        assert engine.stats().output_tokens_total == 300
    assert [essence(answer) for answer in answers] == expected
    assert {answer.finish.reason for answer in answers} == {FinishReason.LENGTH}


async def test_random_arrivals_and_aborts_leave_the_pool_consistent() -> None:
    """2,000 small requests, a third of them cancelled somewhere, in a pool that is always too small."""
    rng = random.Random(3)
    limits = replace(
        LIMITS,
        max_model_len=128,
        max_prompt_tokens=100,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        max_waiting_seqs=1000,
    )

    async def one(engine_number: int) -> None:
        prompt = "shared beginning " * rng.randint(0, 3) + "z" * rng.randint(1, 20)
        asked = request(prompt, max_new_tokens=rng.randint(1, 12))
        await ask_and_leave(engine, asked, rng.randint(0, 6) if engine_number % 3 == 0 else 1000)

    async with running(make_engine(limits=limits, room=runner_limits(24))) as engine:
        for start in range(0, 2_000, 200):
            await asyncio.gather(*(one(start + index) for index in range(200)))
            await settled(engine, lambda stats: stats.num_running + stats.num_waiting == 0)
            check_scheduler(core_of(engine).scheduler)
