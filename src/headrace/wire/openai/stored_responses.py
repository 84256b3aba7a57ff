"""
Stored responses of the Responses API: their entries, the interface of a store, and a store in memory.

An entry has the whole conversation before its response, so that the eviction or deletion of an earlier response never
breaks a later one. It is JSON: a conversation is continued by joining arrays, without decoding them.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest, NotFound

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
        """
        Return the array of the input items and the output, which the next response continues.

        Raises:
            InvalidRequest: the response has failed.
        """
        found = _decode_output(self.response)
        if found.status == "failed":
            text = "The response that 'previous_response_id' names has failed. Continue the one before it."
            raise InvalidRequest(text, param="previous_response_id")
        return joined((self.items, bytes(found.output)))


class ResponseStore(Protocol):
    """A store of responses by their keys. Its methods are thread-safe."""

    def add(self, key: ResponseKey, entry: StoredResponse) -> None:
        """Keep a response."""
        ...

    def get(self, key: ResponseKey, *, now_s: float) -> StoredResponse | None:
        """Return a response; None if it is not stored."""
        ...

    def delete(self, key: ResponseKey, *, now_s: float) -> bool:
        """Delete a response; False if it is not stored."""
        ...


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
    """
    Return the response that a `previous_response_id` names.

    Raises:
        PreviousResponseNotFound: it is not stored.
    """
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
