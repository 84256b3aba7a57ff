"""
Frames of `application/vnd.amazon.eventstream`, the response format of InvokeEndpointWithResponseStream.

    total length u32 | length of the headers u32 | CRC-32 of these two | headers | payload | CRC-32 of all before it

A header is: length of its name u8, name, type u8 (7: text), length of the value u16, value. Everything is big-endian.
Clients pass on each `PayloadPart` as it arrives, so the caller decides where parts end. No frame may follow an
exception frame.
"""

import struct
import zlib

from headrace.serving.wire.aws import json_values

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_PAYLOAD_BYTES = 16 << 20
"""Largest payload of a frame. Source: Smithy's event stream specification; botocore reads up to 24 MiB."""

_TEXT = 7
_PRELUDE = struct.Struct(">II")
_CRC = struct.Struct(">I")


def payload_part(data: bytes) -> bytes:
    """Encode bytes of the model's answer. Raises `ValueError`: there are more than `MAX_PAYLOAD_BYTES`."""
    return _frame(_PAYLOAD_PART_HEADERS, data)


def model_stream_error(message: str, error_code: str) -> bytes:
    """Encode a failure of the model; the code is `ModelInvocationTimeExceeded` or `StreamBroken`."""
    return _exception("ModelStreamError", {"Message": message, "ErrorCode": error_code})


def internal_stream_failure(message: str) -> bytes:
    """Encode the frame that ends a stream after a failure of the platform."""
    return _exception("InternalStreamFailure", {"Message": message})


def _exception(name: str, fields: dict[str, str]) -> bytes:
    headers = {":message-type": "exception", ":exception-type": name, ":content-type": "application/json"}
    return _frame(_headers(headers), json_values.encode(fields))


def _headers(fields: dict[str, str]) -> bytes:
    return b"".join(
        struct.pack(f">B{len(name)}sBH{len(value)}s", len(name), name.encode(), _TEXT, len(value), value.encode())
        for name, value in fields.items()
    )


def _frame(headers: bytes, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"The payload has {len(payload)} bytes; expected at most {MAX_PAYLOAD_BYTES} in one frame.")
    prelude = _PRELUDE.pack(16 + len(headers) + len(payload), len(headers))
    head = b"".join((prelude, _CRC.pack(zlib.crc32(prelude)), headers))
    return b"".join((head, payload, _CRC.pack(zlib.crc32(payload, zlib.crc32(head)))))


_PAYLOAD_PART_HEADERS = _headers(
    {":message-type": "event", ":event-type": "PayloadPart", ":content-type": "application/octet-stream"}
)
