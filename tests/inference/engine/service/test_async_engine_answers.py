"""Answers of the engine on the fake runner."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.generation import ChatPrompt, FinishReason, Grammar
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.runner.step import Float32, StepInput
from headrace.testing.fake_runner import FakeRunner, follow
from tests.inference.engine.support import (
    EOS,
    LIMITS,
    ask,
    ask_all,
    core_of,
    make_engine,
    request,
    runner_limits,
    running,
    settled,
)

NO_EOS = {EOS: -math.inf}


async def test_an_answer_ends_at_its_length_limit() -> None:
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


async def test_an_answer_without_a_drawable_token_is_an_error_of_that_answer_alone() -> None:
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


async def test_an_answer_without_a_length_limit_fills_the_context() -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        answer = await ask(engine, request("hello"))
    assert answer.finish.prompt_tokens + answer.finish.output_tokens == LIMITS.max_model_len


@pytest.mark.parametrize(("cap", "expected"), [(7, 7), (10_000, LIMITS.max_model_len - len("hello"))])
async def test_a_default_length_limit_ends_an_answer_within_the_context(cap: int, expected: int) -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        answer = await ask(engine, request("hello", default_max_new_tokens=cap))
        named = await ask(engine, request("hello", max_new_tokens=9, default_max_new_tokens=cap))
    assert (answer.finish.reason, answer.finish.output_tokens) == (FinishReason.LENGTH, expected)
    assert named.finish.output_tokens == 9


async def test_ignore_eos_continues_after_the_end_token() -> None:
    async with running(make_engine(script=follow({(): [EOS, *b"more"]}))) as engine:
        answer = await ask(engine, request("x", max_new_tokens=5, ignore_eos=True))
    assert (answer.text, answer.finish.reason) == ("more", FinishReason.LENGTH)


async def test_min_new_tokens_forbids_end_tokens_before_that_length() -> None:
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
async def test_prompt_logprobs_equal_those_of_generating_the_tokens(budget: int) -> None:
    limits = replace(LIMITS, max_num_seqs=8, max_num_batched_tokens=budget)
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
    assert [t.rank for t in scored.prompt[40:]] == [1] * len(start.tokens)
    for token in scored.prompt[1:]:
        ids = [best.id for best in token.top]
        assert token.rank == (ids.index(token.id) + 1 if token.id in ids else token.rank) > 0
        assert token.id in ids or token.rank > len(ids)
    assert [answer.prompt is not None for answer in other] == [True, False]


@pytest.mark.parametrize("more", [{"n": 2, "temperature": 1.0}, {"best_of": 2, "temperature": 1.0}, {}])
async def test_each_choice_begins_with_the_ids_of_its_prompt(more: dict[str, Any]) -> None:
    async with running(make_engine(bias=NO_EOS)) as engine:
        answers = await ask_all(engine, request("abc", max_new_tokens=4, returns_prompt_ids=True, **more))
        plain = await ask(engine, request("abc", max_new_tokens=4))
    for answer in answers:
        assert [chunk.prompt_ids for chunk in answer.chunks if chunk.prompt_ids is not None] == [tuple(b"abc")]
        assert answer.chunks[0].prompt_ids is not None
    assert plain.chunks[0].prompt_ids is None


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
        core_of(engine).scheduler._expected_output_tokens = 1.0
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
        config = engine.tokenizer_config
        again = engine.detokenize(tuple(span.id for span in spans))
    assert (text, len(spans)) == ("[user]hi", 8)
    assert again == "".join(span.piece for span in spans) == text
    assert config["chat_template"] == template.templates["default"]
    assert answer.ids == same.ids


async def test_an_endless_grammar_ends_at_the_length_limit() -> None:
    async with running(make_engine()) as engine:
        answer = await ask(engine, request("x", max_new_tokens=6, grammar=Grammar("regex", "[a-z]{50}")))
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.text.isascii()
    assert answer.text.islower()
