"""`/infill` of llama-server and `suffix` of other dialects."""

import json
from dataclasses import replace

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, FinishReason, InfillPrompt
from headrace.serving.wire.dialect import Timings
from headrace.serving.wire.infill import Infill
from headrace.serving.wire.ollama.dialect import OllamaGenerate
from headrace.serving.wire.ollama.models import render_show
from headrace.serving.wire.openai.completions import OpenAICompletions
from tests.serving.wire.samples import CONTEXT, MODEL, answer, body, finish, parse, sse_objects, streamed, token, whole

TIMED = replace(CONTEXT, timings=lambda: Timings(total_s=3.0, validation_s=0.5, first_chunk_s=1.0))
GAP = {"input_prefix": "def f():\n", "input_suffix": "\nf()"}


def infill(**fields):
    return Infill().parse(body(**GAP, **fields), TIMED)


def test_a_body_of_llama_vim_becomes_a_request():
    parsed = infill(
        input_extra=[{"filename": "a.py", "text": "A = 1"}, {"text": "B"}],
        prompt="    ret",
        n_predict=128,
        top_k=40,
        top_p=0.9,
        samplers=["top_k", "top_p", "infill"],
        cache_prompt=True,
        t_max_predict_ms=1000,
        stream=False,
    )
    (request,) = parsed.requests
    assert request.prompt == InfillPrompt(
        prefix="def f():\n    ret", suffix="\nf()", files=(("a.py", "A = 1"), ("tmp", "B"))
    )
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.top_k, sampling.top_p, sampling.temperature) == (128, 40, 0.9, 0.8)
    assert {"samplers", "cache_prompt", "t_max_predict_ms"} <= set(parsed.ignored)


@pytest.mark.parametrize(("n_predict", "expected"), [(None, None), (-1, None), (0, 0), (7, 7)])
def test_a_negative_number_of_tokens_is_no_limit(n_predict, expected):
    assert infill(n_predict=n_predict).requests[0].sampling.max_new_tokens == expected


def test_the_answer_has_llama_server_s_fields_or_those_that_were_asked_for():
    found = json.loads(whole(infill(), answer(" a\n", " b", reason=FinishReason.LENGTH)))
    assert (found["content"], found["stop"], found["stop_type"]) == (" a\n b", True, "limit")
    assert (found["tokens_predicted"], found["tokens_evaluated"], found["has_new_line"]) == (2, 4, True)
    assert (found["timings"]["prompt_n"], found["timings"]["predicted_ms"]) == (4, 2000.0)
    paths = ["content", "timings/predicted_n", "timings/none", "prompt"]
    assert json.loads(whole(infill(response_fields=paths), answer(" a"))) == {"content": " a", "timings/predicted_n": 2}


def test_a_stream_ends_with_the_counts():
    stopped = [Chunk(text=" a", tokens=(token(" a"),)), Chunk(finish=finish(FinishReason.STOP, stop="f()"))]
    first, last = sse_objects(streamed(infill(stream=True), stopped))
    assert first == {"index": 0, "content": " a", "tokens": [], "stop": False, "id_slot": 0}
    assert (last["content"], last["stop_type"], last["stopping_word"]) == ("", "word", "f()")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"n_indent": 4}, "'n_indent' is not supported"),
        ({"grammar": "root ::= x"}, "'grammar' is not supported"),
        ({"n_probs": 2}, "'n_probs' is not supported"),
        ({"top_p": 2}, "'top_p'"),
        ({"input_extra": [{"filename": "a"}]}, "text"),
        ({"input_suffix": None}, "input_suffix"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields, part):
    with pytest.raises(InvalidRequest) as caught:
        Infill().parse(body(**{**GAP, **fields}), TIMED)
    assert part in caught.value.message


def test_a_suffix_makes_a_completion_fill_the_gap():
    completions = OpenAICompletions()
    (first, second) = parse(completions, prompt=["a", "b"], suffix="z").requests
    assert (first.prompt, second.prompt) == (InfillPrompt(prefix="a", suffix="z"), InfillPrompt(prefix="b", suffix="z"))
    assert parse(completions, prompt="", suffix="z").requests[0].prompt == InfillPrompt(prefix="", suffix="z")
    assert parse(completions, prompt="a", suffix="").requests[0].prompt == "a"
    echoed = json.loads(whole(parse(completions, prompt="a", suffix="z", echo=True), answer(" b")))
    assert echoed["choices"][0]["text"] == "a b"


@pytest.mark.parametrize("fields", [{"prompt": [1, 2]}, {"truncate_prompt_tokens": 5}, {"echo": True, "logprobs": 1}])
def test_a_suffix_does_not_go_with_all_fields(fields):
    with pytest.raises(InvalidRequest, match="combined with"):
        parse(OpenAICompletions(), **{"prompt": "a", "suffix": "z", **fields})


def test_ollama_s_suffix_asks_for_a_gap_and_show_says_who_can_fill_it():
    def generate(**fields):
        return OllamaGenerate().parse(body(model="smol", suffix="z", **fields), CONTEXT).requests

    assert generate(prompt="a")[0].prompt == InfillPrompt(prefix="a", suffix="z")
    assert generate()[0].prompt == InfillPrompt(prefix="", suffix="z")
    with pytest.raises(InvalidRequest, match="'system' cannot be applied: 'suffix' asks for a text"):
        generate(prompt="a", system="Be brief.")
    for can_infill in (True, False):
        facts = replace(CONTEXT, model=replace(MODEL, can_infill=can_infill))
        assert ("insert" in json.loads(render_show(body(model="smol"), facts))["capabilities"]) is can_infill
