"""
Anthropic's Message Batches: the body that creates one, the object that describes one, and the lines of its results.

The requests of a batch are stored as lines of OpenAI's batches for `/v1/messages`. Source: Anthropic API reference,
"Create a Message Batch"; "Retrieve Message Batch Results".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.serving.wire.batches import ENDED, MAX_LINES, Batch, read_result
from headrace.serving.wire.framing import decode_body, to_json
from headrace.serving.wire.unknown_routes import MESSAGE_BATCHES, MESSAGES

_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


class _Params(msgspec.Struct):
    model: str
    stream: bool | None = None


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class CreateMessageBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    requests: list[_Request]


_decoder = msgspec.json.Decoder(CreateMessageBatchBody)
_params_decoder = msgspec.json.Decoder(_Params)


def parse_create(body: bytes) -> list[bytes]:
    """Return the requests of a body as lines of an input file. Raises `InvalidRequest`."""
    requests = decode_body(body, _decoder).requests
    if not 1 <= len(requests) <= MAX_LINES:
        message = f"requests has {len(requests)} items; expected 1 to {MAX_LINES}."
        raise InvalidRequest(message, param="requests")
    seen: set[str] = set()
    lines = []
    for number, request in enumerate(requests):
        _check(request, f"requests.{number}", seen)
        line = {"custom_id": request.custom_id, "method": "POST", "url": MESSAGES, "body": request.params}
        lines.append(to_json(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
    return lines


def _check(request: _Request, place: str, seen: set[str]) -> None:
    if not _CUSTOM_ID.fullmatch(request.custom_id):
        shown = shortened(request.custom_id)
        expected = "1 to 64 letters, digits, underscores and dashes"
        raise InvalidRequest(f"{place}.custom_id is {shown}; expected {expected}.", param=f"{place}.custom_id")
    if request.custom_id in seen:
        message = f"{place}.custom_id is {request.custom_id}, as that of an earlier request; expected unique ones."
        raise InvalidRequest(message, param=f"{place}.custom_id")
    seen.add(request.custom_id)
    try:
        params = decode_body(bytes(request.params), _params_decoder)
    except InvalidRequest as error:
        raise InvalidRequest(f"{place}.params: {error.message}", param=f"{place}.params") from error
    if params.stream:
        raise InvalidRequest(f"{place}.params.stream is true; expected false.", param=f"{place}.params.stream")


def batch_object(batch: Batch, *, cancelling_s: float | None, base_url: str) -> dict[str, object]:
    """Describe a batch; the counts are zero until it has ended, as in Anthropic's API."""
    counts, has_ended = batch.counts, batch.status in ENDED
    ended_s = batch.reached_s.get(batch.status) if has_ended else None
    status = "ended" if has_ended else "in_progress" if cancelling_s is None else "canceling"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if has_ended else batch.total,
            "succeeded": counts.completed if has_ended else 0,
            "errored": counts.failed if has_ended else 0,
            "canceled": counts.cancelled if has_ended else 0,
            "expired": counts.expired if has_ended else 0,
        },
        "created_at": _time(batch.created_s),
        "expires_at": _time(batch.expires_s),
        "ended_at": None if ended_s is None else _time(ended_s),
        "cancel_initiated_at": None if cancelling_s is None else _time(cancelling_s),
        "archived_at": None,
        "results_url": f"{base_url}{MESSAGE_BATCHES}/{batch.id}/results" if has_ended else None,
    }


def render_page(page: Sequence[Mapping[str, object]], *, has_more: bool) -> bytes:
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return to_json({"data": page, "first_id": first, "last_id": last, "has_more": has_more})


def render_deleted(batch_id: str) -> bytes:
    return to_json({"id": batch_id, "type": "message_batch_deleted"})


def result_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Convert lines of OpenAI's results to Anthropic's."""
    for line in lines:
        found = read_result(line)
        response, result = found.response, dict[str, object]()
        if response is None:
            code = "" if found.error is None else found.error.code
            result["type"] = "expired" if code == "batch_expired" else "canceled"
        elif response.status_code == 200:
            result = {"type": "succeeded", "message": response.body}
        else:
            result = {"type": "errored", "error": response.body}
        yield to_json({"custom_id": found.custom_id, "result": result}) + b"\n"


def not_ended(batch: Batch, verb: str) -> InvalidRequest:
    return InvalidRequest(f"Batch {batch.id} has not ended; expected an ended batch to {verb}. Wait, or cancel it.")


def ended_already(batch: Batch) -> InvalidRequest:
    return InvalidRequest(f"Batch {batch.id} has ended; expected one in progress to cancel.")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
