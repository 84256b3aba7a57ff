"""
Drafting does not change answers: the bytes are those of plain decoding, whatever is accepted.

Proves that the engine drops refused draft tokens from answers, blocks and hashes: the fake runner shows which tokens a
block holds. `tests/inference/engine/test_native_bytes.py` drafts on the kernels.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from headrace.core.generation import FinishReason, GenerationRequest, Grammar, RepetitionDetection
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.blocks import chain_hash, root_hash
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.engine.spec_decode.drafting import RowCostModel
from headrace.testing.fake_runner import FakeRunner
from tests.inference.engine.support import (
    EOS,
    LIMITS,
    VOCAB_SIZE,
    Answer,
    FreeRows,
    ask,
    ask_all,
    ask_together,
    core_of,
    make_engine,
    request,
    runner_limits,
    running,
)

LETTERS = tuple(b"abcd")
FEW_LETTERS = {token: -100.0 for token in range(VOCAB_SIZE) if token not in LETTERS and token != EOS} | {EOS: -3.0}
"""Answers over four letters repeat themselves all the time and are wrong most of the time."""
DRAFTING = replace(LIMITS, max_draft_tokens=6)


def babble(prefix: tuple[int, ...]) -> int | None:
    """A text that goes round in a circle and leaves it now and then."""
    return None if sum(prefix[-7:]) % 9 == 0 else LETTERS[sum(prefix[-2:]) % 4]


def drafting_engine(*, limits: EngineLimits = DRAFTING, num_blocks: int = 512, **options: object) -> AsyncEngine:
    engine = make_engine(limits=limits, room=runner_limits(num_blocks), **options)
    core_of(engine).scheduler._row_costs = FreeRows()
    return engine


def mixed_requests() -> list[GenerationRequest]:
    """Return half of them greedy, half seeded."""
    rng = random.Random(5)
    wanted = []
    for index in range(16):
        prompt = "system " * (index % 3) + "".join(rng.choice("abcd") for _ in range(rng.randint(2, 60)))
        sampling: dict[str, object] = {"max_new_tokens": rng.randint(30, 90), "logprobs": rng.choice([None, 0, 2])}
        if index % 2:
            sampling["ignore_eos"] = True
        if index % 8 >= 4:
            sampling |= {"temperature": 1.0, "top_p": 0.95, "seed": index}
        if index % 4 == 0:
            sampling |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.7}
        if index % 5 == 0:
            sampling |= {"stop": ("abcabd", "ddd"), "logit_bias": {97: 2.0}}
        if index % 6 == 0:
            sampling["min_new_tokens"] = 20
        if index % 7 == 0:
            sampling |= {"prompt_logprobs": 1}
        if index % 4 == 1:
            rule = RepetitionDetection(max_pattern_size=8, min_pattern_size=2, min_count=3)
            sampling |= {"repetition_detection": rule}
        wanted.append(request(prompt, f"r{index}", **sampling))
    return wanted


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, answer.prompt, replace(answer.finish, cached_tokens=0)


async def plainly(wanted: list[GenerationRequest], **options: object) -> list[tuple[object, ...]]:
    """Each request alone, without drafts and without a cache."""
    async with running(make_engine(limits=replace(LIMITS, enable_prefix_caching=False), **options)) as engine:
        return [essence(await ask(engine, request)) for request in wanted]


TEXTS = {"letters": {"bias": FEW_LETTERS}, "babble": {"bias": FEW_LETTERS, "script": babble}}
CASES = {
    "cached": (DRAFTING, 512),
    "not cached": (replace(DRAFTING, enable_prefix_caching=False), 512),
    "one at a time": (replace(DRAFTING, max_num_seqs=1), 512),
    "small steps": (replace(DRAFTING, max_num_batched_tokens=64), 512),
    "guarded latency": (replace(DRAFTING, max_step_s=0.002), 512),
    "long drafts": (replace(DRAFTING, max_draft_tokens=40), 512),
    "tiny pool": (replace(DRAFTING, max_num_seqs=32), 13),
}


@pytest.mark.parametrize("text", TEXTS)
async def test_drafting_does_not_change_any_answer(text: str) -> None:
    wanted = mixed_requests()
    expected = await plainly(wanted, **TEXTS[text])
    for case, (limits, num_blocks) in CASES.items():
        async with running(drafting_engine(limits=limits, num_blocks=num_blocks, **TEXTS[text])) as engine:
            core_of(engine).scheduler._expected_output_tokens = 1.0
            answers = await ask_together(engine, wanted)
            stats = engine.stats()
        assert [essence(answer) for answer in answers] == expected, case
        assert 0 < stats.accepted_tokens_total < stats.drafted_tokens_total, case
        assert stats.output_tokens_total == sum(len(answer.tokens) for answer in answers)
        assert stats.preemptions_total > 0 or case != "tiny pool"


@pytest.mark.parametrize("text", list(TEXTS))
async def test_registered_blocks_hold_the_tokens_of_their_hash(text: str) -> None:
    """A refused draft must leave nothing behind: neither in a block that is full nor under a wrong hash."""
    async with running(drafting_engine(**TEXTS[text])) as engine:
        wanted = [request("ab" * 9 + letter, max_new_tokens=200, ignore_eos=True) for letter in "abcd"]
        answers = await asyncio.gather(*(ask(engine, request) for request in wanted))
        pool, runner = core_of(engine).scheduler.pool, core_of(engine)._runner
        assert isinstance(runner, FakeRunner)
        for request_, answer in zip(wanted, answers, strict=True):
            tokens = [*str(request_.prompt).encode(), *answer.ids]
            found, block_hash = 0, root_hash("salt:")
            for start in range(0, len(tokens) - 16, 16):
                block_tokens = tokens[start : start + 16]
                block_hash = chain_hash(block_hash, b"".join(token.to_bytes(4, "little") for token in block_tokens))
                block = pool.find(block_hash)
                assert block is not None
                assert runner._cache[block * 16 : block * 16 + 16].tolist() == block_tokens
                found += 1
            assert found == (len(tokens) - 1) // 16
        assert 0 < engine.stats().accepted_tokens_total < engine.stats().drafted_tokens_total


async def test_accepted_draft_tokens_are_prefix_hits_in_the_next_turn() -> None:
    async with running(drafting_engine(**TEXTS["babble"])) as engine:
        first = await ask(engine, request("abcd", max_new_tokens=150, ignore_eos=True))
        longer = request(tuple(b"abcd") + tuple(first.ids) + tuple(b"dcba"), max_new_tokens=50, ignore_eos=True)
        second = await ask(engine, longer)
    assert second.finish.cached_tokens == (4 + 150 - 1) // 16 * 16
    assert [essence(second)] == await plainly([longer], **TEXTS["babble"])


async def test_a_loop_takes_few_steps_and_each_token_is_its_own_chunk() -> None:
    async with running(drafting_engine(script=lambda prefix: 97 + len(prefix) % 3)) as engine:
        steps = engine.stats().steps_total
        answer = await ask(engine, request("x", max_new_tokens=100))
        assert engine.stats().steps_total - steps <= 20
    assert [len(chunk.tokens) for chunk in answer.chunks] == [1] * 100
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.text == ("bca" * 40)[:100]


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [({"stop": ("klm",)}, FinishReason.STOP), ({"stop_token_ids": (ord("m"),)}, FinishReason.EOS)],
)
async def test_draft_tokens_after_the_end_are_dropped(sampling: dict[str, object], reason: FinishReason) -> None:
    """The answer goes on with the prompt's loop, so that the end lies in the middle of a draft."""
    loop = "abcdefghijklmnopqr"
    prompt = loop * 3 + "abc"
    options = {"script": lambda prefix: ord(loop[len(prefix) % len(loop)])}
    async with running(drafting_engine(**options)) as engine:
        steps = engine.stats().steps_total
        answer = await ask(engine, request(prompt, max_new_tokens=50, **sampling))
        stats = engine.stats()
    assert answer.finish.reason is reason
    assert stats.steps_total - steps <= 3
    assert stats.output_tokens_total == len(answer.ids) == answer.finish.output_tokens
    assert [essence(answer)] == await plainly([request(prompt, max_new_tokens=50, **sampling)], **options)


