"""The backend's contract, on the fake runner."""

import asyncio
import math
import threading

import pytest

from headrace.core.errors import Busy, ContextTooLong, EngineFailed, InvalidRequest, PromptTooLong, Unavailable
from headrace.core.generation import ChatPrompt, FinishReason, Grammar
from headrace.engine.config import EngineLimits
from headrace.engine.observer import ChoiceReport, NoObserver, StepReport
from headrace.models.chat import ChatTemplate
from headrace.runner.fake import FakeRunner, follow
from headrace.runner.step import Float32, StepInput
from tests.engine.support import EOS, LIMITS, ask, ask_all, make_engine, request, runner_limits, running

NO_EOS = {EOS: -math.inf}


class Gate:
    """Holds the runner before each step until it is opened; counts and keeps what passes."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.steps: list[StepInput] = []

    def __call__(self, step: StepInput) -> None:
        assert self.is_open.wait(20)
        self.steps.append(step)


async def settled(engine, condition) -> None:
    """Wait, by turns of the event loop, until a fact about the engine holds."""
    async with asyncio.timeout(20):
        while not condition(engine.stats()):
            await asyncio.sleep(0)


async def test_an_answer_ends_at_its_length() -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        answer = await ask(engine, request("hello", max_new_tokens=7))
    assert (answer.finish.reason, answer.finish.output_tokens, len(answer.tokens)) == (FinishReason.LENGTH, 7, 7)
    assert answer.finish.prompt_tokens == 5
    assert answer.finish.seed is None


async def test_an_answer_ends_at_the_end_token() -> None:
    async with running(make_engine(script=follow({(): [*b"fine.", EOS]}))) as engine:
        answer = await ask(engine, request("how?"))
    assert (answer.text, answer.finish.reason, answer.finish.stop) == ("fine.", FinishReason.EOS, EOS)
    assert (answer.tokens[-1].text, answer.tokens[-1].special) == ("<eos>", True)
    assert answer.finish.output_tokens == len(answer.tokens) == 6


class Numb(FakeRunner):
    """Has no numbers to say after a tilde."""

    def logits(self, step: StepInput) -> Float32:
        logits = super().logits(step)
        logits[step.token_ids[step.rows] == ord("~")] = math.nan
        return logits


async def test_an_answer_without_a_token_to_draw_is_an_error_of_that_answer_alone() -> None:
    async with running(make_engine(runner_type=Numb, bias=NO_EOS)) as engine:
        failed, fine = await asyncio.gather(
            ask(engine, request("what~", max_new_tokens=5)), ask(engine, request("that.", max_new_tokens=5))
        )
        free = engine.stats()
    assert failed.finish.reason is FinishReason.ERROR
    assert "logits" in failed.finish.message
    assert failed.finish.output_tokens == 0
    assert fine.finish.reason is FinishReason.LENGTH
    assert free.num_free_blocks == free.num_blocks


async def test_an_answer_without_a_length_goes_on_until_the_context_is_full() -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        answer = await ask(engine, request("hello"))
    assert answer.finish.prompt_tokens + answer.finish.output_tokens == LIMITS.max_model_len


async def test_ignore_eos_goes_on() -> None:
    async with running(make_engine(script=follow({(): [EOS, *b"more"]}))) as engine:
        answer = await ask(engine, request("x", max_new_tokens=5, ignore_eos=True))
    assert (answer.text, answer.finish.reason) == ("more", FinishReason.LENGTH)


async def test_min_new_tokens_forbids_ends_until_then() -> None:
    async with running(make_engine(bias={EOS: 50.0, 7: 40.0})) as engine:
        answer = await ask(engine, request("x", max_new_tokens=9, min_new_tokens=4, stop_token_ids=(7,)))
    assert answer.finish.output_tokens == 5
    assert answer.ids[-1] == EOS
    assert not {EOS, 7} & set(answer.ids[:-1])


async def test_a_stop_token_ends_the_answer() -> None:
    async with running(make_engine(script=follow({(): list(b"one;two")}))) as engine:
        answer = await ask(engine, request("x", stop_token_ids=(ord(";"),)))
    assert (answer.text, answer.finish.reason, answer.finish.stop) == ("one", FinishReason.EOS, ord(";"))


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one two")])
async def test_a_stop_string_ends_the_answer(include: bool, text: str) -> None:
    async with running(make_engine(script=follow({(): list(b"one two three")}))) as engine:
        answer = await ask(engine, request("x", stop=("two",), include_stop=include))
    assert (answer.text, answer.finish.reason, answer.finish.stop) == (text, FinishReason.STOP, "two")
    assert answer.finish.output_tokens == len(answer.tokens) == 7


async def test_multi_byte_text_streams_in_whole_characters() -> None:
    text = "漢字 🌊 é"
    async with running(make_engine(script=follow({(): [*text.encode(), EOS]}))) as engine:
        answer = await ask(engine, request("x"))
    assert answer.text == text
    assert all("\ufffd" not in chunk.text for chunk in answer.chunks)


async def test_a_seed_gives_the_same_answer_and_a_fresh_one_is_reported() -> None:
    async with running(make_engine()) as engine:
        first = await ask(engine, request("x", max_new_tokens=20, temperature=1.0))
        assert first.finish.seed is not None
        again = await ask(engine, request("x", max_new_tokens=20, temperature=1.0, seed=first.finish.seed))
        other = await ask(engine, request("x", max_new_tokens=20, temperature=1.0, seed=first.finish.seed + 1))
    assert again.ids == first.ids != other.ids


async def test_choices_differ_and_share_the_prompt() -> None:
    async with running(make_engine()) as engine:
        wanted = request("p" * 100, max_new_tokens=10, temperature=1.0, seed=5, n=4)
        answers = await ask_all(engine, wanted)
        seeds = [answer.finish.seed for answer in answers]
        single = await ask(engine, request("p" * 100, max_new_tokens=10, temperature=1.0, seed=seeds[2]))
    assert len({tuple(answer.ids) for answer in answers}) == 4
    assert seeds[0] == 5
    assert [answer.finish.cached_tokens for answer in answers] == [0, 96, 96, 96]
    assert single.ids == answers[2].ids


async def test_best_of_returns_the_likeliest_candidates() -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        base = {"max_new_tokens": 6, "temperature": 1.5, "seed": 9}
        every = await ask_all(engine, request("q", n=6, logprobs=0, **base))
        best = await ask_all(engine, request("q", n=2, best_of=6, **base))
    means = sorted((-sum(t.logprob for t in a.tokens) / len(a.tokens), a.text) for a in every)
    assert [answer.text for answer in best] == [text for _, text in means[:2]]
    assert [answer.chunks[0].index for answer in best] == [0, 1]
    assert all(token.logprob is None for answer in best for token in answer.tokens)


async def test_logprobs_are_of_the_chosen_token_and_the_best_ones() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", max_new_tokens=5, logprobs=20))
    for token in answer.tokens:
        assert token.top[0].id == token.id
        assert token.logprob == token.top[0].logprob
        assert [t.logprob for t in token.top] == sorted((t.logprob for t in token.top), reverse=True)
        assert 0 < sum(math.exp(t.logprob) for t in token.top) <= 1.0001


@pytest.mark.parametrize("budget", [16, 256])
async def test_prompt_logprobs_are_what_generating_those_tokens_gives(budget: int) -> None:
    limits = EngineLimits(
        max_model_len=512, max_prompt_tokens=400, max_num_seqs=8, max_num_batched_tokens=budget, max_step_s=None
    )
    async with running(make_engine(limits=limits, bias=NO_EOS)) as engine:
        start = await ask(engine, request("s" * 40, max_new_tokens=30, logprobs=2))
        prompt = (*b"s" * 40, *start.ids)
        scored = await ask(engine, request(prompt, max_new_tokens=1, prompt_logprobs=2))
        other = await ask_all(engine, request(prompt, max_new_tokens=1, prompt_logprobs=0, n=2, temperature=1.0))
    assert scored.finish.cached_tokens == 0
    assert scored.prompt is not None
    assert [token.id for token in scored.prompt] == list(prompt)
    assert scored.prompt[0].logprob is None
    assert [t.logprob for t in scored.prompt[40:]] == [t.logprob for t in start.tokens]
    assert [t.top for t in scored.prompt[40:]] == [t.top for t in start.tokens]
    assert [answer.prompt is not None for answer in other] == [True, False]


async def test_a_prompt_can_be_scored_without_an_answer() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("score me", max_new_tokens=0, prompt_logprobs=0))
        nothing = await ask(engine, request("x", max_new_tokens=0))
    assert answer.prompt is not None
    assert (len(answer.prompt), answer.tokens, answer.finish.reason) == (8, (), FinishReason.LENGTH)
    assert (nothing.text, nothing.finish.output_tokens) == ("", 0)


async def test_the_prompt_is_scored_whole_after_a_preemption() -> None:
    async with running(make_engine(room=runner_limits(18), bias=NO_EOS)) as engine:
        expected = await ask(engine, request("y" * 60, max_new_tokens=100, prompt_logprobs=1))
        engine._engine.scheduler._expected_output_tokens = 1.0
        old = asyncio.create_task(ask(engine, request("x" * 60, "old", max_new_tokens=150)))
        await settled(engine, lambda stats: stats.num_running == 1)
        scored = await ask(engine, request("y" * 60, "new", max_new_tokens=100, prompt_logprobs=1))
        await old
        assert engine.stats().preemptions_total >= 1
    assert (scored.prompt, scored.text) == (expected.prompt, expected.text)


async def test_truncation_keeps_the_end_of_the_prompt() -> None:
    async with running(make_engine()) as engine:
        wanted = request("abcdefgh", max_new_tokens=5)
        cut = type(wanted)(request_id="r", prompt=wanted.prompt, sampling=wanted.sampling, truncate_prompt_tokens=3)
        answer = await ask(engine, cut)
        same = await ask(engine, request("fgh", max_new_tokens=5))
    assert (answer.finish.prompt_tokens, answer.ids) == (3, same.ids)


async def test_a_chat_is_rendered_by_its_template() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    async with running(make_engine(chat_template=template)) as engine:
        chat = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
        text, spans = engine.tokenize(chat)
        answer = await ask(engine, request(chat, max_new_tokens=3))
        same = await ask(engine, request("[user]hi", max_new_tokens=3))
    assert (text, len(spans)) == ("[user]hi", 8)
    assert answer.ids == same.ids


async def test_refusals_carry_exact_numbers() -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(PromptTooLong) as too_long:
            await ask(engine, request("x" * 401, max_new_tokens=1))
        with pytest.raises(ContextTooLong) as too_much:
            await ask(engine, request("x" * 400, max_new_tokens=113))
        answer = await ask(engine, request("x" * 400, max_new_tokens=112))
        assert engine.stats().num_running == engine.stats().num_waiting == 0
    assert (too_long.value.prompt_tokens, too_long.value.max_prompt_tokens) == (401, 400)
    assert (too_much.value.prompt_tokens, too_much.value.max_new_tokens) == (400, 113)
    assert too_much.value.max_total_tokens == 512
    assert answer.finish.reason in {FinishReason.LENGTH, FinishReason.EOS}


async def test_a_request_that_can_never_fit_the_cache_is_refused_on_arrival() -> None:
    async with running(make_engine(room=runner_limits(10), bias=NO_EOS)) as engine:
        with pytest.raises(ContextTooLong) as refused:
            await ask(engine, request("x" * 100, max_new_tokens=61))
        answer = await ask(engine, request("x" * 100, max_new_tokens=60))
    assert refused.value.max_total_tokens == 160
    assert answer.finish.output_tokens == 60


async def test_a_huge_prompt_is_refused_without_tokenising_it() -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(PromptTooLong, match="at least") as refused:
            await ask(engine, request("word " * 2_000_000))
    assert not refused.value.is_exact


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"typical_p": 1.5}, "typical_p"),
        ({"temperature": 1e300}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens"),
        ({"n": 0}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 99}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ("",)}, "stop"),
        ({"stop_token_ids": (264,)}, "stop_token_ids"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
    ],
)
async def test_values_out_of_range_are_refused_by_name(sampling: dict[str, object], param: str) -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await ask(engine, request("x", **sampling))
    assert refused.value.param == param


@pytest.mark.parametrize("prompt", [(), (264,), (-1,)])
async def test_bad_token_ids_are_refused(prompt: tuple[int, ...]) -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(InvalidRequest) as refused:
            await ask(engine, request(prompt))
    assert refused.value.param == "prompt"


async def test_an_empty_text_becomes_the_beginning_token() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("", max_new_tokens=1))
    assert answer.finish.prompt_tokens == 1


async def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    gate = Gate()
    limits = EngineLimits(
        max_model_len=64,
        max_prompt_tokens=32,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        max_queued_requests=3,
        max_step_s=None,
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


async def test_an_idle_engine_takes_no_steps_and_its_thread_sleeps() -> None:
    gate = Gate()
    async with running(make_engine(before_step=gate)) as engine:
        await ask(engine, request("x", max_new_tokens=3))
        await settled(engine, lambda _: bool(engine._thread._wakeup._waiters))
        rounds, steps = engine.num_rounds, len(gate.steps)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert (engine.num_rounds, len(gate.steps)) == (rounds, steps)


async def test_a_failed_step_ends_its_requests_and_the_engine_goes_on() -> None:
    # Steps 0-3 are the warm-up.
    async with running(make_engine(fail_on_steps={6})) as engine:
        broken = await ask(engine, request("x" * 40, max_new_tokens=20, ignore_eos=True))
        healthy = await ask(engine, request("x" * 40, max_new_tokens=20, ignore_eos=True))
        assert engine.is_healthy
    assert broken.finish.reason is FinishReason.ERROR
    assert "told to fail" in (broken.finish.message or "")
    assert len(broken.tokens) == 2
    assert healthy.finish.reason is FinishReason.LENGTH


async def test_failures_in_a_row_make_the_engine_unhealthy_until_a_step_succeeds() -> None:
    async with running(make_engine(fail_on_steps={4, 5, 6})) as engine:
        for _ in range(3):
            assert (await ask(engine, request("x"))).finish.reason is FinishReason.ERROR
        assert not engine.is_healthy
        assert (await ask(engine, request("x", max_new_tokens=1))).finish.reason is not FinishReason.ERROR
        assert engine.is_healthy


async def test_a_model_that_fails_at_the_start_does_not_start() -> None:
    engine = make_engine(fail_on_steps={0})
    with pytest.raises(EngineFailed, match="no token"):
        await engine.start()
    await engine.close(deadline_s=0)


async def test_a_crash_of_the_engine_ends_every_request_and_refuses_new_ones() -> None:
    engine = make_engine(bias=NO_EOS)
    await engine.start()
    chunks = engine.generate(request("x", max_new_tokens=300))
    await anext(chunks)
    engine._engine.scheduler.schedule = None  # type: ignore[assignment, method-assign]
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


async def test_closing_aborts_what_is_left_at_the_deadline() -> None:
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


async def test_an_engine_that_is_not_started_refuses() -> None:
    engine = make_engine()
    with pytest.raises(Unavailable, match="starting"):
        await ask(engine, request("x"))
    await engine.close(deadline_s=0)


async def test_an_observer_sees_steps_and_ends_but_not_the_warm_up() -> None:
    class Recorder(NoObserver):
        def __init__(self) -> None:
            self.steps: list[StepReport] = []
            self.choices: list[ChoiceReport] = []

        def step_finished(self, report: StepReport) -> None:
            self.steps.append(report)

        def choice_finished(self, report: ChoiceReport) -> None:
            self.choices.append(report)

    recorder = Recorder()
    async with running(make_engine(observer=recorder, bias=NO_EOS)) as engine:
        await ask(engine, request("x" * 10, "mine", max_new_tokens=4))
        stats = engine.stats()
    assert [(s.num_tokens, s.num_decodes) for s in recorder.steps] == [(10, 0), (1, 1), (1, 1), (1, 1)]
    (report,) = recorder.choices
    assert (report.request_id, report.prompt_tokens, report.output_tokens) == ("mine", 10, 4)
    assert report.queue_s is not None
    assert report.ttft_s is not None
    assert 0 <= report.queue_s <= report.ttft_s <= report.total_s
    assert (stats.prompt_tokens_total, stats.output_tokens_total, stats.steps_total) == (10, 4, 4)


async def test_a_grammar_without_an_end_in_sight_still_ends_at_the_length() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", max_new_tokens=6, grammar=Grammar("regex", "[a-z]{50}")))
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.text.isascii()
    assert answer.text.islower()
