"""Anthropic's Messages API: bodies, whole messages and streams, read by the types of its SDK."""

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from headrace.core.answer_format.formats import FORMATS
from headrace.core.errors import (
    Busy,
    ContextTooLong,
    EngineFailed,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    Unauthorized,
    Unavailable,
)
from headrace.core.generation import ChatPrompt, Chunk, FinishReason
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.serving.wire.anthropic.dialect import AnthropicMessages, parse_count
from headrace.serving.wire.anthropic.reply import render_error
from tests.serving.wire.samples import CONTEXT, MODEL, body, cut, finish, streamed, token, whole

if TYPE_CHECKING:
    from anthropic.types import Message

HI = [{"role": "user", "content": "Hi"}]
PREFILLED = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "The"}]}]
WEATHER = {
    "name": "weather",
    "description": "Look at the sky.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINK = next(known for known in FORMATS if known.name == "think")
CALL = 'Wait.<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'


@cache
def reader_of_events() -> TypeAdapter:
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


def parse(*, reasons=False, **fields):
    context = replace(CONTEXT, model=replace(MODEL, answer_format=THINK)) if reasons else CONTEXT
    return AnthropicMessages().parse(body(**{"model": "m", "max_tokens": 9, "messages": HI, **fields}), context)


def chunks(*texts, reason=FinishReason.EOS, stop=None):
    pieces = [Chunk(text=text, tokens=(token(text),)) for text in texts]
    return [*pieces, Chunk(finish=replace(finish(reason), stop=stop))]


def message_of(parsed, *texts, **options) -> "Message":
    from anthropic.types import Message

    return Message.model_validate_json(whole(parsed, chunks(*texts, **options)))


def events_of(parsed, *texts, **options):
    events = []
    for part in streamed(parsed, chunks(*texts, **options)):
        name, data, *rest = part.decode().split("\n")
        assert rest == ["", ""]
        event = reader_of_events().validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        events.append(event)
    return events


def messages_of(parsed) -> list[dict]:
    (request,) = parsed.requests
    assert isinstance(request.prompt, ChatPrompt)
    return [dict(message) for message in request.prompt.messages]


@pytest.mark.parametrize(
    "kind", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "mcp_toolset"]
)
def test_tools_of_anthropics_servers_are_left_out_beside_tools_of_the_client(kind):
    hosted = {"type": kind, "mcp_server_name": "x"}
    parsed = parse(tools=[hosted, WEATHER], context_management={"edits": [{"type": "clear"}]})
    assert [tool["function"]["name"] for tool in parsed.requests[0].prompt.tools] == ["weather"]
    assert set(parsed.ignored) == {f"tools.0.{kind}", "context_management"}
    with pytest.raises(InvalidRequest, match=f"'{kind}' runs on Anthropic's servers"):
        parse(tools=[{"type": kind, "name": "hosted"}])
    with pytest.raises(InvalidRequest, match="has a schema that models here do not know"):
        parse(tools=[{"type": "computer_20250124", "name": "computer"}, WEATHER])


@pytest.mark.parametrize(
    ("kind", "name", "members"),
    [
        ("bash_20250124", "bash", "command restart"),
        ("text_editor_20250124", "str_replace_editor", "path view_range file_text old_str new_str insert_line"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "view_range old_str new_str insert_line insert_text"),
        ("memory_20250818", "memory", "path file_text insert_text old_path new_path"),
    ],
)
def test_tools_with_a_published_schema_are_tools_with_that_schema(kind, name, members):
    given_tool = {"type": kind, "name": name, "max_characters": 10, "cache_control": {"type": "ephemeral"}}
    parsed = parse(tools=[given_tool], tool_choice={"type": "any"})
    (tool,) = parsed.requests[0].prompt.tools
    assert tool["function"]["name"] == name
    assert set(members.split()) <= tool["function"]["parameters"]["properties"].keys()
    assert parsed.requests[0].sampling.grammar is not None


def test_a_body_becomes_a_request():
    parsed = parse(system="Be brief.", temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["X"], max_tokens=7)
    sampling = parsed.requests[0].sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 40)
    assert sampling.stop == ("X",)
    assert messages_of(parsed) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert parsed.requests[0].prompt.template_values == {"enable_thinking": False}


def test_blocks_become_messages_of_the_chat_template():
    parsed = parse(
        system=[{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}],
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Bonn?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no city", "is_error": True},
                    {"type": "document", "title": "Log", "source": {"type": "text", "data": "wet"}},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    )
    system, user, assistant, rain, failed, more = messages_of(parsed)
    assert (system["content"], user["content"]) == ("A\nB", "Bonn?")
    assert (assistant["content"], assistant["reasoning"]) == ("I look.", "Look.")
    call = {"name": "weather", "arguments": {"city": "Bonn"}}
    assert assistant["tool_calls"] == [{"id": "t1", "type": "function", "function": call}]
    assert (rain["role"], rain["tool_call_id"], rain["content"]) == ("tool", "t1", "rain")
    assert failed["content"] == "Error: no city"
    assert more == {"role": "user", "content": "Log\nwet\nAnd now?"}
    (tool,) = parsed.requests[0].prompt.tools
    assert tool["function"]["parameters"] == WEATHER["input_schema"]


USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]}
RAIN = {"type": "tool_result", "tool_use_id": "t1", "content": "rain"}


def said(role, text):
    return {"role": role, "content": text}


ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1.197.f4c; cc_entrypoint=cli; cch=3ffcb;"


@pytest.mark.parametrize(
    ("system", "texts"),
    [
        ([{"type": "text", "text": ATTRIBUTION}, {"type": "text", "text": "Be brief."}], ["Be brief."]),
        (f"{ATTRIBUTION}\nBe brief.", ["Be brief."]),
        (ATTRIBUTION, []),
        (f"Remove the line\n{ATTRIBUTION}", [f"Remove the line\n{ATTRIBUTION}"]),
        ("", [""]),
    ],
)
def test_claude_code_s_attribution_is_no_part_of_the_prompt(system, texts):
    prompts = [
        parse(system=system).requests[0].prompt,
        parse(messages=[{"role": "system", "content": system}, *HI]).requests[0].prompt,
        parse_count(body(model="m", messages=HI, system=system), CONTEXT),
    ]
    for prompt in prompts:
        assert [message["content"] for message in prompt.messages] == [*texts, "Hi"]


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([said("user", "a"), said("user", [{"type": "text", "text": "b"}])], [("user", "a\nb")]),
        ([*HI, said("assistant", "a"), said("assistant", "b")], [("user", "Hi"), ("assistant", "a\nb")]),
        ([*HI, said("assistant", "a"), USED, *HI], [("user", "Hi"), ("assistant", "a"), ("user", "Hi")]),
        (
            [*HI, USED, said("user", [RAIN]), said("user", [{**RAIN, "tool_use_id": "t2"}]), said("user", "So?")],
            [("user", "Hi"), ("assistant", ""), ("tool", "rain"), ("tool", "rain"), ("user", "So?")],
        ),
        (
            [*HI, USED, said("user", "So?"), said("user", [RAIN])],
            [("user", "Hi"), ("assistant", ""), ("tool", "rain"), ("user", "So?")],
        ),
    ],
)
def test_neighbouring_messages_of_one_role_are_one_turn(messages, turns):
    assert [(message["role"], message["content"]) for message in messages_of(parse(messages=messages))] == turns


def test_a_block_in_a_joined_turn_is_named_by_its_own_message():
    with pytest.raises(InvalidRequest, match=r"^messages\.1\.content\.0: "):
        parse(messages=[*HI, said("user", [{"type": "image", "source": {"type": "url"}}])])


def test_a_last_message_of_the_assistant_is_continued():
    parsed = parse(messages=PREFILLED, reasons=True)
    (request,) = parsed.requests
    assert request.prompt.continues_final_message
    assert not request.prompt.add_generation_prompt
    assert not request.separates_reasoning
    assert message_of(parsed, " rain").content[0].text == " rain"


