"""Conversion of a handler's results to responses, whole or streamed."""

import io
import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_handler.contract import Cancelled, Item, error_body

logger = logging.getLogger(__name__)

_JSON_HEADERS: Final = (("content-type", "application/json"),)
NOT_SERIALIZABLE: Final = "Unsupported model output data type."


class Unserializable(Exception):
    """A result has a type that no response can carry."""


def encode(value: Any) -> bytes | bytearray:
    """
    Encode a result: bytes and text as they are, tensors by `torch.save`, all else as JSON.

    Raises:
        Unserializable: JSON cannot express the value.
    """
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, str):
        return value.encode("utf-8")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()
    try:
        return json.dumps(value, indent=2).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise Unserializable from error


class Responses:
    """The responses to one batch. Handlers send parts from threads of their own, so a lock guards each step."""

    def __init__(self, items: Sequence[Item], processors: Sequence[Any]) -> None:
        self._items = {item.request_id: (item, processor) for item, processor in zip(items, processors, strict=True)}
        self._ended: set[str] = set()
        self._locks = {request_id: threading.Lock() for request_id in self._items}

    def send_intermediate(self, ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int) -> None:
        """
        Send a part of the response to each request of the map; wait for slow clients.

        The handler is not told about a disconnect: it may have started a thread whose output must be read to its end.
        """
        ids = list(req_id_map.values())
        if code != 200:
            self.fail(ids, code, message)
            return
        try:
            parts = [encode(value) for value in _pick(ret, req_id_map)]
        except Unserializable:
            logger.warning("Unable to serialize model output.", exc_info=True)
            self.fail(ids, 503, NOT_SERIALIZABLE)
            return
        for request_id, part in zip(ids, parts, strict=True):
            with self._locks[request_id]:
                self._send(request_id, part, more=True)

    def complete(self, results: Mapping[str, Any]) -> None:
        """Send the last part of responses, or the whole of those that were not streamed, by request."""
        try:
            parts = {request_id: encode(value) for request_id, value in results.items()}
        except Unserializable:
            logger.warning("Unable to serialize model output.", exc_info=True)
            self.fail(results, 503, NOT_SERIALIZABLE)
            return
        for request_id, part in parts.items():
            with self._locks[request_id]:
                if request_id not in self._ended:
                    self._send(request_id, part, more=False)
                    self._ended.add(request_id)

    def fail(self, request_ids: Sequence[str] | Mapping[str, Any], status: int, message: str) -> None:
        """Answer requests with an error; a response that has begun ends with the error as its last part."""
        status = 507 if status == 413 else status  # as TorchServe: its client takes 413 for a lack of memory
        for request_id in request_ids:
            with self._locks[request_id]:
                if request_id not in self._ended:
                    self._ended.add(request_id)
                    self._fail(self._items[request_id][0], _valid_status(status), message)

    def fail_all(self, status: int, message: str) -> None:
        """Answer all requests that have no whole response yet with an error."""
        self.fail(list(self._items), status, message)

    def has_left(self, request_id: str) -> bool:
        """Return whether the client has disconnected or has its whole response."""
        return request_id in self._ended or self._items[request_id][0].reply.is_cancelled

    def _send(self, request_id: str, part: bytes | bytearray, *, more: bool) -> None:
        item, processor = self._items[request_id]
        if request_id in self._ended:
            return
        try:
            if not item.reply.has_head:
                if more:
                    processor.add_response_property("ts_stream_next", "true")
                status = processor.get_response_status_code()
                phrase = processor.get_response_status_phrase() or ""
                item.reply.head(_valid_status(status), _headers(processor), phrase=str(phrase))
            if not more:
                item.reply.end(part)
            elif part:
                item.reply.data(part)
        except Cancelled:
            self._ended.add(request_id)

    @staticmethod
    def _fail(item: Item, status: int, message: str) -> None:
        body = error_body(status, "InternalServerException", message)
        try:
            if item.reply.has_head:
                item.reply.data(b"\n" + body)
                item.reply.abort(message)
            else:
                item.reply.head(status, _JSON_HEADERS)
                item.reply.end(body)
        except Cancelled:
            pass


def _pick(ret: Sequence[Any], req_id_map: Mapping[int, str]) -> list[Any]:
    """Return the parts by the map's keys; for keys beyond the list by position, as a part of a batch may be sent."""
    if all(key < len(ret) for key in req_id_map):
        return [ret[key] for key in req_id_map]
    if len(ret) != len(req_id_map):
        raise ValueError(f"{len(ret)} parts are sent to {len(req_id_map)} requests; expected one for each.")
    return list(ret)


def _headers(processor: Any) -> list[tuple[str, str]]:
    """Return the response's headers; of names that differ in case the last one counts."""
    by_name = {str(name).lower(): (str(name), str(value)) for name, value in processor.get_response_headers().items()}
    return [(name, value) for name, value in by_name.values() if name.lower() != "content-type" or value]


def _valid_status(status: Any) -> int:
    """Return a status that HTTP can carry with a body; handlers may set any number."""
    if isinstance(status, int) and 200 <= status <= 999:
        return int(status)
    logger.error("The handler's status is %r; expected 200 to 999. The response has 500.", status)
    return 500
