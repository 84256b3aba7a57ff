import math

import pytest

from headrace.core.errors import EngineFailed, InvalidRequest, RequestAborted
from headrace.core.generation import Chunk, FinishReason, GenerationRequest
from headrace.serving.wire.answers import Collector, Usage, finite_logprob, usage_of
from tests.serving.wire.samples import answer, finish, token

REQUESTS = [GenerationRequest(request_id="a", prompt="x"), GenerationRequest(request_id="b", prompt="y")]


def collected(*streams):
    collector = Collector(REQUESTS[: len(streams)])
    for number, chunks in enumerate(streams):
        for chunk in chunks:
            collector.add(chunk, request=number)
    return collector.answers()


def test_chunks_add_up_to_choices_in_order_of_their_index():
    (result,) = collected([*answer("b", index=1), *answer("a", "a", index=0)])
    assert [(choice.index, choice.text) for choice in result.choices] == [(0, "aa"), (1, "b")]
    assert [item.text for item in result.choices[0].tokens] == ["a", "a", "</s>"]


def test_requests_are_kept_apart():
    first, second = collected(answer("one"), answer("two"))
    assert (first.choices[0].text, second.choices[0].text) == ("one", "two")


def test_the_prompt_is_kept():
    prompt = (token("p"),)
    (result,) = collected([Chunk(prompt=prompt), *answer("a")])
    assert result.prompt == prompt


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([], EngineFailed),
        ([Chunk(text="a")], EngineFailed),
        ([Chunk(text="a", finish=finish(FinishReason.ERROR, message="boom"))], EngineFailed),
        ([Chunk(text="a", finish=finish(FinishReason.ABORT))], RequestAborted),
    ],
)
def test_an_answer_that_failed_or_never_ended_is_an_error(chunks, error):
    with pytest.raises(error):
        collected(chunks)


def test_the_error_contains_the_reason_of_the_failure():
    with pytest.raises(EngineFailed, match="boom"):
        collected([Chunk(finish=finish(FinishReason.ERROR, message="boom"))])


def test_a_failure_caused_by_a_field_is_an_invalid_request():
    failed = finish(FinishReason.ERROR, message="too large", param="structured_outputs.grammar")
    with pytest.raises(InvalidRequest, match="too large") as caught:
        collected([Chunk(finish=failed)])
    assert caught.value.param == "structured_outputs.grammar"


def test_the_choice_with_the_best_mean_logprob_comes_first():
    def choice(index, logprob):
        return Chunk(index=index, tokens=(token("a", logprob=logprob),), finish=finish())

    (result,) = collected([choice(0, -2.0), choice(1, -1.0), choice(2, -3.0)])
    assert [item.index for item in result.best_first()] == [1, 0, 2]


def test_usage_counts_each_prompt_once_and_each_choice():
    results = collected([*answer("a", "b", index=0), *answer("c", index=1)], answer("d"))
    assert usage_of(results) == Usage(prompt_tokens=8, output_tokens=3 + 2 + 2, cached_tokens=0)


def test_logprobs_that_json_cannot_represent_become_a_number():
    assert finite_logprob(-math.inf) == -9999.0
    assert finite_logprob(math.nan) == -9999.0
    assert finite_logprob(-0.5) == -0.5
    assert finite_logprob(None) is None
