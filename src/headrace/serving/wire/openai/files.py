"""
OpenAI's files: the form that uploads one, and the objects that describe them.

Only files of batches are served: `batch` for input, `batch_output` for results. Source: OpenAI API reference, "Files".
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, NotFound
from headrace.serving.wire.framing import invalid, missing, to_json

MAX_FILE_BYTES: Final = 200 * 1000 * 1000
"""Largest input file of a batch. Source: OpenAI's guide "Batch API"."""
MAX_AGE_S: Final = 30 * 86_400
_MIN_AGE_S: Final = 3600
MAX_FIELD_BYTES: Final = 1024
MAX_PAGE: Final = 10_000
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM_FIELDS: Final = frozenset({"file", "purpose", _ANCHOR, _SECONDS})


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is stored; times are seconds since 1970."""

    id: str
    filename: str
    purpose: str
    num_bytes: int
    created_s: float
    expires_s: float


def read_form(fields: Mapping[str, str]) -> float:
    """Check the fields beside the file; return the time for which the file is kept. Raises `InvalidRequest`."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    if purpose != "batch":
        raise invalid("purpose", f"'{shortened(purpose)}'. Expected 'batch': only files of batches are served here")
    if _ANCHOR not in fields and _SECONDS not in fields:
        return MAX_AGE_S
    return read_age("expires_after", fields.get(_ANCHOR), fields.get(_SECONDS, ""))


def read_age(name: str, anchor: str | None, seconds: str) -> float:
    """Read OpenAI's expiration policy. Raises `InvalidRequest`."""
    if anchor != "created_at":
        raise invalid(f"{name}.anchor", f"'{shortened(str(anchor))}'. Expected 'created_at'")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    if not is_number or not _MIN_AGE_S <= int(seconds) <= MAX_AGE_S:
        expected = f"Expected a whole number from {_MIN_AGE_S} to {MAX_AGE_S}"
        raise invalid(f"{name}.seconds", f"'{shortened(seconds)}'. {expected}")
    return float(seconds)


def file_object(file: StoredFile) -> dict[str, object]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created_s),
        "expires_at": int(file.expires_s),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def render_deleted(file_id: str) -> bytes:
    return to_json({"id": file_id, "object": "file", "deleted": True})


def render_page(page: Sequence[Mapping[str, object]], *, has_more: bool) -> bytes:
    """Render a page of files or batches."""
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return to_json({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": has_more})


def no_file(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {shortened(file_id)}. It was deleted, has expired, or is another key's.")


def page_limit(query: Mapping[str, str], *, default: int, most: int) -> int:
    """Read `limit` of a list. Raises `InvalidRequest`."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= most):
        raise invalid("limit", f"'{shortened(text)}'. Expected a whole number from 1 to {most}")
    return int(text)


def page_order(query: Mapping[str, str]) -> str:
    """Read `order` of a list. Raises `InvalidRequest`."""
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise invalid("order", f"'{shortened(order)}'. Expected 'asc' or 'desc'")
    return order


def check_query(query: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse parameters that would change the list if they were known."""
    for name in query.keys() - known:
        raise InvalidRequest(
            f"Unknown parameter: '{shortened(name)}'. Expected {', '.join(sorted(known))}.", param=shortened(name)
        )
