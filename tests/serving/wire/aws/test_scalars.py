"""Scalars and timestamps as text."""

import math

import pytest
from botocore.model import Shape
from hypothesis import given

from headrace.serving.wire.aws import scalars
from headrace.serving.wire.aws.errors import AwsError
from tests.serving.wire.aws.shape_values import SCALARS, moments


def shape(kind, **more):
    return Shape("Any", {"type": kind, **more})


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01T01:00:00+01:00",
        "1767225600",
        "1767225600.0",
        "Thu, 01 Jan 2026 00:00:00 GMT",
    ],
)
def test_a_timestamp_may_be_written_in_many_ways(text):
    assert scalars.moment(text, "t") == 1_767_225_600


@pytest.mark.parametrize("value", ["", "soon", "1e99", "-1e99", math.nan, math.inf, "2026-13-01", "9" * 5000, "a, b"])
def test_an_invalid_timestamp_is_refused(value):
    with pytest.raises(AwsError, match="is not a timestamp"):
        scalars.moment(value, "t")


@given(moment=moments)
def test_a_timestamp_round_trips_in_every_format_with_milliseconds(moment):
    for timestamp_format in ("iso8601", "unixTimestamp"):
        assert scalars.moment(scalars.from_moment(moment, timestamp_format), "t") == moment
    assert scalars.moment(scalars.from_moment(moment, "rfc822"), "t") == int(moment)


@pytest.mark.parametrize("kind", ["blob", "boolean", "double", "integer", "long", "timestamp"])
def test_a_scalar_round_trips_through_its_text(kind):
    @given(value=SCALARS[kind])
    def survives(value):
        assert scalars.from_text(scalars.to_text(value, shape(kind)), shape(kind), "x") == value

    survives()


def test_infinities_and_nan_are_written_by_name():
    for value, text in ((math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")):
        assert scalars.to_text(value, shape("double")) == text
        assert repr(scalars.from_text(text, shape("double"), "x")) == repr(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.0"),
        ("integer", "2147483648"),
        ("integer", "٣"),
        ("integer", "9" * 5000),
        ("long", "9223372036854775808"),
        ("boolean", "yes"),
        ("blob", "a"),
        ("blob", "é"),
        ("double", "inf"),
        ("double", "0x1"),
        ("float", ""),
    ],
)
def test_text_of_another_type_is_refused(kind, text):
    with pytest.raises(AwsError) as caught:
        scalars.from_text(text, shape(kind), "some.member")
    assert caught.value.code == "SerializationException"
    assert "some.member" in caught.value.message
    assert len(caught.value.message) < 300
