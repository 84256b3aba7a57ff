"""
Responses that a proxy stores for the model servers behind it.

The model server gets the whole conversation in one request and stores nothing. Its response is stored on the way back,
with `store` and `previous_response_id` set to what the client sent. Everything else passes unchanged: only the
few events of a stream that have the whole response are decoded, and of those only the top level.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.serving.wire.framing import one_line, to_json
from headrace.serving.wire.openai.responses_items import stored_items
from headrace.serving.wire.openai.stored_responses import NO_ITEMS, StoredResponse, joined

Fields = dict[str, msgspec.Raw]

_ENDED = frozenset({"completed", "incomplete", "failed"})
_TRUE, _FALSE, _NULL = msgspec.Raw(b"true"), msgspec.Raw(b"false"), msgspec.Raw(b"null")
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_WHOLE = re.compile(rb"event: ?response\.(?:queued|created|in_progress|completed|incomplete|failed)\r?\ndata: ?")
"""The beginning of an event that has the whole response."""
_INPUT_NUMBER = re.compile(rb"\binput\[(\d{1,9})\]")

FindPrevious = Callable[[str], StoredResponse]
"""Returns the response of an id; raises `PreviousResponseNotFound`."""
Keep = Callable[[str, StoredResponse], None]
"""Stores a response under its id."""


class _Asked(msgspec.Struct):
    """The part of a request that a proxy reads."""

    input: msgspec.Raw = _NULL
    store: bool | None = None
    previous_response_id: str | None = None


class _Ended(msgspec.Struct):
    id: str
    status: str
    output: msgspec.Raw


_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_ended = msgspec.json.Decoder(_Ended).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedRequest:
    """A request for a response that is stored, or that continues a stored one."""

    body: bytes
    """The body for the model server."""
    input: bytes
    """The request's own input, as JSON."""
    before: bytes
    """The array of items of the stored conversation."""
    previous_response_id: str | None
    is_stored: bool

    def input_items(self, request_id: str) -> bytes | None:
        """
        Return the array of items to store: the whole conversation up to the response.

        None: the request says so, or its input has a form that only the model server understands.
        """
        if not self.is_stored:
            return None
        try:
            return joined((self.before, stored_items(self.input, request_id)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def error_for_client(self, body: bytes) -> bytes:
        """Return a model server's error with the items of `input` numbered as the client numbers them."""
        num_before = len(_decode_items(self.before))

        def own(match: re.Match[bytes]) -> bytes:
            return b"input[%d]" % (int(match[1]) - num_before) if int(match[1]) >= num_before else match[0]

        return _INPUT_NUMBER.sub(own, body) if num_before else body


def read_request(body: bytes, find: FindPrevious) -> ProxiedRequest | None:
    """
    Read a request; None if there is nothing to do, also for a body that the model server will refuse.

    Raises:
        InvalidRequest: the response that it continues is not stored, or has failed.
    """
    try:
        fields, asked = _decode_fields(body), _decode_asked(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if asked.previous_response_id is None and asked.store is False:
        return None
    before = NO_ITEMS
    if asked.previous_response_id is not None:
        before = find(asked.previous_response_id).conversation()
        fields["input"] = msgspec.Raw(_continued(before, bytes(asked.input)))
        del fields["previous_response_id"]
    fields["store"] = _FALSE
    return ProxiedRequest(
        body=to_json(fields),
        input=bytes(asked.input),
        before=before,
        previous_response_id=asked.previous_response_id,
        is_stored=asked.store is not False,
    )


def _continued(before: bytes, own: bytes) -> bytes:
    """Return the conversation with the request's own input; input of another type is for the model server to refuse."""
    if own.startswith(b"["):
        return joined((before, own))
    return joined((before, b'[{"role":"user","content":%b}]' % own)) if own.startswith(b'"') else own


class ResponseRecorder:
    """Relays one response from the model server to the client, and stores it at its end."""

    def __init__(
        self, request: ProxiedRequest, items: bytes | None, keep: Keep, *, created_s: float, max_bytes: int
    ) -> None:
        """
        Create a recorder before the first byte of the response.

        `items` are the input items to store with it; None: it is not stored. An event of more than `max_bytes` is not
        held: it passes unchanged and is not stored.
        """
        self._request = request
        self._items = items
        self._keep = keep
        self._created_s = created_s
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._num_searched = 0

    def whole(self, body: bytes) -> bytes:
        """Return a whole response as the client gets it."""
        try:
            return self._passed_on(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return body

    def feed(self, part: bytes) -> bytes:
        """Return the events that a part of a stream completes, as the client gets them."""
        self._buffer += part
        passed_on: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(self._buffer, max(0, self._num_searched - 3)):
            passed_on.append(self._event(bytes(self._buffer[start : end.end()])))
            start = end.end()
        del self._buffer[:start]
        self._num_searched = len(self._buffer)
        if self._num_searched > self._max_bytes:
            passed_on.append(self.rest())
        return b"".join(passed_on)

    def rest(self) -> bytes:
        """Return what is left of a stream that ended within an event."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._num_searched = 0
        return rest

    def _event(self, event: bytes) -> bytes:
        head = _WHOLE.match(event)
        if head is None:
            return event
        try:
            fields = _decode_fields(event[head.end() :])
            fields["response"] = msgspec.Raw(self._passed_on(bytes(fields["response"])))
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
            return event
        return b"%b%b\n\n" % (head[0], one_line(msgspec.json.encode(fields)))

    def _passed_on(self, response: bytes) -> bytes:
        """Return a response object with the client's own settings; store it if it has ended."""
        fields, ended = _decode_fields(response), _decode_ended(response)
        previous = self._request.previous_response_id
        fields["previous_response_id"] = msgspec.Raw(to_json(previous))
        fields["store"] = _FALSE if self._items is None else _TRUE
        passed_on = to_json(fields)
        if self._items is not None and ended.status in _ENDED:
            entry = StoredResponse(response=passed_on, items=self._items, created_s=self._created_s)
            self._keep(ended.id, entry)
        return passed_on
