"""The text of an answer is the same in every dialect, however its stream is split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tools.cli.invoke_body import AnswerText, finish_reason_of, text_of_value

TEXT = 'Die "Welle" läuft,\\\n\t波が来る 🌊.'


def tokens() -> list[str]:
    return [TEXT[start : start + 3] for start in range(0, len(TEXT), 3)]


def tgi() -> bytes:
    events = [{"token": {"text": text, "special": False}, "generated_text": None} for text in tokens()]
    events.append({"token": {"text": "</s>", "special": True}, "generated_text": TEXT})
    return "".join(f"data:{json.dumps(event)}\n\n" for event in events).encode()


def lmi() -> bytes:
    lines = [{"token": {"id": 1, "text": text, "log_prob": -1}} for text in tokens()]
    lines.append({"token": {"id": 2}, "generated_text": TEXT, "details": {}})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def openai() -> bytes:
    events = [{"choices": [{"delta": {"content": text}}]} for text in tokens()]
    return b": ping\n\n" + "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


FORMS = {
    "tgi": tgi(),
    "lmi": lmi(),
    "openai": openai(),
    "one object": json.dumps({"generated_text": TEXT}).encode(),
    "one object, unescaped": json.dumps({"generated_text": TEXT, "details": {"a": "b"}}, ensure_ascii=False).encode(),
    "a list": json.dumps([{"generated_text": TEXT}]).encode(),
    "plain": TEXT.encode(),
}


@pytest.mark.parametrize("form", FORMS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_the_text_does_not_depend_on_how_the_stream_is_split(form: str, cuts: list[int]) -> None:
    data, reader, text, start = FORMS[form], AnswerText(), "", 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        text += reader.feed(data[start:cut])
        start = max(start, cut)
    assert text + reader.finish() == TEXT


@given(st.binary(max_size=200))
def test_any_bytes_give_some_text(data: bytes) -> None:
    reader = AnswerText()
    assert isinstance(reader.feed(data) + reader.finish(), str)


def test_the_pieces_of_one_object_are_shown_as_they_come() -> None:
    reader = AnswerText()
    pieces = [b'{"generated_text": "', b"The", b" sea", b'"}']
    assert [reader.feed(piece) for piece in pieces] == ["", "The", " sea", ""]


def test_an_unknown_value_has_no_text() -> None:
    assert text_of_value({"score": 1}) is None
    assert text_of_value([1, 2]) is None


def test_an_error_in_a_stream_is_shown_as_it_is() -> None:
    reader = AnswerText()
    assert "overloaded" in reader.feed(b'data:{"error":"overloaded"}\n\n') + reader.finish()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"choices": [{"text": "a", "finish_reason": "length"}]}, "length"),
        ({"choices": [{"finish_reason": "stop", "stop_reason": "repetition_detected"}]}, "repetition"),
        ([{"generated_text": "a", "details": {"finish_reason": "eos_token"}}], "eos_token"),
        ({"choices": [{"delta": {}, "finish_reason": None}]}, None),
        ({"choices": 3}, None),
        ([1], None),
    ],
)
def test_the_finish_reason_of_each_dialect_is_found(value: object, reason: str | None) -> None:
    assert finish_reason_of(value) == reason
    reader = AnswerText()
    reader.feed(b"data: " + json.dumps(value).encode() + b"\n\ndata: [DONE]\n\n")
    assert reader.finish_reason == reason
