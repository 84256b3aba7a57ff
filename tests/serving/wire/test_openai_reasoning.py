"""Reasoning and calls of reasoning models in chat answers, whole and streamed."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.answer_format.formats import FORMATS
from headrace.core.generation import Chunk, FinishReason
from headrace.serving.wire.openai.answer_stream import TokenPlaces
from headrace.serving.wire.openai.chat import OpenAIChat
from tests.serving.wire.samples import CONTEXT, MODEL, body, finish, sse_objects, streamed, token, whole

BY_NAME = {known.name: known for known in FORMATS}
HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
CALL = (
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
)
FINAL = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Paris"
TAGS = "<think>\nEasy.\n</think>\n\nParis"


def chat(format_name, **fields):
    context = replace(CONTEXT, model=replace(MODEL, answer_format=BY_NAME.get(format_name)))
    return OpenAIChat().parse(body(**{"messages": HELLO, **fields}), context)


def chunks(*texts, opening="", reason=FinishReason.EOS):
    pieces = [Chunk(text=text, tokens=(token(text),)) for text in texts]
    pieces[0] = replace(pieces[0], opening=opening)
    return [*pieces, Chunk(finish=finish(reason))]


def choice_of(parsed, *texts, **options):
    from openai.types.chat import ChatCompletion

    completion = whole(parsed, chunks(*texts, **options))
    return ChatCompletion.model_validate_json(completion).choices[0]


def read_stream(parsed, *texts, **options):
    """Reasoning, content and the calls with their arguments, as a client adds them up."""
    reasoning = content = ""
    calls = {}
    for event in sse_objects(streamed(parsed, chunks(*texts, **options))):
        delta = event["choices"][0]["delta"]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        reasoning += delta.get("reasoning") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            name, arguments = calls.get(call["index"], ("", ""))
            function = call["function"]
            calls[call["index"]] = (name + function.get("name", ""), arguments + function["arguments"])
    return reasoning, content, list(calls.values())


@pytest.mark.parametrize(("known", "text"), [("harmony", FINAL), ("think", TAGS)])
def test_reasoning_has_a_field_of_its_own(known, text):
    choice = choice_of(chat(known), text)
    assert (choice.message.content, choice.finish_reason) == ("Paris", "stop")
    assert (choice.message.reasoning, choice.message.reasoning_content) == ("Easy.", "Easy.")
    assert read_stream(chat(known, stream=True), *text) == ("Easy.", "Paris", [])


@given(st.lists(st.integers(0, len(FINAL) + len(TAGS)), max_size=9), st.sampled_from(["harmony", "think"]))
def test_a_stream_has_the_same_parts_wherever_tokens_end(cuts, known):
    text = FINAL if known == "harmony" else TAGS
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    assert read_stream(chat(known, stream=True), *pieces) == ("Easy.", "Paris", [])


def test_an_answer_cut_off_in_its_reasoning_has_no_content():
    choice = choice_of(chat("think"), "I think", opening="<think>", reason=FinishReason.LENGTH)
    assert (choice.message.content, choice.message.reasoning, choice.finish_reason) == (None, "I think", "length")


def test_reasoning_that_the_prompt_has_begun_or_turned_off_is_known():
    assert read_stream(chat("think", stream=True), "a</think>b", opening="<think>") == ("a", "b", [])
    assert read_stream(chat("think", stream=True), "\n\nb", opening="<think></think>") == ("", "b", [])


@pytest.mark.parametrize("known", ["harmony", "think"])
def test_reasoning_can_be_left_out_or_left_in_the_text(known):
    text = FINAL if known == "harmony" else TAGS
    without = choice_of(chat(known, include_reasoning=False), text).message
    assert (without.content, without.reasoning, without.reasoning_content) == ("Paris", None, None)
    assert read_stream(chat(known, include_reasoning=False, stream=True), *text) == ("", "Paris", [])
    raw = chat(known, separate_reasoning=False)
    assert (choice_of(raw, text).message.content, raw.requests[0].separates_reasoning) == (text, False)


def test_a_model_without_a_format_keeps_its_text():
    parsed = chat(None)
    assert choice_of(parsed, TAGS).message.content == TAGS
    assert not parsed.requests[0].separates_reasoning


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_a_message_to_a_function_is_a_tool_call(choice):
    text = CALL + '{"a": 1}'
    options = {"tools": TOOLS, "tool_choice": choice}
    message = choice_of(chat("harmony", **options), text).message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("f", '{"a": 1}')]
    assert (message.content, message.reasoning) == (None, "I look.")
    assert read_stream(chat("harmony", stream=True, **options), *text) == ("I look.", "", [("f", '{"a": 1}')])


def test_a_call_without_arguments_in_the_text_of_an_unknown_function_is_content():
    text = CALL.replace("functions.f", "functions.h") + "{}"
    assert read_stream(chat("harmony", stream=True, tools=TOOLS), *text) == ("I look.", "{}", [])
    assert read_stream(chat("harmony", stream=True), *CALL, "{}") == ("I look.", "{}", [])


@pytest.mark.parametrize("known", ["harmony", "think"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_forced_calls_may_come_after_the_reasoning(known, choice):
    calls = '[{"name": "f", "arguments": {"a": 1}}]' if choice == "required" else '{"a": 1}'
    text = (FINAL if known == "harmony" else TAGS).replace("Paris", calls)
    parsed = chat(known, stream=True, tools=TOOLS, tool_choice=choice)
    assert read_stream(parsed, *text) == ("Easy.", "", [("f", '{"a": 1}')])


def test_calls_in_the_text_are_found_after_the_reasoning_only():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f"<think>Maybe {call}?</think>{call}"
    parsed = chat("think", stream=True, tools=TOOLS)
    assert read_stream(parsed, *text) == (f"Maybe {call}?", "", [("f", "{}")])


def test_a_forced_call_names_the_grammar_of_each_function_s_arguments():
    grammar = chat("harmony", tools=TOOLS, tool_choice="required").requests[0].sampling.grammar
    assert [name for name, _ in grammar.arguments] == ["f", "g"]
    named = chat("harmony", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}})
    ((name, arguments),) = named.requests[0].sampling.grammar.arguments
    assert (name, arguments.text) == ("g", named.requests[0].sampling.grammar.text)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_answers_reaches_the_template_under_each_name(field):
    messages = [*HELLO, {"role": "assistant", "content": "Paris", field: "Easy."}, *HELLO]
    message = chat("think", messages=messages).requests[0].prompt.messages[1]
    assert {message[name] for name in ("reasoning", "reasoning_content", "thinking", "tool_plan")} == {"Easy."}
    assert message["content"] == "Paris"


def test_gpt_oss_s_template_gets_content_beside_calls_with_the_reasoning():
    call = {"function": {"name": "f", "arguments": "{}"}}
    messages = [*HELLO, {"role": "assistant", "content": "Let me see.", "reasoning": "Hm.", "tool_calls": [call]}]
    message = chat("harmony", messages=messages).requests[0].prompt.messages[1]
    assert (message["content"], message["thinking"]) == ("", "Hm.\nLet me see.")


def test_logprobs_do_not_depend_on_the_part_that_a_token_belongs_to():
    parsed = chat("think", logprobs=True)
    written = json.loads(whole(parsed, chunks("<think>", "a", "</think>", "b")))["choices"][0]
    assert [item["token"] for item in written["logprobs"]["content"]] == ["<think>", "a", "</think>", "b"]


SPLIT = re.compile(r"<[^>]*>|\s+|[^<\s]+")
"""Separators, white space and words: the tokens of a text."""


@pytest.mark.parametrize(
    ("known", "texts", "opening", "expected"),
    [
        ("think", SPLIT.findall("<think>\nEasy it is.\n</think>\n\nParis"), "", 7),
        ("think", SPLIT.findall("Easy it is</think>Paris"), "<think>", 5),
        ("think", ["<think>", "", "\U0001fae0", "</think>", "b"], "", 2),
        ("think", ["<th", "ink>a", "b</", "think>c"], "", 2),
        ("think", ["<think>", "a", " b"], "", 2),
        ("think", ["<think></think>", "Paris"], "", 0),
        ("think", ["Paris"], "", 0),
        ("harmony", SPLIT.findall(FINAL), "", 1),
        ("harmony", SPLIT.findall(CALL.replace("look.", "look. ") + "{}"), "", 4),
    ],
)
def test_the_tokens_of_the_reasoning_are_counted(known, texts, opening, expected):
    usage = json.loads(whole(chat(known), chunks(*texts, opening=opening)))["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": expected}
    parsed = chat(known, stream=True, stream_options={"include_usage": True}, include_reasoning=False)
    assert sse_objects(streamed(parsed, chunks(*texts, opening=opening)))[-1]["usage"] == usage


def test_reasoning_tokens_are_those_of_all_choices():
    from openai.types.chat import ChatCompletion

    first = chunks("<think>", "a", "</think>", "b")
    second = [replace(chunk, index=1) for chunk in chunks("<think>", "a", "b", "</think>", "c")]
    usage = ChatCompletion.model_validate_json(whole(chat("think", n=2), [*first, *second])).usage
    assert usage.completion_tokens_details.reasoning_tokens == 3


def test_without_a_format_nothing_is_said_about_reasoning_tokens():
    for parsed in (chat(None), chat("think", separate_reasoning=False)):
        assert "completion_tokens_details" not in json.loads(whole(parsed, chunks(TAGS)))["usage"]


@given(st.lists(st.text("ab", max_size=3), max_size=12), st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_tokens_are_counted_by_the_characters_that_they_add(texts, start, stop, offset):
    places = TokenPlaces(offset)
    for text in texts:
        places.add(text, (token(text),))
    ends = [offset, *(offset + len("".join(texts[: count + 1])) for count in range(len(texts)))]
    naive = sum(begin < stop and max(end, begin + 1) > start for begin, end in pairwise(ends))
    assert places.count(start, max(start, stop)) == (naive if start < stop else 0)
