"""
Stored responses of the Responses API: their entries, a store in memory, and the routes of one response.

An entry has the whole conversation before its response, so that the eviction or deletion of an earlier response never
breaks a later one. It is JSON: a conversation is continued by joining arrays, without decoding them.
Server and gateway share the routes: return a response, delete it, list its input, cancel it.

Source: OpenAI API reference, "Responses"; "List input items".
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, NotFound
from headrace.serving.wire.framing import invalid, to_json

NO_ITEMS: Final = b"[]"
_ENTRY_BYTES = 1024
"""Estimated memory of an entry besides its JSON."""

KEPT = (
    "A server keeps responses in memory, for --stored-responses-age-s and up to --stored-responses-bytes together, "
    "unless their request had 'store': false."
)
"""The end of the errors for a response that is not stored."""


class PreviousResponseNotFound(InvalidRequest):
    """The response that `previous_response_id` names is not stored (any more)."""

    code = "previous_response_not_found"


class ResponseKey(NamedTuple):
    """The key of a stored response. Callers with different access keys never see each other's responses."""

    owner: str
    """The id of the access key that created the response; empty where callers are not distinguished."""
    response_id: str


class _Output(msgspec.Struct):
    output: msgspec.Raw
    status: str


_decode_output = msgspec.json.Decoder(_Output).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response and the conversation before it, as JSON."""

    response: bytes
    items: bytes
    """The array of input items, those of earlier responses included."""
    created_s: float

    @property
    def num_bytes(self) -> int:
        """The memory that the entry counts for."""
        return len(self.response) + len(self.items) + _ENTRY_BYTES

    def conversation(self) -> bytes:
        """Return the array of input items and output, which the next response continues. Raises `InvalidRequest`."""
        found = _decode_output(self.response)
        if found.status == "failed":
            text = "The response that 'previous_response_id' names has failed. Continue the one before it."
            raise InvalidRequest(text, param="previous_response_id")
        return joined((self.items, bytes(found.output)))


class ResponseStore(Protocol):
    """A store of responses by their keys. Its methods are thread-safe."""

    def add(self, key: ResponseKey, entry: StoredResponse) -> None:
        """Keep a response."""

    def get(self, key: ResponseKey, *, now_s: float) -> StoredResponse | None:
        """Return a response; None if it is not stored."""

    def delete(self, key: ResponseKey, *, now_s: float) -> bool:
        """Delete a response; False if it is not stored."""


class ResponseMemory:
    """Responses in memory, bounded in size and age; the least recently used is evicted first."""

    def __init__(self, *, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._entries: OrderedDict[ResponseKey, StoredResponse] = OrderedDict()
        """The least recently used first."""
        self._keys_by_age: dict[ResponseKey, None] = {}
        """Keys in the order of storage, so that an access visits expired entries only."""
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: ResponseKey, entry: StoredResponse) -> None:
        """Keep a response, and evict others for it; one that is larger than the whole memory is not kept."""
        with self._lock:
            self._remove(key)
            if entry.num_bytes > self._max_bytes:
                return
            self._expire(entry.created_s)
            self._entries[key] = entry
            self._keys_by_age[key] = None
            self.num_bytes += entry.num_bytes
            while self.num_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def get(self, key: ResponseKey, *, now_s: float) -> StoredResponse | None:
        """Return a response and mark it as used; None if it is not stored."""
        with self._lock:
            self._expire(now_s)
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def delete(self, key: ResponseKey, *, now_s: float) -> bool:
        """Delete a response; False if it is not stored."""
        with self._lock:
            self._expire(now_s)
            return self._remove(key)

    def _expire(self, now_s: float) -> None:
        oldest_s = now_s - self._max_age_s
        while self._keys_by_age and self._entries[next(iter(self._keys_by_age))].created_s < oldest_s:
            self._remove(next(iter(self._keys_by_age)))

    def _remove(self, key: ResponseKey) -> bool:
        entry = self._entries.pop(key, None)
        self._keys_by_age.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
        return entry is not None


def previous_response(store: ResponseStore, key: ResponseKey, *, now_s: float) -> StoredResponse:
    """Return the response that a `previous_response_id` names. Raises `PreviousResponseNotFound`: it is not stored."""
    entry = store.get(key, now_s=now_s)
    if entry is None:
        text = f"Previous response with id '{shortened(key.response_id)}' not found. {KEPT} Send all items as 'input'."
        raise PreviousResponseNotFound(text, param="previous_response_id")
    return entry


def response_not_found(response_id: str) -> NotFound:
    """Return the error for a route of a response that is not stored."""
    return NotFound(f"Response with id '{shortened(response_id)}' not found. {KEPT}")


def joined(arrays: Sequence[bytes]) -> bytes:
    """Return one JSON array with the items of several."""
    return b"[%b]" % b",".join(filter(None, (array.strip()[1:-1].strip() for array in arrays)))


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
        """Return the response. Raises `NotFound`: it is not stored."""
        found = self.store.get(self.key, now_s=self.now_s)
        if found is None:
            raise response_not_found(self.key.response_id)
        return found


Action = Callable[[ResponseCall], bytes]
"""Returns the body of the answer; raises `HeadraceError`."""


def retrieve(call: ResponseCall) -> bytes:
    entry = call.entry()
    if call.query.get("stream", "false").lower() not in {"false", "0", ""}:
        text = "'stream' is not supported here: a stored response is complete. Leave it out."
        raise InvalidRequest(text, param="stream")
    return entry.response


def delete(call: ResponseCall) -> bytes:
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
    Render one page of a JSON array of items, oldest first, of which only the page is decoded.

    `limit` is 1 to 100, `order` is `asc` or `desc`, `after` the id of the last item of the page before. Raises
    `InvalidRequest` for other values.
    """
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_ITEMS):
        raise invalid("limit", f"'{shortened(limit)}'. Expected a whole number from 1 to {MAX_ITEMS}")
    if order not in {"asc", "desc"}:
        raise invalid("order", f"'{shortened(order)}'. Expected 'asc' or 'desc'")
    listed = _decode_items(items)
    if order == "desc":
        listed.reverse()
    if after is not None:
        ids = [item.id for item in _decode_ids(items)]
        if after not in ids:
            raise invalid("after", f"'{shortened(after)}'. Expected the id of an item of this response")
        place = ids.index(after)
        listed = listed[len(ids) - place if order == "desc" else place + 1 :]
    page = listed[: int(limit)]
    first, last = (_decode_id(page[0]).id, _decode_id(page[-1]).id) if page else (None, None)
    return to_json(
        {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(page) < len(listed)}
    )
