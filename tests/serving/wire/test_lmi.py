import json

import pytest

from headrace.core.errors import (
    Busy,
    CodeFailed,
    CodeUnavailable,
    EngineFailed,
    HeadraceError,
    InsufficientMemory,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from headrace.core.generation import Chunk, FinishReason, Token
from headrace.serving.wire.lmi.dialect import Lmi
from tests.serving.wire.samples import CONTEXT, answer, finish, line_objects, parse, sse_objects, streamed, token, whole

VERSIONS = ("0.25", "0.26", "0.27", "17")
FAILED = Chunk(finish=finish(FinishReason.ERROR, message="boom"))


def lmi(version, **settings):
    return Lmi(version=version, **settings)


def sampling(version="17", **parameters):
    return parse(lmi(version), inputs="hi", parameters=parameters).requests[0].sampling


def test_golden_fragments_of_0_25():
    parsed = parse(lmi("0.25"), inputs="hi", parameters={"max_new_tokens": 512, "details": True})
    assert parsed.reply.content_type == "application/json"
    assert streamed(parsed, answer(" a", '"\n', "é")) == [
        b'{"generated_text": "',
        b" a",
        b'\\"\\n',
        b"\xc3\xa9",
        b'"}',
    ]


def test_golden_fragments_of_0_26_end_with_details():
    parsed = parse(lmi("0.26", formatter="json"), inputs="hi", parameters={"details": True})
    assert streamed(parsed, answer(" a")) == [
        b'{"generated_text": "',
        b" a",
        (
            b'", "details": {"finish_reason": "eos_token", "tokens": [{"id": 10, "text": " a", "log_prob": -0.5}, '
            b'{"id": 2, "log_prob": -0.125, "special_token": true}]}}'
        ),
    ]


def test_golden_lines_of_0_25():
    parsed = parse(lmi("0.25", formatter="jsonlines"), inputs="hi")
    assert parsed.reply.content_type == "application/jsonlines"
    assert streamed(parsed, answer(" a", " b", reason=FinishReason.LENGTH)) == [
        b'{"outputs": [" a"]}\n',
        b'{"outputs": [" b"]}\n',
    ]


def test_golden_lines_of_0_26_with_details():
    parsed = parse(lmi("0.26"), inputs="hi", parameters={"details": True})
    assert streamed(parsed, answer(" a", reason=FinishReason.EOS)) == [
        b'{"token": {"id": 10, "text": " a", "log_prob": -0.5}}\n',
        (
            b'{"token": {"id": 2, "log_prob": -0.125, "special_token": true}, "generated_text": " a", '
            b'"details": {"finish_reason": "eos_token"}}\n'
        ),
    ]


def test_0_26_omits_empty_values_except_those_that_clients_always_read():
    parsed = parse(lmi("0.26"), inputs="hi", parameters={"details": True})
    chunks = [
        Chunk(tokens=(Token(0, "", 0.0),)),
        Chunk(text="x", tokens=(token("x"),), finish=finish(FinishReason.LENGTH)),
    ]
    first, second, last = line_objects(streamed(parsed, chunks))
    assert first == {"token": {"text": "", "log_prob": 0.0}}
    assert second["token"]["text"] == "x"
    assert last == {"token": {}, "generated_text": "x", "details": {"finish_reason": "length"}}


def test_golden_lines_of_0_27():
    parsed = parse(lmi("0.27"), inputs="hi", parameters={"details": True}, stream=True)
    assert streamed(parsed, answer(" a")) == [
        b'{"token": {"id": 10, "text": " a", "log_prob": -0.5}}\n',
        (
            b'{"token": {"id": 2, "text": "", "log_prob": -0.125, "special_token": true}, "generated_text": " a", '
            b'"details": {"finish_reason": "eos_token", "generated_tokens": 2, "inputs": "hi"}}\n'
        ),
    ]


def test_golden_lines_of_17():
    parsed = parse(lmi("17"), inputs="hi", parameters={"details": True}, stream=True)
    assert streamed(parsed, answer(" a", " b", reason=FinishReason.LENGTH, seed=4)) == [
        b'{"index": 0, "token": {"id": 10, "text": " a", "logprob": -0.5}, "generated_text": null, "details": null}\n',
        (
            b'{"index": 0, "token": {"id": 11, "text": " b", "logprob": -0.5}, "generated_text": " a b", '
            b'"details": {"finish_reason": "length", "seed": 4, "generated_tokens": 2, "input_length": 4}}\n'
        ),
    ]


def test_golden_answers():
    def written(version, **parameters):
        return whole(parse(lmi(version), inputs="hi", parameters=parameters), answer(" a"))

    assert written("0.27") == b'{"generated_text": " a"}'
    assert written("0.27", return_full_text=True) == b'{"generated_text": "hi a"}'
    assert written("17") == b'{"generated_text": " a"}\n'
    assert written("0.27", details=True) == (
        b'{"generated_text": " a", "details": {"finish_reason": "eos_token", "generated_tokens": 2, "inputs": "hi", '
        b'"tokens": [{"id": 10, "text": " a", "log_prob": -0.5}, '
        b'{"id": 2, "text": "", "log_prob": -0.125, "special_token": true}]}}'
    )
    assert written("17", details=True) == (
        b'{"generated_text": " a", "details": {"finish_reason": "stop", "generated_tokens": 2, "seed": null, '
        b'"prefill": [], "tokens": [{"id": 10, "text": " a", "logprob": -0.5}, '
        b'{"id": 2, "text": "", "logprob": -0.125}]}}\n'
    )


def test_prompt_tokens_and_alternatives_are_in_the_details():
    parameters = {"details": True, "decoder_input_details": True, "top_n_tokens": 1}
    parsed = parse(lmi("0.27"), inputs="hi", parameters=parameters)
    chunks = [Chunk(prompt=(token("hi", 7, None),)), *answer(" a", num_top=1)]
    details = json.loads(whole(parsed, chunks))["details"]
    assert details["prefill"] == [{"id": 7, "text": "hi", "log_prob": None}]
    assert details["top_tokens"][0] == [{"id": 10, "text": " a", "log_prob": -0.5}]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_of_inputs_is_a_list_of_answers(version):
    parsed = parse(lmi(version), inputs=["one", "two"], stream=True)
    assert not parsed.stream
    assert [(request.request_id, request.prompt) for request in parsed.requests] == [("r1-0", "one"), ("r1-1", "two")]
    written = whole(parsed, answer("1"), answer("2"))
    assert json.loads(written) == [{"generated_text": "1"}, {"generated_text": "2"}]


def test_tgi_compat_uses_tgis_format():
    dialect = lmi("0.27", tgi_compat=True)
    parsed = parse(dialect, inputs="hi")
    assert parsed.requests[0].sampling.logprobs == 0
    (written,) = json.loads(whole(parsed, answer(" a")))
    assert written["details"]["tokens"][-1] == {"id": 2, "text": "", "logprob": -0.125, "special": True}
    parsed = parse(dialect, inputs="hi", stream=True)
    assert parsed.reply.content_type == "text/event-stream"
    assert streamed(parsed, answer(" a"))[0] == b'data: {"token": {"id": 10, "text": " a", "logprob": -0.5}}\n\n'


def test_a_formatter_streams_regardless_of_the_body():
    parsed = parse(lmi("0.27", formatter="sse"), inputs="hi")
    assert parsed.stream
    assert [item["token"]["text"] for item in sse_objects(streamed(parsed, answer(" a")))] == [" a", ""]
    assert not parse(lmi("0.27", formatter="json"), inputs="hi", stream=True).stream


@pytest.mark.parametrize(
    ("version", "parameters", "temperature"),
    [
        ("0.27", {"temperature": 0.7}, 0.0),
        ("0.27", {"do_sample": True}, 1.0),
        ("0.27", {"do_sample": True, "temperature": 0.7}, 0.7),
        ("17", {}, 0.0),
        ("17", {"temperature": 0.7}, 0.7),
        ("17", {"do_sample": False, "temperature": 0.7}, 0.0),
        ("17", {"do_sample": True}, 1.0),
    ],
)
def test_up_to_0_31_sampling_needs_do_sample(version, parameters, temperature):
    assert sampling(version, **parameters).temperature == temperature


def test_every_parameter_arrives():
    params = sampling(
        max_new_tokens=7,
        min_length=2,
        top_k=-1,
        top_p=1.0,
        min_p=0.1,
        typical_p=0.5,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        random_seed=5,
        stop_sequences=["x"],
        stop=["y"],
        stop_token_ids=[3],
        ignore_eos_token=True,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        details=True,
        top_n_tokens=2,
    )
    assert (params.max_new_tokens, params.min_new_tokens, params.top_k, params.top_p) == (7, 2, 0, 1.0)
    assert (params.min_p, params.typical_p, params.repetition_penalty) == (0.1, 0.5, 1.1)
    assert (params.presence_penalty, params.frequency_penalty, params.seed) == (0.2, 0.3, 5)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("x", "y"), (3,), True)
    assert (params.skip_special_tokens, params.include_stop, params.logprobs) == (False, True, 2)


