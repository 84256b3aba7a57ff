import json
from dataclasses import replace

import pytest

from headrace.core.errors import EngineFailed
from headrace.core.generation import Chunk, FinishReason, TextSpan, Token
from headrace.serving.wire.dialect import Timings
from headrace.serving.wire.tgi.dialect import Tgi
from headrace.serving.wire.tgi.reply import parse_tokenize, render_chat_tokenize, render_info, render_tokenize
from tests.serving.wire.samples import CONTEXT, MODEL, answer, finish, parse, sse_objects, streamed, token, whole

OLD, NEW = Tgi(version="1.0"), Tgi(version="3")


def test_golden_stream_of_1_0():
    parsed = parse(OLD, inputs="hi", parameters={"return_full_text": False}, stream=True)
    nothing = b',"generated_text":null,"details":null}\n\n'
    assert streamed(parsed, answer(" a", ' "b"')) == [
        b'data:{"token":{"id":10,"text":" a","logprob":-0.5,"special":false}' + nothing,
        b'data:{"token":{"id":11,"text":" \\"b\\"","logprob":-0.5,"special":false}' + nothing,
        (
            b'data:{"token":{"id":2,"text":"</s>","logprob":-0.125,"special":true}'
            b',"generated_text":" a \\"b\\"","details":null}\n\n'
        ),
    ]


def test_golden_stream_of_3_with_details():
    parsed = parse(NEW, inputs="hi", parameters={"return_full_text": False, "details": True}, stream=True)
    assert streamed(parsed, answer(" a", " é", reason=FinishReason.LENGTH, seed=9)) == [
        (
            b'data: {"index":1,"token":{"id":10,"text":" a","logprob":-0.5,"special":false},'
            b'"generated_text":null,"details":null}\n\n'
        ),
        (
            b'data: {"index":2,"token":{"id":11,"text":" \xc3\xa9","logprob":-0.5,"special":false},'
            b'"generated_text":" a \xc3\xa9",'
            b'"details":{"finish_reason":"length","generated_tokens":2,"seed":9,"input_length":4}}\n\n'
        ),
    ]


def test_golden_details_of_1_0_in_a_stream():
    parsed = parse(OLD, inputs="hi", parameters={"details": True}, stream=True)
    last = sse_objects(streamed(parsed, answer("a", reason=FinishReason.STOP)))[-1]
    assert last["details"] == {"finish_reason": "stop_sequence", "generated_tokens": 1, "seed": None}


def test_golden_answers_of_each_route():
    chunks = answer(" a", " b")
    assert whole(parse(NEW.on("generate"), inputs="hi"), chunks) == b'{"generated_text":" a b"}'
    assert whole(parse(NEW, inputs="hi"), chunks) == b'[{"generated_text":"hi a b"}]'
    compat = parse(NEW, inputs="hi", parameters={"return_full_text": False})
    assert whole(compat, chunks) == b'[{"generated_text":" a b"}]'


def test_golden_details():
    parsed = parse(NEW.on("generate"), inputs="hi", parameters={"details": True, "decoder_input_details": True})
    prompt = (Token(1, "<s>", None, special=True), token("hi", 7, -2.5))
    chunks = [Chunk(prompt=prompt), *answer(" a", seed=3)]
    assert json.loads(whole(parsed, chunks)) == {
        "generated_text": " a",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 2,
            "seed": 3,
            "prefill": [{"id": 1, "text": "<s>", "logprob": None}, {"id": 7, "text": "hi", "logprob": -2.5}],
            "tokens": [
                {"id": 10, "text": " a", "logprob": -0.5, "special": False},
                {"id": 2, "text": "</s>", "logprob": -0.125, "special": True},
            ],
        },
    }


def test_the_best_of_several_is_the_answer_and_the_others_are_listed():
    parsed = parse(NEW, inputs="hi", parameters={"best_of": 2, "do_sample": True, "details": True})
    worse = [Chunk(index=0, text="w", tokens=(token("w", logprob=-3.0),), finish=finish(output_tokens=1))]
    better = [Chunk(index=1, text="b", tokens=(token("b", logprob=-1.0),), finish=finish(output_tokens=1))]
    (written,) = json.loads(whole(parsed, [*worse, *better]))
    assert written["generated_text"] == "hib"
    (other,) = written["details"]["best_of_sequences"]
    assert other["generated_text"] == "hiw"
    assert other["tokens"][0]["logprob"] == -3.0


def test_top_tokens_only_when_asked_for():
    parsed = parse(NEW, inputs="hi", parameters={"top_n_tokens": 2, "details": True}, stream=True)
    first = sse_objects(streamed(parsed, answer("a", num_top=2)))[0]
    assert [top["text"] for top in first["top_tokens"]] == ["a", "a1"]
    plain = parse(NEW, inputs="hi", stream=True)
    assert all("top_tokens" not in item for item in sse_objects(streamed(plain, answer("a", num_top=2))))
    whole_answer = parse(NEW.on("generate"), inputs="hi", parameters={"top_n_tokens": 2, "details": True})
    details = json.loads(whole(whole_answer, answer("a", num_top=2)))["details"]
    assert [len(tops) for tops in details["top_tokens"]] == [2, 0]


