"""Ollama's chats and prompts: bodies, whole answers and streams, read by the types of its Python package."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.errors import Busy, EngineFailed, InvalidRequest, ModelNotFound
from headrace.core.generation import (
    ChatPrompt,
    Chunk,
    FinishReason,
)
from headrace.core.sampling_defaults import RecommendedSampling
from headrace.serving.wire.dialect import Timings
from headrace.serving.wire.ollama.dialect import OllamaChat, OllamaGenerate
from headrace.serving.wire.ollama.models import render_show
from headrace.serving.wire.ollama.reply import render_error
from tests.serving.wire.samples import CONTEXT, MODEL, body, cut, finish, line_objects, streamed, token, whole

HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Look at the sky.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = 'Wait.<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
THINKING = replace(CONTEXT, model=replace(MODEL, answer_format=REASONING_TAGS))


def timings() -> Timings:
    return Timings(total_s=3.0, validation_s=0.5, first_chunk_s=1.5)


def chat(*, facts=CONTEXT, **fields):
    timed = replace(facts, timings=timings)
    return OllamaChat().parse(body(**{"model": "smol", "messages": HI, **fields}), timed)


def generate(*, facts=CONTEXT, **fields):
    timed = replace(facts, timings=timings)
    return OllamaGenerate().parse(body(**{"model": "smol", "prompt": "Hi", **fields}), timed)


def chunks(*texts, reason=FinishReason.EOS):
    return [*(Chunk(text=text, tokens=(token(text),)) for text in texts), Chunk(finish=finish(reason))]


def answer_of(parsed, *texts, **options):
    import ollama

    assert parsed.reply.content_type == "application/json"
    return ollama.ChatResponse.model_validate_json(whole(parsed, chunks(*texts, **options)))


def lines_of(parsed, *texts, **options):
    import ollama

    assert parsed.reply.content_type == "application/x-ndjson"
    return [ollama.ChatResponse(**line) for line in line_objects(streamed(parsed, chunks(*texts, **options)))]


def sampling_of(parsed):
    return parsed.requests[0].sampling


def messages_of(parsed) -> list[dict]:
    prompt = parsed.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return [dict(message) for message in prompt.messages]


def test_options_become_sampling_parameters():
    options = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.1,
        "typical_p": 0.7,
        "seed": 42,
        "num_predict": 7,
        "stop": ["\n", "user:"],
        "repeat_penalty": 1.2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "num_ctx": 1024,
        "mirostat": 0,
    }
    parsed = chat(options=options, keep_alive="5m")
    sampling = sampling_of(parsed)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 20, 0.8, 0.1)
    assert (sampling.typical_p, sampling.seed, sampling.max_new_tokens) == (0.7, 42, 7)
    assert sampling.stop == ("\n", "user:")
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 1.5, 1.0)
    assert parsed.ignored == ("keep_alive", "options.num_ctx")


def test_the_models_recommended_sampling_is_the_default_and_is_shown():
    import ollama

    recommended = RecommendedSampling(temperature=0.6, top_p=0.7, top_k=5, min_p=0.1, repetition_penalty=1.3)
    model = replace(MODEL, recommended=recommended)
    context = replace(CONTEXT, model=model)
    sampling = sampling_of(chat(facts=context))
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.7, 5, 0.1)
    assert sampling.repetition_penalty == 1.3
    shown = ollama.ShowResponse.model_validate_json(render_show(body(model="smol"), context))
    assert shown.parameters is not None
    assert [line.split() for line in shown.parameters.splitlines()] == [
        ["temperature", "0.6"],
        ["top_p", "0.7"],
        ["top_k", "5"],
        ["min_p", "0.1"],
        ["repeat_penalty", "1.3"],
    ]


@pytest.mark.parametrize("ask", [chat, generate])
def test_logprobs_are_those_of_each_token(ask):
    parsed = ask(logprobs=True, top_logprobs=2, stream=False)
    assert sampling_of(parsed).logprobs == 2
    chunk = Chunk(text="Hi", tokens=(token("H"), token("i", logprob=-1.5, num_top=3)))
    (first, second) = json.loads(whole(parsed, [chunk, *chunks()]))["logprobs"]
    assert first == {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []}
    assert [top["token"] for top in second["top_logprobs"]] == ["i", "i1"]


def test_logprobs_without_alternatives_have_no_list_of_them():
    answer = answer_of(chat(logprobs=True, stream=False), "Hi")
    assert [(found.token, found.top_logprobs) for found in answer.logprobs] == [("Hi", None)]
    assert answer_of(chat(stream=False), "Hi").logprobs is None


def test_streamed_logprobs_follow_the_text_that_was_held_back():
    lines = lines_of(chat(logprobs=True, tools=[WEATHER]), *CALL.partition("<tool_call>"))
    tokens = [[found.token for found in line.logprobs or ()] for line in lines]
    assert [token for line in tokens for token in line] == [*CALL.partition("<tool_call>")]
    assert tokens[0] == ["Wait."]
    assert lines[1].message.tool_calls
    assert len(tokens[1]) == 2


@pytest.mark.parametrize("num_predict", [None, -1, -2, 0])
def test_an_answer_without_a_limit_ends_with_the_context(num_predict):
    assert sampling_of(chat(options={"num_predict": num_predict, "seed": -1})).max_new_tokens is None
    assert sampling_of(chat(options={"num_predict": 99_999})).is_cut_at_context


def test_messages_become_those_of_the_chat_template():
    parsed = chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Bonn?"},
            {
                "role": "assistant",
                "content": "",
                "thinking": "Look.",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bonn"}}}],
            },
            {"role": "tool", "tool_name": "weather", "content": "rain"},
        ],
        tools=[WEATHER],
    )
    system, _, assistant, result = messages_of(parsed)
    assert system == {"role": "system", "content": "Be brief."}
    assert assistant["reasoning"] == "Look."
    assert assistant["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Bonn"}}
    assert result == {"role": "tool", "content": "rain", "name": "weather"}
    assert parsed.requests[0].prompt.tools[0]["function"]["name"] == "weather"


def test_null_is_an_absent_field_and_roles_are_in_any_case():
    """Go, in which Ollama is written, leaves a field at its zero for null; Ollama makes roles lower-case."""
    call = {"function": {"name": "clock", "arguments": None}, "id": None}
    nulls = {"images": None, "thinking": None, "tool_name": None}
    messages = [
        {"role": "System", "content": None, **nulls},
        {"role": "User", "content": "Time?", "tool_calls": None, **nulls},
        {"role": "ASSISTANT", "content": None, "tool_calls": [call]},
        {"role": "Tool", "content": "noon"},
    ]
    named = ("tools", "format", "options", "think", "stream", "keep_alive", "logprobs", "template", "suffix")
    absent = dict.fromkeys(named)
    parsed = chat(messages=messages, **{**absent, "options": {"temperature": None, "stop": None}})
    assert [message["role"] for message in messages_of(parsed)] == ["system", "user", "assistant", "tool"]
    assert messages_of(parsed)[0]["content"] == ""
    assert messages_of(parsed)[2]["tool_calls"][0]["function"]["arguments"] == {}
    assert generate(**{**absent, "system": None, "raw": None, "context": None, "images": None}).requests
    assert not generate(prompt=None).requests, "it asks to load the model"
    with pytest.raises(InvalidRequest, match=r"`messages\[0\].role` is 'judge'; expected one of system, user"):
        chat(messages=[{"role": "judge", "content": "x"}])


def test_a_last_message_of_the_assistant_is_continued():
    prefilled = [*HI, {"role": "assistant", "content": "The weather is"}]
    parsed = chat(messages=prefilled, facts=THINKING, stream=False)
    (request,) = parsed.requests
    assert request.prompt.continues_final_message
    assert not request.prompt.add_generation_prompt
    assert not request.separates_reasoning
    assert answer_of(parsed, " fine").message.content == " fine"
    with pytest.raises(InvalidRequest, match="past its thinking"):
        chat(messages=prefilled, facts=THINKING, think=True)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "`messages[0].images`"),
        ({"messages": [*HI, {"role": "assistant", "content": ""}]}, "expected text to continue"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "`messages[0].role`"),
        ({"format": "yaml"}, "`format` is 'yaml'; expected 'json' or a JSON schema"),
        ({"think": True}, "'smol' does not support thinking"),
        ({"think": "much"}, "`think`"),
        ({"logprobs": True, "top_logprobs": 21}, "'top_logprobs'"),
        ({"top_logprobs": 2}, "'top_logprobs' needs 'logprobs': true"),
        ({"truncate": True}, "'truncate' is not supported"),
        ({"options": {"temperature": -1}}, "'options.temperature'"),
        ({"options": {"stop": [""]}}, "'options.stop'"),
        ({"options": {"mirostat": 2}}, "'options.mirostat' is not supported"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 32}}, "'options.repeat_last_n' is 32; expected"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"messages": [], "keep_alive": 0}, "cannot be unloaded"),
        ({"messages": [], "keep_alive": "0s"}, "cannot be unloaded"),
        ({"keep_alive": "soon"}, "`keep_alive` is 'soon'; expected seconds as a number, or a duration such as '5m'"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_by_name(fields, part):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert part in caught.value.message


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"template": "{{ .Prompt }}"}, "'template' is not supported"),
        ({"context": [1, 2]}, "Send the messages to /api/chat"),
        ({"images": ["aGk="]}, "'images' is not supported"),
        ({"raw": True, "system": "Be brief."}, "'system' cannot be applied: 'raw' prompts"),
        ({"raw": True, "think": True}, "'think' cannot be applied"),
    ],
)
def test_what_generate_cannot_do_is_refused_by_name(fields, part):
    with pytest.raises(InvalidRequest) as caught:
        generate(**fields)
    assert part in caught.value.message


@pytest.mark.parametrize("keep_alive", [None, "", 0, "0", "0m", -1, "-1s", "1h30m", "1.5h", 3600])
def test_the_model_stays_loaded_for_longer_than_any_duration(keep_alive):
    assert len(chat(keep_alive=keep_alive).requests) == 1
    if keep_alive not in (0, "0", "0m"):
        assert chat(messages=[], keep_alive=keep_alive).requests == ()


def test_another_model_is_not_found_and_the_tag_latest_is_optional():
    context = replace(CONTEXT, accepted_models=frozenset({"smol"}), adapters=frozenset({"poet"}))
    assert chat(facts=context, model="smol:latest").requests[0].adapter is None
    assert chat(facts=context, model="poet:latest").requests[0].adapter == "poet"
    with pytest.raises(ModelNotFound) as caught:
        chat(facts=context, model="other")
    reply = render_error(caught.value)
    assert (reply.status, set(json.loads(reply.body))) == (404, {"error"})


def test_generate_applies_the_chat_template_unless_the_prompt_is_raw():
    assert messages_of(generate(system="Be brief.")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert generate(raw=True).requests[0].prompt == "Hi"
    base = replace(CONTEXT, model=replace(MODEL, has_chat_template=False))
    assert generate(facts=base).requests[0].prompt == "Hi"
    with pytest.raises(InvalidRequest, match="no chat template"):
        generate(facts=base, system="Be brief.")


@pytest.mark.parametrize(
    ("form", "kind", "text"),
    [("json", "json_object", ""), ({"type": "object"}, "json_schema", '{"type":"object"}')],
)
def test_a_format_constrains_the_answer(form, kind, text):
    for parsed in (chat(format=form), generate(format=form)):
        grammar = sampling_of(parsed).grammar
        assert (grammar.kind, grammar.text) == (kind, text)
    assert sampling_of(chat(format="")).grammar is None


def test_a_whole_answer_has_counts_and_durations_in_nanoseconds():
    answer = answer_of(chat(stream=False), "one", " two")
    end = finish(FinishReason.EOS)
    assert (answer.model, answer.message.role, answer.message.content) == ("smol", "assistant", "one two")
    assert (answer.done, answer.done_reason, answer.created_at) == (True, "stop", "1970-01-01T00:00:07Z")
    assert (answer.prompt_eval_count, answer.eval_count) == (end.prompt_tokens, end.output_tokens)
    assert (answer.total_duration, answer.load_duration) == (3_000_000_000, 0)
    assert (answer.prompt_eval_duration, answer.eval_duration) == (1_000_000_000, 1_500_000_000)


def test_an_answer_that_was_cut_off_says_length():
    assert answer_of(chat(stream=False), "one", reason=FinishReason.LENGTH).done_reason == "length"
    *_, last = lines_of(chat(), "one", reason=FinishReason.LENGTH)
    assert last.done_reason == "length"


def test_generate_answers_in_the_field_response():
    import ollama

    answer = ollama.GenerateResponse.model_validate_json(whole(generate(stream=False), chunks("one", " two")))
    assert (answer.response, answer.done_reason) == ("one two", "stop")
    first, *_, last = line_objects(streamed(generate(), chunks("one", " two")))
    assert first == {"model": "smol", "created_at": "1970-01-01T00:00:07Z", "response": "one", "done": False}
    assert (last["response"], last["done"]) == ("", True)


@pytest.mark.parametrize("make", [chat, generate])
def test_a_body_without_a_prompt_loads_the_model_which_is_loaded(make):
    fields = {"messages": [], "prompt": ""}
    name = "messages" if make is chat else "prompt"
    parsed = make(**{name: fields[name]}, stream=False)
    assert parsed.requests == ()
    loaded = json.loads(parsed.reply.render(()))
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    assert line_objects(make(**{name: fields[name]}).reply.stream().end()) == [loaded]


def test_a_call_is_whole_and_has_an_object_as_arguments():
    answer = answer_of(chat(stream=False, tools=[WEATHER]), CALL)
    assert answer.message.content == "Wait."
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Bonn"})


def test_a_call_that_was_cut_off_is_no_call():
    for text in (CALL[:-30], '<tool_call>{"name": "weather"'):
        message = answer_of(chat(stream=False, tools=[WEATHER]), text, reason=FinishReason.LENGTH).message
        assert message.tool_calls is None


@pytest.mark.parametrize(("think", "thought"), [(None, "Easy."), (True, "Easy."), ("low", "Easy."), (False, None)])
def test_thinking_is_a_field_unless_it_is_turned_off(think, thought):
    parsed = chat(facts=THINKING, stream=False, think=think)
    values = parsed.requests[0].prompt.template_values
    expected = {} if think is None else {"enable_thinking": bool(think)}
    assert values == (expected | {"reasoning_effort": "low"} if think == "low" else expected)
    message = answer_of(parsed, "<think>\nEasy.\n</think>\n\nParis").message
    assert (message.thinking, message.content) == (thought, "Paris")


@given(st.lists(st.integers(0, 120), max_size=9))
def test_a_stream_adds_up_to_the_whole_answer_wherever_tokens_end(places):
    text = f"<think>\nEasy.\n</think>\n\n{CALL}"
    pieces = [piece.decode() for piece in cut(text.encode(), places)]
    lines = lines_of(chat(facts=THINKING, tools=[WEATHER]), *pieces)
    answer = answer_of(chat(facts=THINKING, tools=[WEATHER], stream=False), text)
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line.message.thinking or "" for line in lines) == answer.message.thinking
    assert "".join(line.message.content for line in lines) == answer.message.content
    calls = [call for line in lines for call in line.message.tool_calls or ()]
    assert calls == answer.message.tool_calls
    assert lines[-1].eval_count == answer.eval_count


def test_a_stream_that_fails_ends_with_a_line_that_has_the_error():
    renderer = chat().reply.stream()
    renderer.chunk(Chunk(text="one", tokens=(token("one"),)))
    assert renderer.error(EngineFailed("It broke.")) == (b'{"error":"It broke."}\n',)
    assert renderer.end() == ()


def test_a_full_queue_says_when_to_retry():
    reply = render_error(Busy("Full.", retry_after_s=2))
    assert (reply.status, reply.headers) == (429, (("retry-after", "2"),))