async def test_choices_of_one_request_draft_independently() -> None:
    wanted = request("abcd" * 5, n=3, best_of=4, temperature=1.0, seed=4, max_new_tokens=80)
    async with running(make_engine(**TEXTS["letters"])) as engine:
        expected = [essence(answer) for answer in await ask_all(engine, wanted)]
    async with running(drafting_engine(**TEXTS["letters"])) as engine:
        assert [essence(answer) for answer in await ask_all(engine, wanted)] == expected
        assert engine.stats().drafted_tokens_total > 0


async def test_constrained_answers_do_not_draft() -> None:
    async with running(drafting_engine()) as engine:
        answer = await ask(engine, request("abababab", max_new_tokens=30, grammar=Grammar("regex", "(ab){8}")))
        assert engine.stats().drafted_tokens_total == 0
    assert answer.text == "ab" * 8


async def test_nothing_is_drafted_when_rows_are_expensive() -> None:
    class DearRows(RowCostModel):
        def row_cost(self, *, sequences: int) -> float:
            return 1.0

    async with running(drafting_engine(**TEXTS["babble"])) as engine:
        core_of(engine).scheduler._row_costs = DearRows()
        await ask(engine, request("abababab", max_new_tokens=60))
        assert engine.stats().drafted_tokens_total == 0


async def test_random_arrivals_and_aborts_leave_the_pool_consistent() -> None:
    rng = random.Random(3)
    limits = replace(DRAFTING, max_num_seqs=16, max_num_batched_tokens=64, max_waiting_seqs=1000)

    async def one(number: int) -> None:
        prompt = "abcdabcd" * rng.randint(0, 3) + "d" * rng.randint(1, 20)
        chunks = engine.generate(request(prompt, max_new_tokens=rng.randint(1, 40)))
        patience = rng.randint(0, 12) if number % 3 == 0 else 1000
        async for _ in chunks:
            patience -= 1
            if patience <= 0:
                break
        await chunks.aclose()

    async with running(drafting_engine(limits=limits, num_blocks=40, **TEXTS["babble"])) as engine:
        for start in range(0, 600, 150):
            await asyncio.gather(*(one(start + index) for index in range(150)))
        assert engine.stats().accepted_tokens_total > 0
