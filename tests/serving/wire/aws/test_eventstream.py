"""Frames are read by botocore's own reader."""

import io

import pytest
from botocore.eventstream import EventStream, EventStreamBuffer
from botocore.exceptions import EventStreamError
from botocore.parsers import create_parser
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws import eventstream, services


class Raw(io.BytesIO):
    """The stream that urllib3 passes to botocore, in pieces of a few bytes."""

    def __init__(self, data, piece_bytes=7):
        super().__init__(data)
        self.piece_bytes = piece_bytes

    def stream(self):
        while piece := self.read(self.piece_bytes):
            yield piece


def events_of(data, **options):
    operation = services.operation("sagemaker-runtime", "InvokeEndpointWithResponseStream")
    facts = {
        "status_code": 200,
        "headers": {},
        "body": Raw(data, **options),
        "context": {"operation_name": operation.name},
    }
    stream = create_parser("rest-json").parse(facts, operation.output_shape)["Body"]
    assert isinstance(stream, EventStream)
    return stream


@given(parts=st.lists(st.binary(max_size=300), max_size=5), piece_bytes=st.integers(1, 500))
def test_parts_arrive_one_by_one(parts, piece_bytes):
    data = b"".join(eventstream.payload_part(part) for part in parts)

    arrived = [event["PayloadPart"]["Bytes"] for event in events_of(data, piece_bytes=piece_bytes)]

    assert arrived == parts


def test_a_frame_has_the_headers_of_aws():
    buffer = EventStreamBuffer()
    buffer.add_data(eventstream.payload_part(b"data: {}\n\n"))

    message = next(buffer)

    assert message.headers == {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    assert message.payload == b"data: {}\n\n"


def test_a_frame_follows_the_format_byte_for_byte():
    """The bytes were derived by hand from the description of the format."""
    assert eventstream.payload_part(b"hi") == b"".join(
        (
            bytes.fromhex("0000006b0000005999777065"),  # lengths and the CRC of both
            b"\x0d:message-type\x07\x00\x05event",
            b"\x0b:event-type\x07\x00\x0bPayloadPart",
            b"\x0d:content-type\x07\x00\x18application/octet-stream",
            b"hi",
            bytes.fromhex("7dde0062"),
        )
    )


@pytest.mark.parametrize(
    ("frame", "code", "message"),
    [
        (eventstream.model_stream_error("too slow é", "ModelInvocationTimeExceeded"), "ModelStreamError", "too slow é"),
        (eventstream.internal_stream_failure("our fault"), "InternalStreamFailure", "our fault"),
    ],
)
def test_an_exception_is_raised_after_the_parts_before_it(frame, code, message):
    events = iter(events_of(eventstream.payload_part(b"a") + frame))

    assert next(events) == {"PayloadPart": {"Bytes": b"a"}}
    with pytest.raises(EventStreamError) as caught:
        next(events)
    assert caught.value.response["Error"] == {"Code": code, "Message": message}


def test_an_exception_contains_its_members_as_json():
    buffer = EventStreamBuffer()
    buffer.add_data(eventstream.model_stream_error("gone", "StreamBroken"))

    message = next(buffer)

    assert message.payload == b'{"Message":"gone","ErrorCode":"StreamBroken"}'
    assert message.headers[":content-type"] == "application/json"


def test_the_largest_part_is_accepted_and_a_larger_one_refused():
    largest = bytes(eventstream.MAX_PAYLOAD_BYTES)

    (event,) = events_of(eventstream.payload_part(largest), piece_bytes=32 << 20)

    assert event["PayloadPart"]["Bytes"] == largest
    with pytest.raises(ValueError, match="at most 16777216"):
        eventstream.payload_part(largest + b"x")