def test_the_model_s_sampling_applies_where_a_request_says_nothing():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05)
    context = replace(CONTEXT, model=replace(MODEL, sampling_defaults=defaults))

    def values(**fields):
        sent = body(model="m", max_tokens=9, messages=HI, **fields)
        sampling = AnthropicMessages().parse(sent, context).requests[0].sampling
        return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)

    assert values() == (0.6, 0.95, 20, 0.1, 1.05)
    assert values(temperature=1, top_p=1, top_k=0) == (1, 1, 0, 0.1, 1.05)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content: user messages must have non-empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "type 'image'"),
        ({"messages": [*HI, {"role": "assistant", "content": "The "}]}, "cannot end with trailing whitespace"),
        ({"messages": [*HI, {"role": "assistant", "content": []}]}, "without text"),
        ({"messages": PREFILLED, "thinking": {"type": "enabled"}}, "when 'thinking' is on"),
        ({"max_tokens": 0}, "max_tokens: 0 is less than 1"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature: 1.5 is greater than 1"),
        ({"top_k": -1}, "top_k: -1 is less than 0"),
        ({"stop_sequences": [" "]}, "non-whitespace"),
        ({"stop_sequences": ["a"] * 99}, "at most"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs on Anthropic's servers"),
        ({"tools": [{"type": "bash_20250124"}]}, "tools.0.name: field required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "none"}}, "not among the tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.tool.name: field required"),
        ({"mcp_servers": [{"url": "x"}]}, "'mcp_servers' is not supported"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields, part):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert part in caught.value.message


def test_claude_code_finds_the_numbers_in_errors_about_lengths():
    long = PromptTooLong(prompt_tokens=700, max_prompt_tokens=511, is_exact=False)
    for error, part in (
        (long, "prompt is too long: at least 700 tokens > 511 maximum"),
        (
            ContextTooLong(prompt_tokens=500, max_new_tokens=32, max_total_tokens=512),
            "input length and `max_tokens` exceed context limit: 500 + 32 > 512",
        ),
    ):
        found = json.loads(AnthropicMessages().render_error(error).body)["error"]
        assert (found["type"], part in found["message"]) == ("invalid_request_error", True)


def test_another_model_is_not_found():
    context = replace(CONTEXT, accepted_models=frozenset({"only"}))
    with pytest.raises(ModelNotFound):
        AnthropicMessages().parse(body(model="other", max_tokens=1, messages=HI), context)


def test_text_is_a_block():
    message = message_of(parse(), "one", " two")
    assert [block.model_dump(include={"type", "text"}) for block in message.content] == [
        {"type": "text", "text": "one two"}
    ]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == finish(FinishReason.EOS).prompt_tokens


@pytest.mark.parametrize(
    ("reason", "stop", "max_tokens", "expected"),
    [
        (FinishReason.LENGTH, None, 3, ("max_tokens", None)),
        (FinishReason.LENGTH, None, 32_000, ("model_context_window_exceeded", None)),
        (FinishReason.STOP, "X", 9, ("stop_sequence", "X")),
        (FinishReason.EOS, None, 9, ("end_turn", None)),
    ],
)
def test_the_reason_for_the_end_is_named(reason, stop, max_tokens, expected):
    message = message_of(parse(max_tokens=max_tokens), "one", reason=reason, stop=stop)
    assert (message.stop_reason, message.stop_sequence) == expected


def test_a_call_is_a_block_with_its_input():
    message = message_of(parse(tools=[WEATHER]), CALL)
    text, call = message.content
    assert (text.text, call.name, call.input) == ("Wait.", "weather", {"city": "Bonn"})
    assert call.id.startswith("toolu_")
    assert message.stop_reason == "tool_use"


def test_a_named_tool_is_enforced_by_its_schema():
    parsed = parse(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert parsed.requests[0].sampling.grammar.kind == "json_schema"
    (call,) = message_of(parsed, '{"city": "Bonn"}').content
    assert (call.name, call.input) == ("weather", {"city": "Bonn"})


def test_a_schema_constrains_the_text_in_both_of_its_places():
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_format": form}, {"output_config": {"format": form, "effort": "low"}}):
        assert parse(**fields).requests[0].sampling.grammar.text == '{"type":"object"}'


@pytest.mark.parametrize(("thinking", "kinds"), [({"type": "enabled", "budget_tokens": 9}, 2), (None, 1)])
def test_thinking_is_a_block_if_it_is_asked_for(thinking, kinds):
    parsed = parse(reasons=True, **({"thinking": thinking} if thinking else {}))
    assert parsed.requests[0].prompt.template_values["enable_thinking"] is (thinking is not None)
    content = message_of(parsed, "<think>\nEasy.\n</think>\n\nParis").content
    assert len(content) == kinds
    assert content[-1].text == "Paris"
    if thinking:
        assert (content[0].thinking, bool(content[0].signature)) == ("Easy.", True)


@given(st.lists(st.integers(0, 120), max_size=9))
def test_a_stream_adds_up_to_the_whole_message_wherever_tokens_end(places):
    text = f"<think>\nEasy.\n</think>\n\n{CALL}"
    fields = {"reasons": True, "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    pieces = [piece.decode() for piece in cut(text.encode(), places)]
    events = events_of(parse(**fields, stream=True), *pieces)
    message = message_of(parse(**fields), text)
    assert [event.type for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    blocks = []
    for event in events:
        if event.type == "content_block_start":
            assert event.index == len(blocks)
            blocks.append([event.content_block.type, ""])
        elif event.type == "content_block_delta":
            delta = event.delta.model_dump()
            if event.delta.type != "signature_delta":
                blocks[event.index][1] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
    thought, said, call = message.content
    expected = [["thinking", thought.thinking], ["text", said.text], ["tool_use", json.dumps(call.input)]]
    assert blocks == expected
    assert events[-2].usage.output_tokens == message.usage.output_tokens


def test_a_stream_that_fails_ends_with_an_error_event():
    renderer = parse(stream=True).reply.stream()
    renderer.chunk(Chunk(text="one", tokens=(token("one"),)))
    (event,) = renderer.error(EngineFailed("It broke."))
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.partition(b"data: ")[2]) == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke."},
    }
    assert renderer.end() == ()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("x"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (ModelNotFound("x"), 404, "not_found_error"),
        (Busy("x"), 429, "rate_limit_error"),
        (Unavailable("x"), 503, "overloaded_error"),
        (EngineFailed("x"), 500, "api_error"),
    ],
)
def test_errors_have_the_types_that_the_sdk_maps(error, status, kind):
    reply = render_error(error)
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (status, kind)


def test_the_body_of_a_count_needs_no_max_tokens():
    prompt = parse_count(body(model="m", messages=HI, system="S", tools=[WEATHER]), CONTEXT)
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert prompt.tools
