"""Responses in the forms that DJL's custom output formatters get."""

import json

import pytest
from hypothesis import given

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, FinishReason, Token
from headrace.serving.wire.formatted import TokenSteps, for_responses, for_tokens
from headrace.serving.wire.lmi.dialect import Lmi
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.tgi.dialect import Tgi
from tests.serving.wire.samples import CONTEXT, EOS, answer, finish, parse, pieces, sse_objects, streamed, token, whole

LMI = Lmi(version="17")


def test_a_whole_answer_to_inputs_is_a_completion_of_vllm() -> None:
    parsed = for_responses(parse(LMI, inputs="hi"), CONTEXT)

    body = json.loads(whole(parsed, answer("a", "b", reason=FinishReason.LENGTH)))

    assert (body["object"], body["model"]) == ("text_completion", "smol")
    assert body["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"]["completion_tokens"] == 2


def test_details_and_the_whole_text_become_logprobs_and_an_echo() -> None:
    parsed = for_responses(parse(LMI, inputs="hi", parameters={"details": True, "return_full_text": True}), CONTEXT)

    body = json.loads(whole(parsed, [Chunk(prompt=(token("hi"),)), *answer("a", num_top=1)]))

    assert parsed.requests[0].sampling.logprobs == 1
    assert parsed.requests[0].sampling.prompt_logprobs == 1
    assert body["choices"][0]["text"] == "hia"
    assert body["choices"][0]["logprobs"]["tokens"][:2] == ["hi", "a"]


def test_a_stream_has_server_sent_events_with_logprobs_and_usage() -> None:
    parsed = for_responses(parse(LMI, inputs="hi", stream=True), CONTEXT)

    parts = streamed(parsed, answer("a", "b", reason=FinishReason.LENGTH, num_top=1))

    assert parts[-1] == b"data: [DONE]\n\n"
    first, last, usage = sse_objects(parts)
    assert first["choices"][0]["logprobs"]["token_logprobs"] == [-0.5]
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 2)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (OpenAIChat(framing="jsonlines"), {"messages": [{"role": "user", "content": "hi"}]}),
        (OpenAICompletions(framing="jsonlines"), {"prompt": "hi"}),
    ],
)
def test_streams_of_openais_bodies_have_events_in_every_framing(dialect, fields) -> None:
    parsed = for_responses(parse(dialect, stream=True, **fields), CONTEXT)

    assert all(part.startswith(b"data: ") for part in streamed(parsed, answer("a")))


def test_answers_of_other_dialects_keep_their_form() -> None:
    parsed = parse(Tgi(), inputs="hi")

    assert for_responses(parsed, CONTEXT) is parsed


@pytest.mark.parametrize("fields", [{"inputs": ["a", "b"]}, {"inputs": "a", "parameters": {"n": 2}}])
def test_a_formatter_of_tokens_takes_one_sequence(fields) -> None:
    with pytest.raises(InvalidRequest, match="takes one sequence; expected one input and n of 1"):
        for_tokens(parse(Lmi(version="0.27"), **fields))


def test_tokens_are_asked_for_with_their_logprobs() -> None:
    parsed = for_tokens(parse(Lmi(version="0.27"), inputs="a"))

    assert parsed.requests[0].sampling.logprobs == 0


@given(pieces)
def test_each_token_is_a_step_in_order_and_the_last_one_has_the_reason(texts) -> None:
    steps = TokenSteps(b'{"inputs":"hi"}', with_special=False)

    made = [json.loads(step) for chunk in answer(*texts) for step in steps.chunk(chunk)]

    assert [step["index"] for step in made] == list(range(len(texts) + 1))
    assert "".join(step["token"]["text"] for step in made) == "".join(texts)
    assert [step["finish_reason"] for step in made] == [None] * len(texts) + ["eos_token"]
    assert [step.get("input") for step in made] == [{"inputs": "hi"}] + [None] * len(texts)


@pytest.mark.parametrize(("with_special", "text"), [(False, ""), (True, "</s>")])
def test_a_special_token_has_its_text_if_the_request_asks_for_it(with_special, text) -> None:
    steps = TokenSteps(None, with_special=with_special)

    (step,) = [json.loads(step) for step in steps.chunk(Chunk(tokens=(EOS,), finish=finish()))]

    assert step["token"] == {"id": 2, "text": text, "log_prob": -0.125, "special_token": True}


def test_an_end_without_a_token_has_an_empty_one() -> None:
    (step,) = [json.loads(step) for step in TokenSteps(None, with_special=False).chunk(Chunk(finish=finish()))]

    assert (step["token"]["text"], step["finish_reason"]) == ("", "eos_token")


def test_a_body_that_is_no_object_is_the_input() -> None:
    (step,) = TokenSteps(b"a \xff prompt", with_special=False).chunk(Chunk(tokens=(Token(1, "a"),)))

    assert json.loads(step)["input"] == {"inputs": "a � prompt"}