def test_the_prompt_is_repeated_in_the_generated_text_only():
    parsed = parse(NEW, inputs="hi", parameters={"return_full_text": True}, stream=True)
    objects = sse_objects(streamed(parsed, answer(" a")))
    assert objects[0]["token"]["text"] == " a"
    assert objects[-1]["generated_text"] == "hi a"


def test_a_last_chunk_without_tokens_still_ends_the_stream():
    parsed = parse(NEW, inputs="hi", parameters={"return_full_text": False}, stream=True)
    chunks = [Chunk(text="a", tokens=(token("a"),)), Chunk(finish=finish(FinishReason.LENGTH))]
    last = sse_objects(streamed(parsed, chunks))[-1]
    assert last["generated_text"] == "a"
    assert last["token"]["text"] == ""


@pytest.mark.parametrize(("dialect", "start"), [(OLD, b"data:{"), (NEW, b"data: {")])
def test_a_failure_in_the_stream_is_an_event_and_the_last_one(dialect, start):
    parsed = parse(dialect, inputs="hi", stream=True)
    failed = Chunk(finish=finish(FinishReason.ERROR, message="boom"))
    parts = streamed(parsed, [Chunk(text="a", tokens=(token("a"),)), failed])
    assert parts[-1] == start + b'"error":"Request failed during generation: boom","error_type":"generation"}\n\n'
    assert len(parts) == 2


def test_an_error_ends_the_stream():
    renderer = parse(NEW, inputs="hi", stream=True).reply.stream()
    assert renderer.error(EngineFailed("boom"))
    assert list(renderer.error(EngineFailed("again"))) == []
    assert list(renderer.end()) == []


def test_headers_contain_the_timings_in_milliseconds():
    timings = Timings(
        total_s=1.5, validation_s=0.001, queue_s=0.002, inference_s=1.25, prompt_tokens=4, output_tokens=10
    )
    assert parse(NEW, inputs="hié").reply.headers(timings) == (
        ("x-compute-type", "cpu+optimized"),
        ("x-compute-characters", "3"),
        ("x-compute-time", "1500"),
        ("x-total-time", "1500"),
        ("x-validation-time", "1"),
        ("x-queue-time", "2"),
        ("x-inference-time", "1250"),
        ("x-time-per-token", "125"),
        ("x-prompt-tokens", "4"),
        ("x-generated-tokens", "10"),
    )
    assert "x-prompt-tokens" not in dict(parse(OLD, inputs="hi").reply.headers(timings))


def test_headers_of_a_stream_are_known_before_it():
    assert parse(NEW, inputs="hi", stream=True).reply.headers(None)[-1] == ("x-accel-buffering", "no")


def test_tokenize_returns_ids_and_offsets():
    spans = [TextSpan(id=3, text="hé", start=0, stop=2, piece="hé")]
    assert parse_tokenize(b'{"inputs": "h\xc3\xa9"}') == "hé"
    assert render_tokenize(spans) == b'[{"id":3,"text":"h\xc3\xa9","start":0,"stop":2}]'
    assert json.loads(render_chat_tokenize("hé", spans)) == {
        "tokenize_response": [{"id": 3, "text": "hé", "start": 0, "stop": 2}],
        "templated_text": "hé",
    }


def info_of(model, version):
    body = render_info(
        model,
        version=version,
        limits=CONTEXT.limits,
        kv_cache_tokens=8192,
        num_state_slots=12,
        max_concurrent_requests=128,
        server_version="0.1.0",
    )
    return json.loads(body)


@pytest.mark.parametrize("version", ["3", "1.0"])
def test_info_names_the_pipeline_of_encoder_decoders(version):
    assert info_of(MODEL, version)["model_pipeline_tag"] == "text-generation"
    info = info_of(replace(MODEL, is_encoder_decoder=True), version)
    assert info["model_pipeline_tag"] == "text2text-generation"


@pytest.mark.parametrize(
    ("version", "has", "has_not"),
    [
        ("3", {"max_input_tokens", "router", "max_client_batch_size"}, {"model_dtype", "max_input_length"}),
        ("1.0", {"max_input_length", "model_dtype", "waiting_served_ratio"}, {"router", "max_input_tokens"}),
    ],
)
def test_info_has_the_fields_of_its_version(version, has, has_not):
    info = info_of(MODEL, version)
    assert has <= info.keys()
    assert not has_not & info.keys()
    assert info["headrace"]["recommended_sampling"]["temperature"] == MODEL.recommended.temperature
    assert info["headrace"]["format_reason"] == MODEL.format_reason
    assert info["headrace"]["backend"] == MODEL.backend
    assert info["headrace"]["backend_reason"] == MODEL.backend_reason
    assert info["headrace"]["has_chat_template"] is True
    assert (info["headrace"]["kv_cache_tokens"], info["headrace"]["num_state_slots"]) == (8192, 12)
    assert (info["model_id"], info["max_total_tokens"], info["max_concurrent_requests"]) == ("smol", 2048, 128)
