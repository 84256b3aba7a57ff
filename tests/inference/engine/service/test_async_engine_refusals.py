"""Refusals of the engine before a request is queued, on the fake runner."""

import math
from dataclasses import replace

import pytest

from headrace.core.errors import ContextTooLong, InvalidRequest, PromptTooLong
from headrace.core.generation import FinishReason
from tests.inference.engine.support import EOS, ask, make_engine, request, runner_limits, running

NO_EOS = {EOS: -math.inf}


async def test_refusals_carry_exact_numbers() -> None:
    async with running(make_engine()) as engine:
        with pytest.raises(PromptTooLong) as too_long:
            await ask(engine, request("x" * 401, max_new_tokens=1))
        with pytest.raises(ContextTooLong) as too_much:
            await ask(engine, request("x" * 400, max_new_tokens=113))
        answer = await ask(engine, request("x" * 400, max_new_tokens=112))
        cut = await ask(engine, request("x" * 400, max_new_tokens=32_000, is_cut_at_context=True, ignore_eos=True))
        assert engine.stats().num_running == engine.stats().num_waiting == 0
    assert (too_long.value.prompt_tokens, too_long.value.max_prompt_tokens) == (401, 400)
    assert (too_much.value.prompt_tokens, too_much.value.max_new_tokens) == (400, 113)
    assert too_much.value.max_total_tokens == 512
    assert (cut.finish.reason, cut.finish.output_tokens) == (FinishReason.LENGTH, 112)
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


async def test_a_text_far_longer_than_the_context_is_refused_even_if_it_would_be_truncated_or_only_counted() -> None:
    async with running(make_engine()) as engine:
        most = 64 * engine.info.max_model_len
        with pytest.raises(InvalidRequest, match=f"expected at most {most}"):
            await ask(engine, replace(request("w" * (most + 1)), truncate_prompt_tokens=8))
        with pytest.raises(InvalidRequest, match=f"expected at most {most}"):
            engine.tokenize("w" * (most + 1))
        assert len(engine.tokenize("w" * 5000)[1]) > 0


async def test_token_ids_without_a_text_are_refused() -> None:
    async with running(make_engine()) as engine:
        info = engine.info
        assert engine.detokenize(()) == ""
        for token_ids, said in (
            ((info.vocab_size,), f"token ids below {info.vocab_size}"),
            ((-1,), "token ids of 0 or more"),
            ((1,) * (info.max_model_len + 1), f"expected at most {info.max_model_len}"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                engine.detokenize(token_ids)


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
