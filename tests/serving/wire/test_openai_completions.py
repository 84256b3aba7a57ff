import json
from dataclasses import replace

import pytest

from headrace.core.errors import ContextTooLong, HeadraceError, PromptTooLong
from headrace.core.generation import Chunk, FinishReason, Grammar, RepetitionDetection, Token
from headrace.core.sampling_defaults import SamplingDefaults
from headrace.serving.wire.openai.completions import OpenAICompletions
from tests.serving.wire.samples import (
    CONTEXT,
    EOS,
    FINGERPRINT,
    answer,
    body,
    finish,
    parse,
    sse_objects,
    streamed,
    token,
    whole,
)

DIALECT = OpenAICompletions()


def sampling(**fields):
    return parse(DIALECT, prompt="hi", **fields).requests[0].sampling


def refusal(**fields):
    with pytest.raises(HeadraceError) as caught:
        parse(DIALECT, **{"prompt": "hi", **fields})
    reply = DIALECT.render_error(caught.value)
    return reply.status, json.loads(reply.body)["error"]


def test_golden_answer():
    assert whole(parse(DIALECT, prompt="hi", model="smol"), answer(" a", " b")) == (
        b'{"id":"cmpl-r1","object":"text_completion","created":7,"model":"smol",'
        + FINGERPRINT
        + b'"choices":[{"index":0,"text":" a b","logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}'
    )


def test_golden_stream():
    parsed = parse(DIALECT, prompt="hi", stream=True, stream_options={"include_usage": True})
    assert parsed.reply.content_type == "text/event-stream"
    head = b'data: {"id":"cmpl-r1","object":"text_completion","created":7,"model":"smol",'
    head += FINGERPRINT + b'"choices":['
    assert streamed(parsed, answer(" a", reason=FinishReason.LENGTH)) == [
        head + b'{"index":0,"text":" a","logprobs":null,"finish_reason":"length"}],"usage":null}\n\n',
        head + b'],"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_a_choice_that_repeated_itself_says_so_beside_a_finish_reason_that_clients_know():
    rule = {"max_pattern_size": 8, "min_count": 3}
    parsed = parse(DIALECT, prompt="hi", repetition_detection=rule)
    assert parsed.requests[0].sampling.repetition_detection == RepetitionDetection(
        max_pattern_size=8, min_pattern_size=1, min_count=3
    )
    repeated = answer(" a", " a", reason=FinishReason.REPETITION)
    expected = ("stop", "repetition_detected")
    (choice,) = json.loads(whole(parsed, repeated))["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == expected
    events = sse_objects(streamed(parse(DIALECT, prompt="hi", stream=True), repeated))
    assert "stop_reason" not in events[0]["choices"][0]
    assert (events[-1]["choices"][0]["finish_reason"], events[-1]["choices"][0]["stop_reason"]) == expected


@pytest.mark.parametrize("rule", [None, {"max_pattern_size": 0}, {}])
def test_repetition_detection_is_off_without_a_pattern_size(rule):
    assert sampling(repetition_detection=rule).repetition_detection is None


def test_a_repetition_detection_with_another_field_is_refused():
    status, error = refusal(repetition_detection={"max_pattern_size": 8, "count": 3})
    assert status == 400
    assert "count" in error["message"]


def test_defaults_are_openai_s():
    params = sampling()
    assert (params.max_new_tokens, params.temperature, params.top_p, params.logprobs) == (16, 1.0, 1.0, None)


def test_the_checkpoint_s_sampling_applies_where_a_request_says_nothing():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05)
    context = replace(CONTEXT, model=replace(CONTEXT.model, sampling_defaults=defaults))
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def values(**fields):
        params = DIALECT.parse(body(prompt="hi", **fields), context).requests[0].sampling
        return tuple(getattr(params, name) for name in names)

    assert values() == (0.6, 0.95, 20, 0.1, 1.05)
    assert values(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1) == (0, 1, 0, 0, 1)


def test_every_parameter_arrives():
    params = sampling(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        n=2,
        best_of=3,
        stop="x",
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"5": -100, "7": 3.5},
        allowed_token_ids=[5, 6],
        bad_words=["cat"],
        seed=-1,
        logprobs=2,
        top_k=-1,
        min_p=0.05,
        repetition_penalty=1.1,
        min_tokens=1,
        ignore_eos=True,
        stop_token_ids=[4],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        guided_regex="a+",
    )
    assert (params.max_new_tokens, params.temperature, params.top_p, params.n, params.best_of) == (9, 0.5, 0.9, 2, 3)
    assert (params.allowed_token_ids, params.bad_words) == ((5, 6), ("cat",))
    assert (params.stop, params.logit_bias, params.logprobs) == (("x",), {5: -100.0, 7: 3.5}, 2)
    assert (params.presence_penalty, params.frequency_penalty, params.seed) == (0.1, 0.2, 2**64 - 1)
    assert (params.top_k, params.min_p, params.repetition_penalty, params.min_new_tokens) == (0, 0.05, 1.1, 1)
    assert (params.ignore_eos, params.stop_token_ids, params.include_stop) == (True, (4,), True)
    assert (params.skip_special_tokens, params.grammar) == (False, Grammar("regex", "a+"))


