"""Reasoning before a grammar, and its separators in the text, on the fake runner."""

from dataclasses import replace
from functools import cache

import pytest
import tokenizers

from headrace.core.generation import ChatPrompt, FinishReason, Grammar
from headrace.inference.models.chat import ChatTemplate
from headrace.inference.models.tokenizer import Tokenizer, byte_characters
from headrace.testing.fake_runner import follow
from tests.inference.engine.support import LIMITS, ask, ask_all, make_engine, request, running

EOS = 256
TAGS = ("<think>", "</think>")
HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
CALLS = ("[TOOL_CALLS]", "[ARGS]", "<|tool_call>", "<tool_call|>", '<|"|>')
THINKS = "{{ messages[0].content }}{# <think> </think> #}"
OPENED, CLOSED = f"{THINKS}<think>\n", f"{THINKS}<think>\n\n</think>\n"
CHANNELS = "{{ messages[0].content }}{# <|channel|> <|message|> #}<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
DIGITS = Grammar("regex", "[0-9]{3}")


@cache
def tokenizer() -> Tokenizer:
    """One token a byte, and one for each separator."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=byte_characters(), merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", *TAGS, *HARMONY, *CALLS])
    ends = [EOS, *(backend.token_to_id(name) for name in HARMONY[-2:])]
    return Tokenizer(backend, vocab_size=275, eos_token_ids=ends)


def thinking(template: str, answer: str, *, end_message: str = ""):
    """An engine whose model wants to answer this."""
    script = follow({(): tokenizer().encode(answer)})
    limits = replace(LIMITS, request=replace(LIMITS.request, reasoning_end_message=end_message))
    return make_engine(chat_template=ChatTemplate(template), tokenizer=tokenizer(), script=script, limits=limits)


def chat(grammar: Grammar | None = None, *, budget: int | None = None, **options):
    wanted = request("", grammar=grammar, **{"max_new_tokens": 90, **options})
    prompt = ChatPrompt(messages=[{"role": "user", "content": "?"}])
    return replace(wanted, prompt=prompt, separates_reasoning=True, max_reasoning_tokens=budget)


@pytest.mark.parametrize(
    ("template", "opening"), [(OPENED, "<think>"), (CLOSED, "<think></think>"), (THINKS, ""), (CHANNELS, "")]
)
async def test_the_first_chunk_tells_what_the_prompt_has_begun(template, opening) -> None:
    async with running(thinking(template, "Hi.<eos>")) as engine:
        first, second = await ask_all(engine, chat(n=2))
    for answer in (first, second):
        assert [chunk.opening for chunk in answer.chunks] == [opening] + [""] * (len(answer.chunks) - 1)


async def test_separators_stay_in_the_text_only_for_callers_that_need_them() -> None:
    async with running(thinking(THINKS, "<think>Hm.</think>Hi<eos>")) as engine:
        shown = await ask(engine, chat())
        hidden = await ask(engine, replace(chat(), separates_reasoning=False))
    assert (shown.text, hidden.text) == ("<think>Hm.</think>Hi", "Hm.Hi")
    assert [chunk.opening for chunk in hidden.chunks if chunk.opening] == []


@pytest.mark.parametrize(
    ("written", "without_markers"),
    [
        ("[TOOL_CALLS]f[ARGS]{}", "f{}"),
        ('<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>', "call:f{a:x}"),
    ],
)
async def test_markers_of_calls_stay_in_the_text_only_for_chats_with_tools(written, without_markers) -> None:
    asked = replace(chat(), separates_reasoning=False)
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with running(thinking("{{ messages[0].content }}{{ tools }}", f"{written}<eos>")) as engine:
        shown = await ask(engine, replace(asked, prompt=replace(asked.prompt, tools=tools)))
        hidden = await ask(engine, asked)
    assert (shown.text, hidden.text) == (written, without_markers)


@pytest.mark.parametrize(
    ("template", "wanted", "text"),
    [
        (OPENED, "Hm.</think>123", "Hm.</think>123"),
        (THINKS, "<think>Hm.</think>123", "<think>Hm.</think>123"),
        (THINKS, "123", "123"),
        (CLOSED, "123", "123"),
        (CHANNELS, f"{ANALYSIS}<|channel|>final <|constrain|>json<|message|>123", None),
    ],
)
async def test_a_grammar_begins_after_the_reasoning(template, wanted, text) -> None:
    async with running(thinking(template, wanted)) as engine:
        answer = await ask(engine, chat(DIGITS))
    assert (answer.text, answer.finish.reason) == (text or wanted, FinishReason.EOS)


@pytest.mark.parametrize("template", [CLOSED, OPENED, CHANNELS])
async def test_the_content_matches_its_grammar_whatever_the_model_wants(template) -> None:
    before = {CLOSED: "", OPENED: "</think>", CHANNELS: "<|channel|>final<|message|>"}[template]
    async with running(thinking(template, f"{before}no number")) as engine:
        for answer in await ask_all(engine, chat(DIGITS, n=2, temperature=1.0, seed=3)):
            assert answer.text.startswith(before)
            assert len(answer.text) == len(before) + 3
            assert answer.text[len(before) :].isdecimal()


async def test_an_answer_with_a_grammar_does_not_end_in_its_reasoning() -> None:
    async with running(thinking(OPENED, "Hm.<eos>")) as engine:
        answer = await ask(engine, chat(DIGITS, max_new_tokens=6))
    assert (answer.finish.reason, answer.text[:3]) == (FinishReason.LENGTH, "Hm.")
    assert EOS not in answer.ids


async def test_without_separation_a_grammar_holds_from_the_first_token() -> None:
    async with running(thinking(THINKS, "<think>Hm.</think>123")) as engine:
        answer = await ask(engine, replace(chat(DIGITS), separates_reasoning=False))
    assert (len(answer.text), answer.text.isdecimal()) == (3, True)


TO_F = f"{ANALYSIS} to=functions.f<|channel|>commentary json<|message|>"


async def test_a_forced_call_s_arguments_match_the_grammar_of_their_function() -> None:
    forced = replace(DIGITS, arguments=(("f", Grammar("regex", "[a-c]{2}")),))
    async with running(thinking(CHANNELS, f"{TO_F}bbb<|call|>")) as engine:
        answer = await ask(engine, chat(forced))
    assert (answer.text, answer.finish.reason) == (f"{TO_F}bb", FinishReason.EOS)


@pytest.mark.parametrize(("arguments", "reason"), [((), FinishReason.EOS), ((("g", DIGITS),), FinishReason.LENGTH)])
async def test_a_call_ends_an_answer_unless_another_function_is_forced(arguments, reason) -> None:
    async with running(thinking(CHANNELS, f"{TO_F}{{}}<|call|>")) as engine:
        answer = await ask(engine, chat(replace(DIGITS, arguments=arguments)))
    assert (answer.text.startswith(f"{TO_F}{{}}"), answer.finish.reason) == (True, reason)


@pytest.mark.parametrize(
    ("template", "wanted", "budget", "text"),
    [
        (OPENED, "Hm, hm.</think>Hi", 8, "Hm, hm.</think>Hi"),
        (OPENED, "Hm, hm.</think>Hi", 7, "Hm, hm.|</think>"),  # what would come next is not known
        (OPENED, "Hm, hm.", 3, "Hm,|</think>"),
        (OPENED, "Hm.", 0, "|</think>"),
        (THINKS, "<think>Hm, hm.", 3, "<think>Hm,|</think>"),
        (THINKS, "Hi", 0, "Hi"),  # without reasoning there is nothing to end
        (CLOSED, "Hi", 0, "Hi"),
        (CHANNELS, "<|channel|>analysis<|message|>Hm, hm.", 3, "<|channel|>analysis<|message|>Hm,|<|end|>"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1, "logprobs": 0}])
async def test_the_reasoning_ends_at_its_budget_to_the_token(template, wanted, budget, text, options) -> None:
    async with running(thinking(template, f"{wanted}<eos>", end_message="|")) as engine:
        answer = await ask(engine, chat(budget=budget, **options))
    assert answer.text.startswith(text)


async def test_the_answer_after_a_budget_matches_its_grammar() -> None:
    async with running(thinking(OPENED, "Hm, hm.", end_message="|")) as engine:
        answers = await ask_all(engine, chat(DIGITS, budget=2, n=2, temperature=1.0, seed=3))
    for answer in answers:
        assert answer.text.startswith("Hm|</think>")
        assert answer.text[11:].isdecimal()
        assert (len(answer.text), answer.finish.reason) == (14, FinishReason.EOS)


async def test_a_model_that_begins_to_reason_again_is_made_to_answer() -> None:
    again = f"{ANALYSIS}<|channel|>analysis<|message|>Hm"
    script = follow({(): tokenizer().encode(again), tuple(tokenizer().encode("final<|message|>")): [65, EOS]})
    template = ChatTemplate(CHANNELS)
    async with running(make_engine(chat_template=template, tokenizer=tokenizer(), script=script)) as engine:
        answer = await ask(engine, chat(budget=3))
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert answer.text == f"{ANALYSIS}<|channel|>analysis<|message|>{end}{tokenizer().decode([65])}"


@pytest.mark.parametrize("budget", [None, 0])
async def test_a_chat_whose_reasoning_is_not_separated_has_no_budget(budget) -> None:
    async with running(thinking(OPENED, "Hm.</think>Hi<eos>", end_message="|")) as engine:
        answer = await ask(engine, replace(chat(budget=budget), separates_reasoning=False))
    assert answer.text == "Hm.Hi"
