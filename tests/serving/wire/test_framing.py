from contextlib import suppress
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.framing import (
    MalformedBody,
    decode_body,
    field_names,
    json_line,
    raw_fields,
    shortened_names,
    sse_event,
    to_json,
)


class Inner(msgspec.Struct):
    number: int


class Outer(msgspec.Struct):
    inner: Inner
    text: str = ""
    numbers: list[str | int | list[int]] | None = None
    named: dict[str, int] | None = None


class Choosy(msgspec.Struct):
    kind: Literal["a", "b"]


DECODER = msgspec.json.Decoder(Outer)


def test_quoted_client_input_is_shortened():
    with pytest.raises(InvalidRequest) as caught:
        decode_body(b'{"inner": {"number": 3}, "kind": "%b"}' % (b"x" * 10_000), msgspec.json.Decoder(Choosy))
    assert len(caught.value.message) < 300
    names = shortened_names(f"{i}{'x' * 1000}" for i in range(1000))
    assert len(names) == 20
    assert max(map(len, names)) < 300


def test_a_valid_body_is_decoded():
    assert decode_body(b'{"inner": {"number": 3}, "more": 1}', DECODER) == Outer(inner=Inner(number=3))


@pytest.mark.parametrize(
    ("written", "number"), [(b"3.0", 3), (b"-3.000", -3), (b"3e2", 300), (b"-0.0", 0), (b"9007199254740992.0", 2**53)]
)
def test_integral_floats_are_integers(written, number):
    body = b'{"text": "3.0 \\u00e9", "inner": {"number": %b, "x": 2.0}, "numbers": ["1.0", %b, [7, %b]]}' % (
        (written,) * 3
    )
    assert decode_body(body, DECODER) == Outer(Inner(number), "3.0 é", ["1.0", number, [7, number]])
    with pytest.raises(InvalidRequest, match=r"`inner.number`: expected `int`, got `float`\."):
        decode_body(body, DECODER, only_integers=True)


@pytest.mark.parametrize(
    "later", [b'"inner": {}', b'"inner": []', b'"inner": 7', b'"inner": {"number": "x"}', b'"inner": {"number": [1]}']
)
def test_an_integral_float_in_a_field_that_is_named_twice_is_refused(later):
    with pytest.raises(InvalidRequest, match="inner"):
        decode_body(b'{"inner": {"number": 1.0}, %b}' % later, DECODER)


def test_a_long_list_of_integral_floats_is_refused():
    body = msgspec.json.encode({"inner": {"number": 1}, "numbers": [float(i) for i in range(1000)]})
    with pytest.raises(InvalidRequest, match="got `float`"):
        decode_body(body, DECODER)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The body is empty; expected a JSON object."),
        (b"  ", "The body is empty; expected a JSON object."),
        (b'{"inner"', "The body is not valid JSON: Input data was truncated."),
        (b'{"inner": {"number": NaN}}', "The body is not valid JSON: invalid character (byte 21)."),
        (b'{"text": "\xff"}', "The body is not valid UTF-8."),
        (b'{"text": "\\ud800"}', "The body is not valid JSON: Input data was truncated."),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "The body is nested too deep."),
    ],
)
def test_a_malformed_body_says_what_is_wrong(body, text):
    with pytest.raises(MalformedBody) as caught:
        decode_body(body, DECODER)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        (b'{"inner": {"number": "3"}}', "inner.number", "`inner.number`: expected `int`, got `str`."),
        (b'{"inner": {"number": 3.5}}', "inner.number", "`inner.number`: expected `int`, got `float`."),
        (b'{"inner": {"number": 1e300}}', "inner.number", "`inner.number`: expected `int`, got `float`."),
        (b'{"inner": {"number": 3}, "named": {"x": 3.0}}', "named[...]", "`named[...]`: expected `int`, got `float`."),
        (b'{"inner": {"number": true}}', "inner.number", "`inner.number`: expected `int`, got `bool`."),
        (b'{"inner": {}}', "inner.number", "`inner.number` is missing."),
        (b"{}", "inner", "`inner` is missing."),
        (b"[]", None, "Expected `object`, got `array`."),
        (b'{"inner": {"number": 1e999}}', "inner.number", "`inner.number`: number out of range."),
    ],
)
def test_a_wrong_field_is_named_with_its_path(body, param, text):
    with pytest.raises(InvalidRequest) as caught:
        decode_body(body, DECODER)
    assert (caught.value.param, caught.value.message) == (param, text)
    assert not isinstance(caught.value, MalformedBody)


def test_unknown_fields_are_named():
    assert {name: bytes(raw) for name, raw in raw_fields(b'{"b": [ 1], "a": 2}').items()} == {"b": b"[ 1]", "a": b"2"}
    assert field_names(b"[1]") == frozenset()


def test_line_ends_of_unicode_are_escaped():
    assert to_json("a\x85\u2028\u2029\u2027é") == b'"a\\u0085\\u2028\\u2029\xe2\x80\xa7\xc3\xa9"'


def test_events_and_lines_are_framed():
    assert sse_event(b"{}") == b"data: {}\n\n"
    assert sse_event(b"{}", space=False) == b"data:{}\n\n"
    assert json_line(b"{}") == b"{}\n"


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_stays_within_one_frame(text):
    encoded = to_json(text)
    assert len(encoded.decode().splitlines()) == 1
    assert msgspec.json.decode(encoded) == text


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_decoded_or_refused(data):
    with suppress(InvalidRequest):
        assert isinstance(decode_body(data, DECODER), Outer)