def test_temperature_or_top_p_of_zero_is_greedy():
    assert sampling(temperature=0).temperature == 0.0
    assert (sampling(top_p=0).temperature, sampling(top_p=0).top_p) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_all_forms_of_prompts_are_understood(prompt, prompts):
    assert [request.prompt for request in parse(DIALECT, prompt=prompt).requests] == prompts


def test_choices_of_several_prompts_are_numbered_consecutively():
    parsed = parse(DIALECT, prompt=["a", "b"], n=2)
    streams = [[*answer(f"{name}0", index=0), *answer(f"{name}1", index=1)] for name in "ab"]
    choices = json.loads(whole(parsed, *streams))["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    parsed = parse(DIALECT, prompt=["a", "b"], n=2, stream=True)
    renderer = parsed.reply.stream()
    parts = [part for number in (1, 0) for chunk in streams[number] for part in renderer.chunk(chunk, request=number)]
    texts = {
        item["choices"][0]["index"]: item["choices"][0]["text"]
        for item in sse_objects(parts)
        if item["choices"][0]["text"]
    }
    assert texts == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}


def test_logprobs_leave_out_the_end_token_and_count_characters():
    parsed = parse(DIALECT, prompt="hi", logprobs=1)
    chunks = [
        Chunk(text="é", tokens=(Token(1, "", -1.0, raw=b"\xc3"), Token(2, "é", -2.0, raw=b"\xa9"))),
        Chunk(text="b", tokens=(token("b", 3, num_top=1), EOS), finish=finish()),
    ]
    (choice,) = json.loads(whole(parsed, chunks))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-1.0, -2.0, -0.5],
        "top_logprobs": [{"bytes:\\xc3": -1.0}, {"bytes:\\xa9": -2.0}, {"b": -0.5}],
        "text_offset": [0, 0, 1],
    }


def test_echo_repeats_the_prompt_in_every_choice():
    parsed = parse(DIALECT, prompt="hi", echo=True, n=2)
    assert parsed.requests[0].sampling.prompt_logprobs is None
    written = json.loads(whole(parsed, [*answer("a", index=0), *answer("b", index=1)]))
    assert [choice["text"] for choice in written["choices"]] == ["hia", "hib"]


def test_echo_with_logprobs_gives_those_of_the_prompt_too():
    prompt = (Token(1, "<s>", None, special=True, raw=b"<s>"), token("hi", 6, -3.0))
    chunks = [Chunk(index=1, text="b", tokens=(token("b"),), finish=finish(FinishReason.LENGTH))]
    chunks += [Chunk(index=0, prompt=prompt), *answer("a", index=0)]
    whole_answer = parse(DIALECT, prompt="hi", echo=True, logprobs=0, n=2)
    assert whole_answer.requests[0].sampling.prompt_logprobs == 0
    first, second = json.loads(whole(whole_answer, chunks))["choices"]
    assert first["logprobs"]["tokens"] == ["<s>", "hi", "a"]
    assert first["logprobs"]["token_logprobs"] == [None, -3.0, -0.5]
    assert first["logprobs"]["text_offset"] == [0, 0, 2]
    assert second["text"] == "hib"
    parsed = parse(DIALECT, prompt="hi", echo=True, logprobs=0, n=2, stream=True)
    texts = {0: "", 1: ""}
    for item in sse_objects(streamed(parsed, chunks)):
        texts[item["choices"][0]["index"]] += item["choices"][0]["text"]
    assert texts == {0: "hia", 1: "hib"}


