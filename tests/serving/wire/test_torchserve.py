"""TorchServe: text in with any content type, words out in pieces that the published parser reads without loss."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import (
    Busy,
    ContextTooLong,
    EngineFailed,
    Internal,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    Unavailable,
)
from headrace.core.generation import Chunk, FinishReason
from headrace.serving.wire.registry import get_dialect, select_dialect
from headrace.serving.wire.torchserve.dialect import TorchServe
from tests.serving.wire.readers import Lines, as_events, read_torchserve
from tests.serving.wire.samples import CONTEXT, answer, answers, finish, streamed, whole

PROMPT = "Today the weather is really nice and I am planning on"
DIALECT = TorchServe()


def sent(body, *texts, **facts):
    return streamed(DIALECT.parse(body, CONTEXT), answer(*texts, **facts))


def test_the_prompt_comes_first_and_then_word_by_word():
    assert sent(PROMPT.encode(), " going", " to", " the", " bea", "ch", ".") == [
        b"Today the weather is really nice and I am planning on ",
        b"going ",
        b"to ",
        b"the ",
        b"beach.\n",
    ]


def test_the_published_parser_loses_nothing_but_the_ends_of_lines():
    parts = sent(PROMPT.encode(), " going", " to", " the", " beach", ".")
    assert " ".join(read_torchserve(as_events(parts))) == f"{PROMPT} going to the beach."


english = st.lists(st.text("abc .,\n é", min_size=1, max_size=5), min_size=1, max_size=10)


@given(sample=answers(english))
def test_every_piece_is_whole_words_that_end_in_one_separator(sample):
    text, chunks = sample
    parts = streamed(DIALECT.parse(PROMPT.encode(), CONTEXT), chunks)
    assert all(part[-1:] in (b" ", b"\n") for part in parts)
    printed = list(read_torchserve(as_events(parts)))
    assert "".join(printed).replace(" ", "").replace("\n", "") == (PROMPT + text).replace(" ", "").replace("\n", "")


@given(sample=answers())
def test_the_stream_has_the_text_of_the_whole_answer_and_ends_in_a_newline(sample):
    text, chunks = sample
    parsed = DIALECT.parse(PROMPT.encode(), CONTEXT)
    parts = streamed(parsed, chunks)
    assert b"".join(parts) == whole(parsed, chunks)
    assert b"".join(parts).decode().removesuffix("\n") == (PROMPT + text).removesuffix("\n")
    for part in parts:
        part.decode()
    assert list(Lines(as_events(parts)))


@given(sample=answers(st.lists(st.text("今日天気", min_size=1, max_size=3), min_size=20, max_size=60)))
def test_text_without_spaces_does_not_wait_for_the_end(sample):
    text, chunks = sample
    parts = streamed(DIALECT.parse("今日".encode(), CONTEXT), chunks)
    assert max(len(part.decode()) for part in parts) <= 32 + max(len(chunk.text) for chunk in chunks)
    assert b"".join(parts).decode() == f"今日{text}\n"


def test_a_long_word_is_not_cut():
    parts = sent(b"x", *["abcdefgh"] * 20)
    assert parts == [f"x{'abcdefgh' * 20}\n".encode()]


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b"plain", "plain"),
        (b"  padded\n", "padded"),
        (b'"a JSON string\\n"', "a JSON string\n"),
        (b'"quoted" is how it begins', '"quoted" is how it begins'),
        (b"{not json", "{not json"),
        (b'{"text": "no inputs"}', '{"text": "no inputs"}'),
        (b"[1, 2]", "[1, 2]"),
        (b"null", "null"),
        ("żółć 中".encode(), "żółć 中"),
        (b'{"inputs": " kept as it is "}', " kept as it is "),
    ],
)
def test_any_other_body_is_the_prompt(body, prompt):
    parsed = DIALECT.parse(body, CONTEXT)
    (request,) = parsed.requests
    assert request.prompt == prompt
    assert parsed.stream
    assert (request.sampling.max_new_tokens, request.sampling.temperature) == (50, 0.0)


def test_the_settings_determine_the_length_of_an_answer():
    context = replace(CONTEXT, default_max_new_tokens=7)
    assert DIALECT.parse(b"hi", context).requests[0].sampling.max_new_tokens == 7
    (request,) = DIALECT.parse(b'{"inputs": "hi", "parameters": {"max_new_tokens": 3}}', context).requests
    assert request.sampling.max_new_tokens == 3


def test_an_object_may_have_parameters():
    fields = {
        "inputs": "hi",
        "parameters": {"do_sample": True, "temperature": 0.5, "top_k": 3, "seed": -1, "stop": ["x"]},
        "surprise": 1,
    }
    parsed = DIALECT.parse(json.dumps(fields).encode(), CONTEXT)
    sampling = parsed.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop) == (0.5, 3, 2**64 - 1, ("x",))
    assert parsed.ignored == ("surprise",)
    fields["parameters"]["do_sample"] = False
    assert DIALECT.parse(json.dumps(fields).encode(), CONTEXT).requests[0].sampling.temperature == 0


def test_the_prompt_may_be_omitted_from_the_answer():
    body = b'{"inputs": "hi", "parameters": {"return_full_text": false}}'
    assert b"".join(sent(body, " there", " you")) == b" there you\n"


@pytest.mark.parametrize("body", [b"", b" \n", b'""', b'{"inputs": " "}', b"\xff\xfe", b'"\xff"', b'{"inputs": 5}'])
def test_a_body_without_a_prompt_is_refused(body):
    with pytest.raises(InvalidRequest) as caught:
        DIALECT.parse(body, CONTEXT)
    reply = DIALECT.render_error(caught.value)
    assert reply.status == 400
    assert json.loads(reply.body)["type"] == "BadRequestException"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ContextTooLong(prompt_tokens=9, max_new_tokens=9, max_total_tokens=10), 400, "BadRequestException"),
        (NotFound("no"), 404, "ResourceNotFoundException"),
        (PayloadTooLarge("no"), 413, "RequestEntityTooLargeException"),
        (Busy("full", retry_after_s=3), 429, "ServiceUnavailableException"),
        (Unavailable("loading"), 503, "ServiceUnavailableException"),
        (EngineFailed("failed"), 500, "InternalServerException"),
        (Internal("bug"), 500, "InternalServerException"),
    ],
)
def test_errors_have_torchserves_form(error, status, kind):
    reply = DIALECT.render_error(error)
    assert reply.status == status
    assert json.loads(reply.body) == {"code": status, "type": kind, "message": error.message}
    assert (("retry-after", "3") in reply.headers) == isinstance(error, Busy)


def test_a_failure_in_the_stream_is_an_object_on_a_line_of_its_own():
    renderer = DIALECT.parse(PROMPT.encode(), CONTEXT).reply.stream()
    parts = [*renderer.chunk(Chunk(text=" going")), *renderer.chunk(Chunk(text=" to"))]
    parts += renderer.chunk(Chunk(finish=finish(FinishReason.ERROR, message="broken")))
    assert renderer.end() == ()
    assert renderer.error(Internal("again")) == ()
    *words, error = Lines(as_events(parts))
    assert b" ".join(words).decode() == f"{PROMPT} going to"
    assert json.loads(error) == {"code": 500, "type": "InternalServerException", "message": "broken"}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"plain", "torchserve"),
        (b'{"inputs": "a"}', "torchserve"),
        (b'{"text": "a"}', "torchserve"),
        (b'{"messages": []}', "openai-chat"),
        (b'{"prompt": "a"}', "openai-completions"),
    ],
)
def test_chats_and_completions_on_invocations_are_still_openais(body, name):
    assert select_dialect(body, get_dialect("torchserve")).name == name