def test_defaults_are_djl_s():
    params = sampling("0.26")
    assert (params.max_new_tokens, params.top_k, params.top_p, params.temperature) == (30, 0, 1.0, 0.0)


def test_several_candidates_are_returned_in_one_response_with_the_best_first():
    parsed = parse(lmi("0.27"), inputs="hi", parameters={"n": 2, "do_sample": True}, stream=True)
    assert not parsed.stream
    worse = [Chunk(index=0, text="w", tokens=(token("w", logprob=-3.0),), finish=finish())]
    better = [Chunk(index=1, text="b", tokens=(token("b", logprob=-1.0),), finish=finish())]
    written = json.loads(whole(parsed, [*worse, *better]))
    assert written["generated_text"] == "b"
    assert written["details"]["best_of_sequences"][0]["generated_text"] == "w"


def test_fields_without_effect_are_named():
    parsed = parse(lmi("17"), inputs="hi", parameters={"length_penalty": 1.2}, cached_prompt="x")
    assert parsed.ignored == ("cached_prompt", "parameters.length_penalty")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": ""}, "does not contain any content"),
        ({"inputs": []}, "does not contain any content"),
        ({"inputs": ["a", ""]}, "does not contain any content"),
        ({"inputs": 3}, "`inputs`: expected `str | array`, got `int`."),
        ({}, "`inputs` is missing."),
        ({"inputs": "a", "parameters": []}, "`parameters`: expected `object | null`, got `array`."),
        ({"inputs": "a", "parameters": {"top_p": 0}}, "`top_p` must be > 0. Given: 0"),
        ({"inputs": "a", "parameters": {"top_p": 1.5}}, "`top_p` must be >= 0 and <= 1. Given: 1.5"),
        ({"inputs": "a", "parameters": {"temperature": -1}}, "`temperature` must be >= 0. Given: -1.0"),
        ({"inputs": "a", "parameters": {"max_new_tokens": 0}}, "`max_new_tokens` must be >= 1. Given: 0"),
        ({"inputs": "a", "parameters": {"num_beams": 2}}, "beam search is not available"),
        ({"inputs": "a", "parameters": {"stop_token_ids": [-1]}}, "`stop_token_ids` must be >= 0"),
        ({"inputs": ["a"] * 129}, "'inputs' has 129 prompts; expected at most 128"),
    ],
)
def test_bad_values_are_424_with_a_reason(fields, text):
    dialect = lmi("17")
    with pytest.raises(HeadraceError) as caught:
        parse(dialect, **fields)
    reply = dialect.render_error(caught.value)
    assert reply.status == 424
    written = json.loads(reply.body)
    assert written.keys() == {"error", "code"}
    assert written["code"] == 424
    assert text in written["error"]


