"""Parts of responses, as asynchronous and rolling-batch handlers encode them with `Output.binary_encode`."""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_handler.contract import Reply
from headrace_handler.contracts.djl import responses

_CODE = re.compile("[2-9][0-9][0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a response."""

    data: bytes = b""
    is_last: bool = False
    status: int = 200
    """Used in the first part only, as are `phrase` and `properties`."""
    phrase: str = "OK"
    properties: Mapping[str, Any] = field(default_factory=dict)


def read_chunk(output: Any) -> Chunk | None:
    """Return the part that an output holds; None if it is a response of another kind."""
    if output.code != 200 or output.stream_content is not None:
        return None
    return decode_chunk(responses.body_of(output), output.properties)


def decode_chunk(content: bytes | bytearray, properties: Mapping[str, Any]) -> Chunk | None:
    """Return the part that encoded pairs describe; None if the bytes are something else."""
    pairs = read_pairs(content)
    if pairs is None or "data" not in pairs:
        return None
    is_last = pairs.get("last", "").lower() == "true"
    if "code" not in pairs or not (pairs["data"] or is_last):
        return Chunk(data=pairs["data"].encode(), is_last=is_last, properties=properties)
    status, error = _status(pairs["code"]), pairs.get("error")
    body = {"code": status} if error is None else {"code": status, "error": error}
    return Chunk(
        data=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        is_last=True,
        status=status,
        phrase=responses.phrase_of(error),
        properties=properties,
    )


def _status(code: str) -> int:
    """Return the status of a code; that of a handler which fails, if the code is none."""
    return int(code) if _CODE.fullmatch(code) else 424


def send_chunk(chunk: Chunk, reply: Reply) -> None:
    """
    Send a part; an empty one is dropped unless it is the last, as in a response that is not streamed.

    Raises:
        Cancelled: the client has disconnected.
    """
    if not chunk.data and not chunk.is_last:
        return
    if not reply.has_head:
        reply.head(chunk.status, responses.headers_of(chunk.properties), phrase=chunk.phrase)
    if chunk.is_last:
        reply.end(chunk.data)
    else:
        reply.data(chunk.data)


def read_pairs(content: bytes | bytearray) -> dict[str, str] | None:
    """Decode what `Output.binary_encode` made; None if the bytes are something else."""
    return _read_pairs(content, ">i") or _read_pairs(content, ">h")  # lengths have 16 bits up to djl_python 0.26


def _read_pairs(content: bytes | bytearray, length: str) -> dict[str, str] | None:
    position = 2
    texts: list[str] = []
    try:
        (count,) = struct.unpack_from(">h", content)
        for _ in range(2 * count):
            (size,) = struct.unpack_from(length, content, position)
            position += struct.calcsize(length)
            texts.append(str(content[position : position + max(size, 0)], "utf-8"))
            position += max(size, 0)
    except (struct.error, UnicodeDecodeError):
        return None
    return dict(zip(texts[::2], texts[1::2], strict=True)) if texts and position == len(content) else None
