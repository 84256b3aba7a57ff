"""
The routes of one stored response, which server and gateway share: return it, delete it, list its input, cancel it.

Source: OpenAI API reference, "Responses"; "List input items".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest
from headrace.wire.framing import to_json
from headrace.wire.openai.stored_responses import ResponseKey, ResponseStore, StoredResponse, response_not_found

MAX_ITEMS = 100
"""Largest `limit` of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall:
    """A request that names a stored response in its path."""

    store: ResponseStore
    key: ResponseKey
    query: Mapping[str, str]
    now_s: float

    def entry(self) -> StoredResponse:
        """
        Return the response.

        Raises:
            NotFound: it is not stored.
        """
        found = self.store.get(self.key, now_s=self.now_s)
        if found is None:
            raise response_not_found(self.key.response_id)
        return found


Action = Callable[[ResponseCall], bytes]
"""Returns the body of the answer; raises `HeadraceError`."""


def retrieve(call: ResponseCall) -> bytes:
    """Return a stored response."""
    entry = call.entry()
    if call.query.get("stream", "false").lower() not in {"false", "0", ""}:
        text = "'stream' is not supported here: a stored response is complete. Leave it out."
        raise InvalidRequest(text, param="stream")
    return entry.response


def delete(call: ResponseCall) -> bytes:
    """Delete a response and confirm it."""
    if not call.store.delete(call.key, now_s=call.now_s):
        raise response_not_found(call.key.response_id)
    return to_json({"id": call.key.response_id, "object": "response", "deleted": True})


def list_input(call: ResponseCall) -> bytes:
    """List one page of the conversation before a response."""
    query = call.query
    return item_page(
        call.entry().items,
        limit=query.get("limit", "20"),
        order=query.get("order", "desc"),
        after=query.get("after"),
    )


def cancel(call: ResponseCall) -> bytes:
    """Refuse to cancel: no response runs in the background."""
    call.entry()
    text = (
        "Only responses with 'background': true can be cancelled, and this server has none. "
        "Close the connection to stop a response."
    )
    raise InvalidRequest(text)


ACTIONS: Mapping[tuple[str, str], Action] = {
    ("GET", ""): retrieve,
    ("DELETE", ""): delete,
    ("GET", "/input_items"): list_input,
    ("POST", "/cancel"): cancel,
}
"""The actions by method and by the part of the path after the id."""


class _ItemId(msgspec.Struct):
    id: str | None = None


_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_ids = msgspec.json.Decoder(list[_ItemId]).decode
_decode_id = msgspec.json.Decoder(_ItemId).decode


def item_page(items: bytes, *, limit: str, order: str, after: str | None) -> bytes:
    """
    Render one page of items.

    Args:
        items: a JSON array of all of them, oldest first; only the page is decoded.
        limit: items of a page, 1 to 100.
        order: `asc` or `desc`.
        after: the id of the last item of the page before.

    Raises:
        InvalidRequest: an argument has another value.
    """
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_ITEMS):
        text = f"Invalid 'limit': '{shortened(limit)}'. Expected a whole number from 1 to {MAX_ITEMS}."
        raise InvalidRequest(text, param="limit")
    if order not in {"asc", "desc"}:
        raise InvalidRequest(f"Invalid 'order': '{shortened(order)}'. Expected 'asc' or 'desc'.", param="order")
    listed = _decode_items(items)
    if order == "desc":
        listed.reverse()
    if after is not None:
        listed = listed[_place_after(items, after, is_reversed=order == "desc") :]
    page = listed[: int(limit)]
    first, last = (_decode_id(page[0]).id, _decode_id(page[-1]).id) if page else (None, None)
    return to_json(
        {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(page) < len(listed)}
    )


def _place_after(items: bytes, after: str, *, is_reversed: bool) -> int:
    ids = [item.id for item in _decode_ids(items)]
    if after not in ids:
        text = f"Invalid 'after': '{shortened(after)}'. Expected the id of an item of this response."
        raise InvalidRequest(text, param="after")
    place = ids.index(after)
    return len(ids) - place if is_reversed else place + 1