@pytest.mark.parametrize(
    ("inputs", "adapters", "expected"),
    [
        ("hi", "a1", ["a1"]),
        ("hi", None, [None]),
        (["hi", "ho"], "a1", ["a1", "a1"]),
        (["hi", "ho"], ["a1", ""], ["a1", None]),
    ],
)
def test_adapters_are_named_for_all_inputs_or_for_each(inputs, adapters, expected):
    parsed = parse(lmi("17"), inputs=inputs, adapters=adapters)
    assert [request.adapter for request in parsed.requests] == expected


def test_a_list_of_adapters_has_a_name_for_each_input():
    with pytest.raises(InvalidRequest, match="'adapters' has 1 names; expected one for each of 2 inputs"):
        parse(lmi("17"), inputs=["hi", "ho"], adapters=["a1"])


def test_code_that_fails_around_the_engine_has_the_handlers_format():
    reply = lmi("17").render_error(CodeFailed("Custom formatter failed: x"))
    assert (reply.status, json.loads(reply.body)) == (424, {"error": "Custom formatter failed: x", "code": 424})


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Busy("full", retry_after_s=1), 429, "WlmCapacityException"),
        (Unavailable("starting"), 503, "ServiceUnavailableException"),
        (CodeUnavailable("lost"), 503, "WlmException"),
        (NotFound("no"), 404, "ResourceNotFoundException"),
        (InsufficientMemory("no"), 507, "WlmOutOfMemoryException"),
    ],
)
def test_errors_of_the_front_end_have_djls_format(error, status, kind):
    reply = lmi("0.27").render_error(error)
    assert (reply.status, json.loads(reply.body)) == (
        status,
        {"code": status, "type": kind, "message": error.message},
    )


def test_a_failed_engine_is_a_failed_handler():
    reply = lmi("0.27").render_error(EngineFailed("boom"))
    assert json.loads(reply.body) == {"code": 424, "message": "invoke handler failure", "error": "boom"}


def test_a_failure_in_the_stream_is_a_line_in_each_version():
    def last(version, **settings):
        parsed = parse(lmi(version, **settings), inputs="hi", stream=True)
        return streamed(parsed, [Chunk(text="a", tokens=(token("a"),)), FAILED])[-1]

    assert last("0.25") == b'", "error": "boom", "code": 424}'
    assert last("0.25", formatter="jsonlines") == b'{"outputs": [""], "error": "boom", "code": 424}\n'
    assert json.loads(last("0.27")) == {
        "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True, "error_msg": "boom"},
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }
    assert json.loads(last("17"))["error"]["message"] == "boom"


def test_a_failure_before_any_text_is_still_one_json_object():
    parsed = parse(lmi("0.25"), inputs="hi")
    assert json.loads(b"".join(streamed(parsed, [FAILED]))) == {"generated_text": "", "error": "boom", "code": 424}


def test_prompt_tokens_cannot_be_streamed():
    with pytest.raises(HeadraceError, match="decoder_input_details"):
        parse(lmi("17"), inputs="hi", parameters={"decoder_input_details": True}, stream=True)


def test_a_body_that_is_not_json_is_424():
    dialect = lmi("17")
    with pytest.raises(HeadraceError) as caught:
        dialect.parse(b"Today the weather", CONTEXT)
    assert dialect.render_error(caught.value).status == 424
