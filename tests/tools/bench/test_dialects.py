import json

import pytest

from headrace.serving.http.client_connection import ClientConnection
from headrace.tools.bench.client import read_answer
from headrace.tools.bench.dialects import Api, Event, RequestTemplate, Unreadable, error_text, parse_line, request_body
from headrace.tools.bench.http1 import Exchange, Piece
from headrace.tools.bench.workload import Question

QUESTION = Question(text="Why?")


def template(api: Api, **values) -> RequestTemplate:
    return RequestTemplate(api=api, model="m", **values)


def body_of(api: Api, question: Question = QUESTION, **values) -> dict:
    return json.loads(request_body(template(api, **values), question, 16))


def exchange_of(text: bytes, content_type: str = "text/event-stream", cut: int = 7) -> Exchange:
    exchange = Exchange(ClientConnection(on_release=lambda _: None, on_lost=lambda _: None))
    exchange.headers["content-type"] = content_type
    parts = [text[start : start + cut] for start in range(0, len(text), cut)]
    exchange.pieces = [Piece(float(number), part) for number, part in enumerate(parts)]
    return exchange


def test_every_openai_request_streams_and_asks_for_the_usage() -> None:
    for api in (Api.CHAT, Api.COMPLETIONS):
        body = body_of(api)
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["max_tokens"] == 16


def test_a_text_becomes_a_user_message_in_a_chat() -> None:
    assert body_of(Api.CHAT)["messages"] == [{"role": "user", "content": "Why?"}]


def test_messages_of_a_data_set_are_sent_as_they_are() -> None:
    messages = ({"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"})
    assert body_of(Api.CHAT, Question(text="", messages=messages))["messages"] == list(messages)


def test_ignore_eos_is_requested_by_the_name_of_each_dialect() -> None:
    assert body_of(Api.COMPLETIONS, ignore_eos=True)["ignore_eos"] is True
    assert body_of(Api.SAGEMAKER, ignore_eos=True)["parameters"]["ignore_eos_token"] is True
    assert "ignore_eos" not in json.dumps(body_of(Api.TGI, ignore_eos=True))
    assert "ignore_eos" not in json.dumps(body_of(Api.COMPLETIONS))


def test_tgi_is_greedy_unless_a_temperature_is_given() -> None:
    assert "temperature" not in body_of(Api.TGI)["parameters"]
    assert body_of(Api.TGI, temperature=0.5)["parameters"]["do_sample"] is True


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"", None),
        (b": ping", None),
        (b"event: token", None),
        (b"data: [DONE]", Event(is_last=True)),
        (b'data: {"choices":[{"text":" a"}]}', Event(text=" a")),
        (b'data: {"choices":[{"delta":{"role":"assistant"}}]}', Event()),
        (b'data: {"choices":[{"delta":{"content":"b"}}]}', Event(text="b")),
        (
            (
                b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":6,'
                b'"prompt_tokens_details":{"cached_tokens":4}}}'
            ),
            Event(prompt_tokens=5, output_tokens=6, cached_tokens=4),
        ),
        (b'data:{"token":{"id":1,"text":" c","special":false},"generated_text":null}', Event(text=" c")),
        (
            (
                b'data:{"token":{"id":2,"text":"</s>","special":true},"generated_text":" c",'
                b'"details":{"generated_tokens":2,"input_length":7}}'
            ),
            Event(prompt_tokens=7, output_tokens=2, is_last=True),
        ),
        (b'{"token":{"id":5,"text":" d","log_prob":-0.3}}', Event(text=" d")),
        (b'{"outputs": [" e"]}', Event(text=" e")),
        (b'{"generated_text": "all"}', Event(text="all", is_last=True)),
    ],
)
def test_a_line_of_each_dialect_is_read(line: bytes, event: Event | None) -> None:
    assert event == parse_line(line)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"error":{"message":"it broke","code":500}}',
        b'data: {"error":"it broke","error_type":"generation"}',
        (
            b'{"token":{"id":-1,"text":"","log_prob":-1},"generated_text":"",'
            b'"details":{"finish_reason":"error","error":"it broke"}}'
        ),
    ],
)
def test_an_error_in_a_stream_is_seen(line: bytes) -> None:
    event = parse_line(line)
    assert event is not None
    assert event.error == "it broke"


@pytest.mark.parametrize("line", [b"<html>", b"data: {", b"data: 5", b'{"what": 1}'])
def test_a_line_of_no_dialect_is_unreadable(line: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_line(line)


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_an_answer_does_not_depend_on_how_the_network_splits_it(cut: int) -> None:
    text = (
        'data: {"choices":[{"delta":{"content":"où "}}]}\n\n'
        'data: {"choices":[{"delta":{"content":"🙂"}}]}\n\ndata: [DONE]\n\n'
    )
    answer = read_answer(exchange_of(text.encode(), cut=cut))
    assert answer.text == "où 🙂"
    assert answer.is_whole


def test_a_line_is_timestamped_by_its_last_byte() -> None:
    answer = read_answer(exchange_of(b'{"outputs": ["a"]}\n{"outputs": ["b"]}\n', "application/jsonlines", cut=19))
    assert answer.text_at_s == [0.0, 1.0]


def test_a_stream_of_events_without_its_last_one_is_not_whole() -> None:
    assert not read_answer(exchange_of(b'data: {"choices":[{"text":"a"}]}\n\n')).is_whole


def test_json_lines_are_whole_when_the_body_is() -> None:
    assert read_answer(exchange_of(b'{"outputs": ["a"]}\n', "application/jsonlines")).is_whole


@pytest.mark.parametrize("value", [{"error": {"message": "m"}}, {"error": "m"}, {"message": "m"}, {"detail": "m"}, "m"])
def test_the_sentence_of_an_error_body_is_found(value: object) -> None:
    assert error_text(value) == "m"
