"""OpenAI's Responses API: bodies, whole responses and streams, read by the types of its SDK."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from headrace.core.answer_format.formats import FORMATS
from headrace.core.errors import Busy, EngineFailed, HeadraceError, InvalidRequest, ModelNotFound
from headrace.core.generation import ChatPrompt, Chunk, FinishReason
from headrace.serving.wire.openai.responses import FIELDS, OpenAIResponses
from tests.serving.wire.samples import CONTEXT, EOS, MODEL, body, cut, finish, streamed, token, whole

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Look at the sky.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
CLOCK = {"type": "function", "name": "clock"}
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}
THINK = next(known for known in FORMATS if known.name == "think")
CALL = 'Wait.<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
REASONED = f"<think>\nEasy.\n</think>\n\n{CALL}"
EVENTS = TypeAdapter(ResponseStreamEvent)


def parse(*, reasons=False, **fields):
    context = replace(CONTEXT, model=replace(MODEL, answer_format=THINK)) if reasons else CONTEXT
    return OpenAIResponses().parse(body(**{"model": "m", "input": "Hi", **fields}), context)


def chunks(*texts, reason=FinishReason.EOS):
    pieces = [Chunk(text=text, tokens=(token(text, num_top=2),)) for text in texts]
    return [*pieces, Chunk(tokens=(EOS,), finish=finish(reason))]


def response_of(parsed, *texts, **options) -> Response:
    return Response.model_validate_json(whole(parsed, chunks(*texts, **options)))


def read_events(parts):
    events = []
    for number, part in enumerate(parts):
        name, data, *rest = part.decode().split("\n")
        assert rest == ["", ""]
        event = EVENTS.validate_json(data.removeprefix("data: "))
        assert (name, event.sequence_number) == (f"event: {event.type}", number)
        events.append(event)
    return events


def events_of(parsed, *texts, **options):
    return read_events(streamed(parsed, chunks(*texts, **options)))


def messages_of(parsed) -> list[dict]:
    (request,) = parsed.requests
    assert isinstance(request.prompt, ChatPrompt)
    return [dict(message) for message in request.prompt.messages]


def test_a_body_becomes_a_request():
    parsed = parse(
        instructions="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=7, reasoning={"effort": "low"}, seed=3
    )
    sampling = parsed.requests[0].sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (7, 0.5, 0.9, 3)
    assert messages_of(parsed) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert parsed.requests[0].prompt.template_values == {"reasoning_effort": "low", "enable_thinking": True}


def test_items_become_messages_of_the_chat_template():
    parsed = parse(
        tools=[WEATHER],
        input=[
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Bonn?"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
            {
                "role": "assistant",
                "id": "m",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bonn"}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no city"}]},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "And now?"},
        ],
    )
    system, user, assistant, rain, failed, more = messages_of(parsed)
    assert (system["role"], user["content"]) == ("system", "Bonn?")
    assert (assistant["content"], assistant["reasoning"]) == ("I look.", "Look.")
    assert [(call["id"], call["function"]["arguments"]) for call in assistant["tool_calls"]] == [
        ("c1", {"city": "Bonn"}),
        ("c2", {}),
    ]
    assert (rain["role"], rain["tool_call_id"], rain["content"]) == ("tool", "c1", "rain")
    assert (failed["content"], more["content"]) == ("no city", "And now?")
    (tool,) = parsed.requests[0].prompt.tools
    assert tool["function"]["parameters"] == WEATHER["parameters"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 9}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "weather"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "text": {"format": SCHEMA}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "text.format.schema"),
        ({"text": {"format": SCHEMA}, "regex": "a"}, "regex"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


def test_a_stored_response_is_asked_for_by_its_items():
    with pytest.raises(
        InvalidRequest, match=r"does not store responses\. Send all items of the conversation as 'input'"
    ):
        parse(previous_response_id="resp_1")


def test_what_has_no_effect_is_accepted_and_logged():
    fields = {
        "store": True,
        "service_tier": "auto",
        "truncation": "disabled",
        "background": False,
        "previous_response_id": None,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": None, "summary": "auto"},
        "text": {"verbosity": "medium", "format": {"type": "text"}},
        "max_tool_calls": 3,
    }
    parsed = parse(**fields)
    assert set(parsed.ignored) == {"store", "service_tier", "max_tool_calls"}
    assert set(parsed.ignored) <= FIELDS.no_effect | {"store"}
    assert parsed.requests[0].sampling.grammar is None


def test_another_model_is_not_found():
    context = replace(CONTEXT, accepted_models=frozenset({"only"}))
    with pytest.raises(ModelNotFound):
        OpenAIResponses().parse(body(model="other", input="Hi"), context)


def test_a_message_is_the_output_and_the_settings_are_repeated():
    parsed = parse(
        instructions="Be brief.", metadata={"a": "b"}, user="u", tools=[WEATHER], text={"format": SCHEMA}, store=True
    )
    response = response_of(parsed, "one", " two")
    assert (response.output_text, response.status) == ("one two", "completed")
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "u")
    assert (response.tools[0].name, response.tool_choice, response.text.format.name) == ("weather", "auto", "s")
    assert response.model_extra["store"] is False
    end = finish()
    assert (response.usage.input_tokens, response.usage.output_tokens) == (end.prompt_tokens, end.output_tokens)


def test_a_response_that_is_cut_is_incomplete():
    parsed = parse(tools=[WEATHER, CLOCK], tool_choice="required")
    written = '[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"ci'
    response = response_of(parsed, written, reason=FinishReason.LENGTH)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [(item.type, item.status) for item in response.output] == [
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]
    assert events_of(parse(stream=True), "one", reason=FinishReason.LENGTH)[-1].type == "response.incomplete"


def test_an_empty_answer_is_an_empty_message():
    response = response_of(parse())
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == ""


def test_calls_and_reasoning_are_items():
    response = response_of(parse(tools=[WEATHER], reasons=True), REASONED)
    thought, said, call = response.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "Easy.", [])
    assert (said.content[0].text, call.name, json.loads(call.arguments)) == ("Wait.", "weather", {"city": "Bonn"})
    assert len({item.id for item in response.output} | {call.call_id}) == 4


def test_the_items_of_a_response_can_be_sent_back():
    response = response_of(parse(tools=[WEATHER], reasons=True), REASONED)
    items = [item.model_dump(mode="json") for item in response.output]
    user, assistant = messages_of(parse(input=[{"role": "user", "content": "Bonn?"}, *items], reasons=True))
    assert (user["content"], assistant["content"], assistant["reasoning"]) == ("Bonn?", "Wait.", "Easy.")
    assert assistant["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Bonn"}}


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"type": "function", "name": "weather"}, '{"city": "Bonn"}'),
        ("required", '[{"name": "weather", "arguments": {"city": "Bonn"}}]'),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            '[{"name": "weather", "arguments": {"city": "Bonn"}}]',
        ),
    ],
)
def test_a_call_is_enforced_by_the_schema(choice, text):
    parsed = parse(tools=[WEATHER, CLOCK], tool_choice=choice)
    assert parsed.requests[0].sampling.grammar.kind == "json_schema"
    (call,) = response_of(parsed, text).output
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bonn"})


def test_no_tools_are_shown_if_none_may_be_called():
    assert parse(tools=[WEATHER], tool_choice="none").requests[0].prompt.tools is None


@pytest.mark.parametrize(("form", "kind"), [(SCHEMA, "json_schema"), ({"type": "json_object"}, "json_object")])
def test_the_text_is_constrained_by_its_format(form, kind):
    assert parse(text={"format": form}).requests[0].sampling.grammar.kind == kind


@pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_logprobs_are_those_of_the_messages_tokens(fields):
    parsed = parse(reasons=True, **fields)
    num_top = fields.get("top_logprobs", 0)
    assert parsed.requests[0].sampling.logprobs == num_top
    texts = ("<think>", "\nEasy.", "\n</think>\n\n", "one", " two")
    response = response_of(parsed, *texts)
    logprobs = response.output[-1].content[0].logprobs
    assert [item.token for item in logprobs] == ["one", " two"]
    assert {len(item.top_logprobs) for item in logprobs} == {num_top}
    events = events_of(parse(reasons=True, stream=True, **fields), *texts)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [item.token for event in deltas for item in event.logprobs] == ["one", " two"]
    assert events[-1].response.output == response.output


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 1}])
def test_the_tokens_of_the_reasoning_are_counted(fields):
    response = response_of(parse(reasons=True, **fields), "<think>", "\nYes", ".\n", "</think>", "\n\n", "No")
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert response_of(parse(), "No").usage.output_tokens_details.reasoning_tokens == 0


@given(st.lists(st.integers(0, 120), max_size=9))
def test_a_stream_adds_up_to_the_whole_response_wherever_tokens_end(places):
    fields = {"reasons": True, "tools": [WEATHER]}
    pieces = [piece.decode() for piece in cut(REASONED.encode(), places)]
    events = events_of(parse(**fields, stream=True), *pieces)
    response = response_of(parse(**fields), *pieces)
    kinds = [event.type for event in events]
    assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "response.completed")
    assert events[-1].response.output == response.output
    assert events[-1].response.usage == response.usage
    texts = [""] * len(response.output)
    finished = []
    for event in events:
        if event.type.endswith(".delta"):
            assert event.item_id == response.output[event.output_index].id
            texts[event.output_index] += event.delta
        elif event.type == "response.output_item.added":
            assert event.output_index == len(finished)
        elif event.type == "response.output_item.done":
            finished.append(event.item)
        elif event.type in {"response.output_text.done", "response.reasoning_text.done"}:
            assert event.text == texts[event.output_index]
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == texts[event.output_index]
    assert finished == response.output
    thought, said, call = response.output
    assert texts == [thought.content[0].text, said.content[0].text, call.arguments]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineFailed("It broke."), "server_error"),
        (Busy("It broke."), "rate_limit_exceeded"),
        (InvalidRequest("It broke."), "invalid_prompt"),
    ],
)
def test_a_stream_that_fails_ends_with_the_error_and_what_there_is(error: HeadraceError, code):
    renderer = parse(stream=True).reply.stream()
    begun = renderer.chunk(Chunk(text="one", tokens=(token("one"),)))
    parts = renderer.error(error)
    *_, told, failed = read_events([*begun, *parts])
    assert (told.type, told.message) == ("error", "It broke.")
    assert json.loads(parts[0].partition(b"data: ")[2])["error"]["message"] == "It broke."
    assert (failed.type, failed.response.status, failed.response.error.code) == ("response.failed", "failed", code)
    assert failed.response.output_text == "one"
    assert renderer.end() == ()


def test_a_stream_that_fails_before_its_first_token_is_only_an_error():
    (event,) = read_events(parse(stream=True).reply.stream().error(EngineFailed("It broke.")))
    assert event.type == "error"


def test_errors_have_openais_form():
    reply = OpenAIResponses().render_error(InvalidRequest("no", param="input"))
    assert reply.status == 400
    assert json.loads(reply.body)["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "input",
        "code": None,
    }