def test_echo_of_token_ids_needs_their_texts():
    parsed = parse(DIALECT, prompt=[1, 6], echo=True)
    prompt = (Token(1, "<s>", None, special=True), token("hi", 6, -3.0))
    assert parsed.requests[0].sampling.prompt_logprobs == 0
    assert json.loads(whole(parsed, [Chunk(prompt=prompt), *answer("a")]))["choices"][0]["text"] == "hia"


def test_the_openai_client_s_types_fit():
    from openai.types import Completion

    parsed = parse(DIALECT, prompt="hi", logprobs=1, stream=True, stream_options={"include_usage": True})
    objects = sse_objects(streamed(parsed, answer("a", "b", num_top=1, reason=FinishReason.LENGTH)))
    for item in objects[1:]:  # the first has no finish_reason yet, which OpenAI sends as null against its own type
        Completion.model_validate(item, strict=True)
    Completion.model_validate_json(whole(parse(DIALECT, prompt="hi", logprobs=1), answer("a", num_top=1)), strict=True)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"prompt": ""}, "prompt", "empty string"),
        ({"prompt": []}, "prompt", "empty array"),
        ({"prompt": ["a", 1]}, "prompt", "cannot be mixed"),
        ({"prompt": [[1], []]}, "prompt", "empty array"),
        ({"prompt": [49152]}, "prompt", "Expected a value <= 49151"),
        ({"prompt": ["a"] * 129}, "prompt", "129 answers; expected at most 128"),
        ({"temperature": 2.5}, "temperature", "Expected a value <= 2, but got 2.5"),
        ({"temperature": -1}, "temperature", "Expected a value >= 0"),
        ({"n": 4}, "n", "Expected a value <= 3, but got 4"),
        ({"best_of": 4}, "best_of", "Expected a value <= 3, but got 4"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "Expected a value <= 8, but got 9"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 stop sequences, but got 5"),
        ({"n": 0}, "n", "integer below minimum value. Expected a value >= 1, but got 0"),
        ({"max_tokens": -1}, "max_tokens", "Expected a value >= 0"),
        ({"logprobs": 6}, "logprobs", "Expected a value <= 5, but got 6"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "got 'x'"),
        (
            {"logit_bias": {str(number): 1 for number in range(4097)}},
            "logit_bias",
            "at most 4096 token ids, but got 4097",
        ),
        ({"logit_bias": {"99999999": 1}}, "logit_bias", "got '99999999'"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "expected 1 to 49152 token ids, but got 0"),
        ({"allowed_token_ids": [49152]}, "allowed_token_ids", "Expected a value <= 49151"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "Expected a value <= 100"),
        ({"stop": [""]}, "stop", "must not be empty"),
        ({"repetition_penalty": 0}, "repetition_penalty", "Expected a value > 0"),
        ({"best_of": 2, "stream": True}, "best_of", "stream"),
        ({"best_of": 1, "n": 2}, "best_of", "Expected a value >= 2"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed when 'stream' is enabled"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "Send only one of them"),
        ({"stream": "yes"}, "stream", "expected `bool | null`, got `str`"),
    ],
)
def test_bad_values_are_refused_in_openai_s_form(fields, param, text):
    status, error = refusal(**fields)
    assert status == 400
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
    assert text in error["message"]


def test_unknown_fields_are_accepted_and_named():
    assert parse(DIALECT, prompt="hi", use_beam_search=False, foo=1, prompt_cache_key="k").ignored == (
        "foo",
        "prompt_cache_key",
    )


def test_a_missing_prompt_is_an_error():
    with pytest.raises(HeadraceError, match="`prompt` is missing"):
        parse(DIALECT, model="smol")


def test_the_error_for_a_too_long_prompt_names_the_prompt():
    reply = DIALECT.render_error(PromptTooLong(prompt_tokens=9, max_prompt_tokens=5))
    assert b"However, your prompt resulted in 9 tokens. Please reduce the length of the prompt." in reply.body
    reply = DIALECT.render_error(ContextTooLong(prompt_tokens=9, max_new_tokens=3, max_total_tokens=10))
    assert b"(9 in the prompt, 3 in the completion)" in reply.body
