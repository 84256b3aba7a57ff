"""
OpenAI's Batch API: the body that creates a batch, and the object that describes one.

Source: OpenAI API reference, "Batch".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, NotFound
from headrace.serving.wire.batches import ENDED, ENDPOINTS, Batch
from headrace.serving.wire.framing import decode_body, invalid, missing
from headrace.serving.wire.openai.files import read_age

_WINDOW: Final = "24h"
_MAX_PAIRS: Final = 16
_MAX_KEY_CHARACTERS: Final = 64
_MAX_VALUE_CHARACTERS: Final = 512


class _Expiry(msgspec.Struct):
    anchor: str | None = None
    seconds: int | None = None


class CreateBatchBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: _Expiry | None = None


_decoder = msgspec.json.Decoder(CreateBatchBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A request for a batch, whose input file was not looked at."""

    input_file_id: str
    endpoint: str
    metadata: dict[str, str] | None
    output_age_s: float | None


def parse_create(body: bytes) -> NewBatch:
    """Read the body of POST /v1/batches. Raises `InvalidRequest`."""
    fields = decode_body(body, _decoder)
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not getattr(fields, name):
            raise missing(name)
    endpoint = fields.endpoint or ""
    if endpoint not in ENDPOINTS:
        raise invalid("endpoint", f"'{shortened(endpoint)}'. Expected one of {', '.join(ENDPOINTS)}")
    if fields.completion_window != _WINDOW:
        shown = shortened(fields.completion_window or "")
        raise invalid("completion_window", f"'{shown}'. Expected '{_WINDOW}'")
    _check_metadata(fields.metadata or {})
    expiry = fields.output_expires_after
    return NewBatch(
        input_file_id=fields.input_file_id or "",
        endpoint=endpoint,
        metadata=fields.metadata,
        output_age_s=None if expiry is None else read_age("output_expires_after", expiry.anchor, str(expiry.seconds)),
    )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MAX_PAIRS:
        raise invalid("metadata", f"it has {len(metadata)} pairs. Expected at most {_MAX_PAIRS}")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY_CHARACTERS or len(value) > _MAX_VALUE_CHARACTERS:
            limits = f"keys of {_MAX_KEY_CHARACTERS} and values of {_MAX_VALUE_CHARACTERS} characters at most"
            raise invalid("metadata", f"the pair '{shortened(key)}' is too long. Expected {limits}")


def batch_object(batch: Batch, *, cancelling_s: float | None) -> dict[str, object]:
    """Describe a batch; `cancelling_s` is when its cancellation was requested."""
    status = "cancelling" if cancelling_s is not None and batch.status not in ENDED else batch.status
    times = {**batch.reached_s, **({} if cancelling_s is None else {"cancelling": cancelling_s})}
    named = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    usage, counts = batch.usage, batch.counts
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": _WINDOW,
        "status": status,
        "output_file_id": batch.output_file_id if batch.status in ENDED else None,
        "error_file_id": batch.error_file_id if batch.status in ENDED else None,
        "created_at": int(batch.created_s),
        "expires_at": int(batch.expires_s),
        **{f"{name}_at": int(times[name]) if name in times else None for name in named},
        "request_counts": {
            "total": batch.total,
            "completed": counts.completed,
            "failed": counts.failed + counts.expired,
        },
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
        "metadata": batch.metadata,
    }


def no_batch(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{shortened(batch_id)}'. Expected one that this key has created.")


def ended_already(batch: Batch) -> InvalidRequest:
    return InvalidRequest(f"Cannot cancel a batch with status '{batch.status}'.")
