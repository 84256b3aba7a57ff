import json
import re
from dataclasses import replace

import pytest

from headrace.core.errors import (
    Busy,
    ContextTooLong,
    EngineFailed,
    HeadraceError,
    ModelNotFound,
    PromptTooLong,
    Unauthorized,
    Unavailable,
)
from headrace.core.generation import ChatPrompt, Chunk, FinishReason, Grammar
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.envelope import system_fingerprint
from headrace.serving.wire.openai.pages import render_model, render_models
from tests.serving.wire.samples import (
    CONTEXT,
    FINGERPRINT,
    MODEL,
    answer,
    body,
    finish,
    line_objects,
    parse,
    sse_objects,
    streamed,
    token,
    whole,
)

DIALECT = OpenAIChat()
HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def chat(**fields):
    return parse(DIALECT, **{"messages": HELLO, **fields})


def refusal(**fields):
    with pytest.raises(HeadraceError) as caught:
        chat(**fields)
    reply = DIALECT.render_error(caught.value)
    return reply.status, json.loads(reply.body)["error"]


def messages_of(*messages):
    prompt = chat(messages=list(messages)).requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


def test_an_answer_that_repeated_itself_has_a_stop_reason():
    repeated = answer(" a", " a", reason=FinishReason.REPETITION)
    expected = ("stop", "repetition_detected")
    (choice,) = json.loads(whole(chat(), repeated))["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == expected
    events = sse_objects(streamed(chat(stream=True), repeated))
    assert all("stop_reason" not in event["choices"][0] for event in events[:-1])
    assert (events[-1]["choices"][0]["finish_reason"], events[-1]["choices"][0]["stop_reason"]) == expected


def test_golden_answer():
    assert whole(chat(), answer(" a", " b")) == (
        b'{"id":"chatcmpl-r1","object":"chat.completion","created":7,"model":"smol",'
        + FINGERPRINT
        + b'"choices":[{"index":0,'
        b'"message":{"role":"assistant","content":" a b","refusal":null,"annotations":null,"audio":null,'
        b'"function_call":null,"reasoning":null,"reasoning_content":null},"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}'
    )


def test_golden_stream():
    parsed = chat(stream=True)
    start = (
        b'data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","created":7,"model":"smol",'
        + FINGERPRINT
        + b'"choices":[{"index":0,'
    )
    assert streamed(parsed, answer(" a", reason=FinishReason.LENGTH)) == [
        start + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n',
        start + b'"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]}\n\n',
        start + b'"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_the_usage_chunk_has_no_choices():
    parsed = chat(stream=True, stream_options={"include_usage": True})
    *chunks, last = sse_objects(streamed(parsed, answer("a")))
    assert all(item["usage"] is None for item in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 6


def test_lmi_streams_chat_as_lines_without_done():
    parsed = parse(OpenAIChat(framing="jsonlines"), messages=HELLO, stream=True)
    assert parsed.reply.content_type == "application/jsonlines"
    objects = line_objects(streamed(parsed, answer("a")))
    assert [item["object"] for item in objects] == ["chat.completion.chunk"] * 3


def test_each_choice_is_streamed_separately():
    parsed = chat(stream=True, n=2)
    first, second = answer("a", index=0), answer("b", index=1)
    mixed = [chunk for pair in zip(first, second, strict=True) for chunk in pair]
    texts = {0: "", 1: ""}
    for item in sse_objects(streamed(parsed, mixed)):
        texts[item["choices"][0]["index"]] += item["choices"][0]["delta"].get("content", "")
    assert texts == {0: "a", 1: "b"}


def test_logprobs_contain_bytes_and_alternatives():
    parsed = chat(logprobs=True, top_logprobs=1)
    assert parsed.requests[0].sampling.logprobs == 1
    (choice,) = json.loads(whole(parsed, answer("é", num_top=2)))["choices"]
    assert choice["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [{"token": "é", "logprob": -0.5, "bytes": [195, 169]}],
        }
    ]


def test_the_openai_client_s_types_fit():
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    parsed = chat(stream=True, logprobs=True, top_logprobs=1, stream_options={"include_usage": True})
    for item in sse_objects(streamed(parsed, answer("a", "b", num_top=1))):
        ChatCompletionChunk.model_validate(item, strict=True)
    ChatCompletion.model_validate_json(whole(chat(logprobs=True), answer("a")), strict=True)


def test_max_completion_tokens_takes_precedence_over_max_tokens():
    assert chat().requests[0].sampling.max_new_tokens is None
    assert chat(max_tokens=5).requests[0].sampling.max_new_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).requests[0].sampling.max_new_tokens == 6


def test_messages_reach_the_template_as_it_expects_them():
    assert messages_of(
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Al"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "Al"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(("arguments", "wanted"), [("", {}), ('{"x":', '{"x":'), ({"x": 1}, {"x": 1})])
def test_arguments_of_earlier_calls_become_objects_if_they_can(arguments, wanted):
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = messages_of({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == wanted


def test_template_options_are_passed_on():
    prompt = chat(chat_template_kwargs={"think": False}, add_generation_prompt=False).requests[0].prompt
    assert (prompt.template_values, prompt.add_generation_prompt) == ({"think": False}, False)


def test_an_answer_can_be_continued():
    started = [*HELLO, {"role": "assistant", "content": "Hel"}]
    prompt = chat(messages=started, continue_final_message=True).requests[0].prompt
    assert (prompt.continues_final_message, prompt.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("response_format", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
            Grammar("json_schema", '{"type":"object"}'),
        ),
    ],
)
def test_response_formats_become_grammars(response_format, grammar):
    assert chat(response_format=response_format).requests[0].sampling.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"messages": []}, "messages", "empty array"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "not supported: clients may not run templates"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "needs content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid enum value 'king'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "reads text only",
        ),
        ({"top_logprobs": 3}, "top_logprobs", "only allowed when 'logprobs' is true"),
        ({"logprobs": 3}, "logprobs", "expected `bool | null`, got `int`"),
        ({"max_tokens": 0}, "max_tokens", "Expected a value >= 1"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid enum value 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "Missing required"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed when 'tools' are given"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "is defined twice"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "got 'a b'"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}},
            "tool_choice",
            "'time' is not among the tools",
        ),
        (
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "'response_format' and 'tool_choice' both constrain the answer",
        ),
        ({"continue_final_message": True}, "continue_final_message", "expected a last message of the assistant"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "expected one of the two",
        ),
    ],
)
def test_bad_values_are_refused_in_openai_s_form(fields, param, text):
    status, error = refusal(**fields)
    assert status == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
    assert text in error["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (PromptTooLong(prompt_tokens=9, max_prompt_tokens=5), 400, "invalid_request_error", "context_length_exceeded"),
        (
            ContextTooLong(prompt_tokens=9, max_new_tokens=3, max_total_tokens=10),
            400,
            "invalid_request_error",
            "context_length_exceeded",
        ),
        (Busy("full"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (Unauthorized("no"), 401, "invalid_request_error", "invalid_api_key"),
        (Unavailable("starting"), 503, "server_error", "unavailable"),
        (EngineFailed("boom"), 500, "server_error", "engine_failed"),
    ],
)
def test_errors_have_openai_s_status_type_and_code(error, status, kind, code):
    reply = DIALECT.render_error(error)
    written = json.loads(reply.body)["error"]
    assert (reply.status, written["type"], written["code"]) == (status, kind, code)


def test_the_error_for_a_too_long_prompt_has_the_numbers_that_clients_look_for():
    error = ContextTooLong(prompt_tokens=9, max_new_tokens=3, max_total_tokens=10)
    assert b"maximum context length is 10 tokens. However, you requested 12 tokens" in DIALECT.render_error(error).body


def test_a_failure_in_the_stream_is_an_event_before_done():
    failed = Chunk(finish=finish(FinishReason.ERROR, message="boom"))
    parts = streamed(chat(stream=True), [Chunk(text="a", tokens=(token("a"),)), failed])
    assert parts[-1] == b"data: [DONE]\n\n"
    assert json.loads(parts[-2].removeprefix(b"data: "))["error"]["message"] == "boom"
    assert sum(part == b"data: [DONE]\n\n" for part in parts) == 1


def test_another_model_is_not_found_if_names_are_checked():
    strict = replace(CONTEXT, accepted_models=frozenset({"alias"}))
    for name in ("smol", "alias", None):
        assert DIALECT.parse(body(messages=HELLO, model=name), strict)
    with pytest.raises(ModelNotFound) as caught:
        DIALECT.parse(body(messages=HELLO, model="gpt-9"), strict)
    reply = DIALECT.render_error(caught.value)
    written = json.loads(reply.body)["error"]
    assert (reply.status, written["code"], written["param"]) == (404, "model_not_found", "model")
    assert DIALECT.parse(body(messages=HELLO, model="gpt-9"), CONTEXT)


def test_models_are_listed_under_all_their_names():
    listed = json.loads(render_models(MODEL, ["alias"]))
    assert [model["id"] for model in listed["data"]] == ["smol", "alias"]
    assert json.loads(render_model(MODEL, "alias", ["alias"]))["max_model_len"] == 2048
    with pytest.raises(ModelNotFound):
        render_model(MODEL, "other")


def test_an_earlier_call_in_the_old_form_reaches_the_template():
    (message,) = messages_of({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]


def test_the_fingerprint_changes_with_the_model_and_its_format_only():
    again = replace(MODEL, created_s=9, max_num_seqs=1)
    assert system_fingerprint(again) == system_fingerprint(MODEL)
    changed = [replace(MODEL, **{name: "other"}) for name in ("name", "revision", "dtype", "kv_dtype", "device")]
    assert len({system_fingerprint(model) for model in (MODEL, *changed)}) == 6
    assert re.fullmatch("fp_[0-9a-f]{10}", system_fingerprint(MODEL))


def test_the_effort_of_reasoning_reaches_the_chat_template():
    def values(**fields):
        return chat(**fields).requests[0].prompt.template_values

    assert values() == {}
    assert values(reasoning_effort="low") == {"reasoning_effort": "low", "enable_thinking": True}
    assert values(reasoning_effort="none")["enable_thinking"] is False
    assert values(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})["enable_thinking"] is False


def test_top_logprobs_have_the_limit_of_the_server():
    status, error = refusal(logprobs=True, top_logprobs=20)
    assert (status, error["param"]) == (400, "top_logprobs")
    assert error["message"] == (
        "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 5, but got 20 instead."
    )
