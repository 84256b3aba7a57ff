"""
Batch invariance of models with state layers: no answer depends on the slots and checkpoints that its state came from.

The fake runner compares every state with the tokens before it; `test_lfm2_bytes` is the same on the kernels.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from headrace.core.generation import ChatPrompt, FinishReason, GenerationRequest
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core import scheduler
from headrace.inference.engine.core.states import StatePool
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.runner.step import RunnerLimits
from tests.inference.engine.fake_states import FakeStateRunner
from tests.inference.engine.spec_decode.test_drafted_bytes import FEW_LETTERS, babble
from tests.inference.engine.spec_decode.test_drafted_bytes import mixed_requests as drafted_requests
from tests.inference.engine.support import (
    LIMITS,
    Answer,
    FreeRows,
    ask,
    ask_all,
    ask_and_leave,
    ask_together,
    core_of,
    make_engine,
    request,
    runner_limits,
    running,
    settled,
)
from tests.inference.engine.test_same_bytes import mixed_requests

DRAFTS = 6


def room(num_state_slots: int, num_blocks: int = 512) -> RunnerLimits:
    return runner_limits(num_blocks, num_state_slots=num_state_slots, max_draft_tokens=DRAFTS)


def state_engine(room_: RunnerLimits, *, limits: EngineLimits = LIMITS, **options: object) -> AsyncEngine:
    engine = make_engine(limits=limits, room=room_, runner_type=FakeStateRunner, **options)
    scheduler = core_of(engine).scheduler
    scheduler._row_costs = FreeRows()
    scheduler._expected_output_tokens = 1.0
    return engine


def uses_of(engine: AsyncEngine) -> dict[str, int]:
    runner = core_of(engine)._runner
    assert isinstance(runner, FakeStateRunner)
    return runner.uses.counts


def states_of(engine: AsyncEngine) -> StatePool:
    states = core_of(engine).scheduler.states
    assert isinstance(states, StatePool)
    return states


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, answer.prompt, replace(answer.finish, cached_tokens=0)


CASES = {
    "many slots": (LIMITS, 200, 512),
    "a slot to spare": (replace(LIMITS, max_num_seqs=16), 17, 512),
    "one sequence": (replace(LIMITS, max_num_seqs=1), 2, 512),
    "not cached": (replace(LIMITS, enable_prefix_caching=False), 80, 512),
    "small chunks": (replace(LIMITS, max_num_seqs=48, max_num_batched_tokens=64), 70, 512),
    "tiny pool": (replace(LIMITS, max_num_seqs=32), 40, 28),
}
"""Limits, slots and blocks."""


async def plainly(wanted: list[GenerationRequest], **options: object) -> list[tuple[object, ...]]:
    """Each request alone, by a model without states, without drafts and without a cache."""
    async with running(make_engine(limits=replace(LIMITS, enable_prefix_caching=False), **options)) as engine:
        return [essence(await ask(engine, sent)) for sent in wanted]


@pytest.fixture(scope="module")
def expected_answers() -> list[tuple[object, ...]]:
    return asyncio.run(plainly(mixed_requests()))


@pytest.mark.parametrize("case", list(CASES))
async def test_concurrent_answers_equal_those_of_each_request_alone(
    case: str, expected_answers: list[tuple[object, ...]]
) -> None:
    limits, num_slots, num_blocks = CASES[case]
    wanted = mixed_requests()
    async with running(state_engine(room(num_slots, num_blocks), limits=limits)) as engine:
        answers = await ask_together(engine, wanted)
        assert [essence(answer) for answer in answers] == expected_answers
        uses, stats = uses_of(engine), engine.stats()
    assert uses["snapshots"] > 0
    assert uses["checkpoints"] > 0 or case in ("not cached", "one sequence")
    assert stats.preemptions_total > 0 or case != "tiny pool"


TEXTS = {"letters": {"bias": FEW_LETTERS}, "babble": {"bias": FEW_LETTERS, "script": babble}}
DRAFTED = {
    "many slots": (LIMITS, 100, 512),
    "a slot to spare": (replace(LIMITS, max_num_seqs=8), 9, 512),
    "small steps": (replace(LIMITS, max_num_seqs=16, max_num_batched_tokens=64), 24, 512),
    "tiny pool": (replace(LIMITS, max_num_seqs=16), 24, 20),
}


@pytest.mark.parametrize("text", TEXTS)
async def test_drafts_are_replayed_and_change_no_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In whatever order the requests arrive, short answers are expected, so that too many are admitted to the tiny pool.
    monkeypatch.setattr(scheduler, "_EXPECTATION_WEIGHT", 0.0)
    wanted = drafted_requests()
    expected = await plainly(wanted, **TEXTS[text])
    for case, (limits, num_slots, num_blocks) in DRAFTED.items():
        drafting = replace(limits, max_draft_tokens=40)  # more than a slot keeps the inputs of
        async with running(state_engine(room(num_slots, num_blocks), limits=drafting, **TEXTS[text])) as engine:
            answers = await ask_together(engine, wanted)
            uses, stats = uses_of(engine), engine.stats()
        assert [essence(answer) for answer in answers] == expected, case
        assert 0 < stats.accepted_tokens_total < stats.drafted_tokens_total, case
        assert 0 < uses["replayed"] <= stats.accepted_tokens_total, case
        assert stats.preemptions_total > 0 or case != "tiny pool"


def letters(count: int, seed: int = 0) -> str:
    return "".join("abcdefgh"[(index * index * 7 + index * seed + seed) % 8] for index in range(count))


START = letters(100)
LONG = letters(300, 5)


@pytest.mark.parametrize(
    ("earlier", "last", "cached"),
    [
        pytest.param([START], START, 80, id="the end of a prompt, but for the tokens that open the answer"),
        pytest.param([START + "-x", START + "-y"], START + "-z", 96, id="a branch that was taken before"),
        pytest.param([START + letters(60, 1), START + letters(60, 2)], START + letters(60, 3), 96, id="a deep branch"),
        pytest.param([LONG], LONG[:200] + "xyz" * 20, 192, id="a checkpoint at a regular distance"),
    ],
)
async def test_a_prefix_is_reused_up_to_a_checkpoint(earlier: list[str], last: str, cached: int) -> None:
    limits = replace(room(64 + 8), num_blocks=32)  # one checkpoint in four blocks
    wanted = request(last, max_new_tokens=20, ignore_eos=True)
    async with running(state_engine(limits)) as engine:
        for prompt in earlier:
            await ask(engine, request(prompt, max_new_tokens=3))
        answer = await ask(engine, wanted)
        assert answer.finish.cached_tokens == cached
        slots = states_of(engine).slots
        slots.free(slots.allocate(slots.num_free))
        assert states_of(engine).num_checkpoints == 0
        again = await ask(engine, wanted)
        assert (again.finish.cached_tokens, essence(again)) == (0, essence(answer))


async def test_the_next_turn_of_a_chat_goes_on_from_the_last_full_block_of_the_answer() -> None:
    async with running(state_engine(room(80))) as engine:
        first = await ask(engine, request(START, max_new_tokens=90, ignore_eos=True))
        turn = tuple(START.encode()) + tuple(first.ids) + tuple(b"and now?")
        second = await ask(engine, request(turn, max_new_tokens=20))
        assert second.finish.cached_tokens == (100 + 90 - 1) // 16 * 16
        # Its prompt, its answer, and the checkpoint that the second turn left.
        assert states_of(engine).num_checkpoints <= 4


async def test_a_sequence_that_waits_for_a_shared_beginning_finds_a_checkpoint_there() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=64)
    async with running(state_engine(room(80), limits=limits)) as engine:
        wanted = [request(START + letters(40, seed), f"r{seed}", max_new_tokens=4) for seed in range(1, 5)]
        answers = await ask_together(engine, wanted)
        assert sorted(answer.finish.cached_tokens for answer in answers) == [0, 96, 96, 96]
        stats = engine.stats()
    assert (stats.checkpoint_hits_total, stats.recomputed_tokens_total) == (3, 0)


async def test_the_choices_of_a_request_read_one_checkpoint() -> None:
    async with running(state_engine(room(80))) as engine:
        answers = await ask_all(engine, request(START, n=4, temperature=1.0, seed=1, max_new_tokens=40))
        assert len({answer.text for answer in answers}) == 4
        stats = engine.stats()
        assert (stats.checkpoint_hits_total, stats.cached_tokens_total) == (3, 3 * 96)


async def test_a_branch_costs_the_tokens_since_the_last_checkpoint_once() -> None:
    async with running(state_engine(room(66))) as engine:
        prompts = [START + letters(60, seed) for seed in range(1, 4)]
        answers = [await ask(engine, request(prompt, max_new_tokens=2)) for prompt in prompts]
        stats = engine.stats()
    assert [answer.finish.cached_tokens for answer in answers] == [0, 0, 96]
    assert stats.recomputed_tokens_total == 96


def common_prefix(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@pytest.mark.parametrize("num_dropped", [0, 70])
async def test_ten_turns_of_a_chat_compute_few_tokens_again(num_dropped: int) -> None:
    """Each answer opens with its reasoning, of which the template drops `num_dropped` tokens in later turns."""
    opening = tuple(b"<assistant>")[: 6 if num_dropped else 0]
    limits = replace(LIMITS, max_model_len=4096, max_prompt_tokens=4000)
    places = replace(room(1 + 24, num_blocks=200), max_context_tokens=4096)
    recomputed = []
    async with running(state_engine(places, limits=replace(limits, max_num_seqs=1))) as engine:
        history, before = tuple(letters(300).encode()), ()
        for turn in range(10):
            history += tuple(letters(60 + turn, turn).encode())
            prompt = history + opening
            answer = await ask(engine, request(prompt, max_new_tokens=100, ignore_eos=True))
            recomputed.append(common_prefix(prompt, before) - answer.finish.cached_tokens)
            before = prompt + tuple(answer.ids)
            history += tuple(answer.ids[num_dropped:])
    assert max(recomputed) < 2 * 16


async def test_a_new_user_message_after_many_tool_calls_goes_on_from_the_one_before() -> None:
    """The template drops the reasoning of the calls then; few slots must not have lost the state before them."""
    template = ChatTemplate("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>")
    places = replace(room(1 + 5, num_blocks=200), max_context_tokens=4096)
    limits = replace(LIMITS, max_num_seqs=1, max_model_len=4096, max_prompt_tokens=4000)

    def chat(*messages: tuple[str, str]) -> GenerationRequest:
        sent = [{"role": role, "content": content} for role, content in messages]
        return replace(request(max_new_tokens=40, ignore_eos=True), prompt=ChatPrompt(messages=sent))

    async with running(state_engine(places, limits=limits, chat_template=template)) as engine:
        start = [("system", letters(300)), ("user", letters(100, 3))]
        calls: list[tuple[str, str]] = []
        for call in range(10):
            answer = await ask(engine, chat(*start, *calls))
            assert call < 2 or answer.finish.cached_tokens > 400
            calls += [("assistant", letters(90, call)), ("tool", letters(60, call + 1))]
        last = await ask(engine, chat(*start, ("assistant", "done"), ("user", "and now?")))
    assert last.finish.cached_tokens == len(f"<s>{letters(300)}<u>{letters(100, 3)}") // 16 * 16


async def test_a_failed_step_gives_its_slots_back_and_leaves_checkpoints_valid() -> None:
    wanted = request(START, max_new_tokens=40, ignore_eos=True)
    (expected,) = await plainly([wanted])
    async with running(state_engine(room(66), fail_on_steps=[60, 61])) as engine:
        assert essence(await ask(engine, wanted)) == expected
        runner = core_of(engine)._runner
        assert isinstance(runner, FakeStateRunner)
        runner.num_steps = 60
        for _ in range(2):  # in the step that reads the checkpoint
            assert (await ask(engine, wanted)).finish.reason is FinishReason.ERROR
        again = await ask(engine, wanted)
        assert (essence(again), again.finish.cached_tokens) == (expected, 80)
        assert engine.stats().num_live_states == 0


async def test_aborted_requests_leave_the_slots_consistent() -> None:
    rng = random.Random(3)
    limits = replace(LIMITS, max_num_seqs=8, max_num_batched_tokens=64, max_draft_tokens=DRAFTS, max_waiting_seqs=500)

    async def one(number: int) -> None:
        prompt = "abcdabcd" * rng.randint(0, 6) + "d" * rng.randint(1, 20)
        asked = request(prompt, max_new_tokens=rng.randint(1, 40))
        await ask_and_leave(engine, asked, rng.randint(0, 12) if number % 3 == 0 else 1000)

    async with running(state_engine(room(12, num_blocks=40), limits=limits, **TEXTS["babble"])) as engine:
        await asyncio.gather(*(one(number) for number in range(150)))
        await settled(engine, lambda stats: stats.num_running + stats.num_waiting == 0)
        assert uses_of(engine)["checkpoints"] > 0
        assert states_of(engine).slots.num_free == 12
