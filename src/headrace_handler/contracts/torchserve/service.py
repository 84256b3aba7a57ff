"""The contract of TorchServe: load a handler, call it with batches, and send its results, whole or streamed."""

import importlib
import io
import json
import logging
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace_handler.client_data import decode_text
from headrace_handler.contract import Call, Cancelled, Item, Load, LoadFailed, Mode, Part, error_body
from headrace_handler.contracts.torchserve.loader import Handle, add_envelope, load_handler

logger = logging.getLogger(__name__)

_JSON_HEADERS: Final = (("content-type", "application/json"),)
NOT_SERIALIZABLE: Final = "Unsupported model output data type."


class Unserializable(Exception):
    """A result has a type that no response can carry."""


def encode(value: Any) -> bytes | bytearray:
    """
    Encode a result: bytes and text as they are, tensors by `torch.save`, all else as JSON.

    Raises `Unserializable`: JSON cannot express the value.
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


DEFAULT_METRICS: Final = Path(__file__).with_name("metrics.json")


class TorchServe:
    """A handler behind TorchServe's contract. One context lives as long as the process, because handlers extend it."""

    _handle: Handle
    _context: Any

    def load(self, load: Load) -> None:
        """Import the handler and initialize it. Raises `LoadFailed`: 507 for a lack of memory, else 500."""
        logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
        self._decodes = load.options.get("decode_input_request", "true") == "true"
        try:
            self._context = _make_context(load)
            self._sequence_headers = sequence_headers_of(self._context, load.model_config)
            self._is_continuous = bool(load.model_config.get("continuousBatching"))
            handle, initialize = load_handler(load.entry, load.model_dir)
            envelope = load.options.get("service_envelope")
            self._handle = add_envelope(handle, envelope) if envelope else handle
            initialize(self._context)
        except MemoryError as error:
            raise LoadFailed(507, "System out of memory") from error
        except Exception as error:
            if isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise LoadFailed(507, "System out of memory") from error
            raise LoadFailed(500, f"Load model {load.model_name} failed: {type(error).__name__}: {error}") from error

    def call(self, call: Call) -> None:
        """Call the handler with a batch, in the continuous mode until each request's criterion stops it."""
        processor_class = importlib.import_module("ts.context").RequestProcessor
        call_items = _with_distinct_ids(call.items)
        headers = [read_headers(item, call.mode, self._sequence_headers) for item in call_items]
        processors = [processor_class(of_item) for of_item in headers]
        responses = Responses(call_items, processors)
        if call.mode not in {"predict", "explain", "describe"}:
            responses.fail_all(405, f"TorchServe handlers have no mode {call.mode!r}.")
            return
        data = [read_data(item, decode=self._decodes) for item in call_items]
        if not self._is_continuous:
            self._step(call_items, data, processors, responses)
            return
        # Continuous batching: the handler is called again with the requests that have not ended, without their data.
        running = list(zip(call_items, data, processors, strict=True))
        while running:
            items, step_data, step_processors = zip(*running, strict=True)
            self._step(items, list(step_data), step_processors, responses)
            running = [
                (item, {}, processor_class(processor.get_request_properties()))
                for item, _, processor in running
                if not responses.has_left(item.request_id)
            ]

    def _step(self, items: Sequence[Item], data: list[Any], processors: Sequence[Any], responses: Responses) -> None:
        context, ids = self._context, {index: item.request_id for index, item in enumerate(items)}
        context.request_ids, context.request_processor, context.cl_socket = ids, list(processors), responses
        context.metrics.request_ids = ids
        start = time.perf_counter()
        try:
            results = self._handle(data, context)
        except MemoryError:
            logger.exception("System out of memory")
            responses.fail_all(507, "Out of resources")
            return
        except Exception as error:
            logger.exception("Invoking custom service failed.")
            responses.fail_all(*_describe(error))
            return
        if not isinstance(results, list):
            logger.warning("model: %s, Invalid return type: %s.", context.model_name, type(results))
            responses.fail_all(503, "Invalid model predict output")
        elif len(results) != len(items):
            logger.warning(
                "model: %s, number of batch response mismatched, expect: %d, got: %d.",
                context.model_name,
                len(items),
                len(results),
            )
            responses.fail_all(503, "number of batch response mismatched")
        else:
            context.metrics.add_time("PredictionTime", round((time.perf_counter() - start) * 1000, 2))
            self._send(ids, results, responses)

    def _send(self, ids: dict[int, str], results: list[Any], responses: Responses) -> None:
        """Send a step's results: the last ones of their requests, unless a stopping criterion says that more follow."""
        criteria = self._context.stopping_criteria if self._is_continuous else None
        try:
            verdicts = {index: criteria[index](results[index]) for index in ids} if criteria else {}
        except Exception as error:
            logger.exception("A stopping criterion failed.")
            responses.fail_all(*_describe(error))
            return
        more = {index for index, stops in verdicts.items() if stops is not None and not stops}
        if more:
            responses.send_intermediate(results, {index: ids[index] for index in more}, "", 200)
        responses.complete({ids[index]: result for index, result in enumerate(results) if index not in more})


def _with_distinct_ids(items: Sequence[Item]) -> list[Item]:
    """Number the requests of a batch that have the same id, which clients choose: handlers address responses by it."""
    counts = Counter(item.request_id for item in items)
    return [
        replace(item, request_id=f"{item.request_id}-{index}") if counts[item.request_id] > 1 else item
        for index, item in enumerate(items)
    ]


def _describe(error: Exception) -> tuple[int, str]:
    """Return the status and text of an exception of a handler."""
    if isinstance(error, importlib.import_module("ts.utils.util").PredictionException):
        return error.error_code, error.message
    if "CUDA" in str(error):
        return 507, "Out of resources"
    return 503, "Prediction failed"


def _make_context(load: Load) -> Any:
    metrics_file = load.options.get("metrics_config") or str(DEFAULT_METRICS)
    metrics = importlib.import_module("ts.metrics.metric_cache_yaml_impl").MetricsCacheYamlImpl(metrics_file)
    metrics.model_name = load.model_name
    metrics.initialize_cache()
    metrics.set_request_ids(str(uuid.uuid4()))  # for what the handler measures while it loads
    return importlib.import_module("ts.context").Context(
        load.model_name,
        str(load.model_dir),
        json.loads(json.dumps(dict(load.manifest))),
        load.batch_size,
        load.device,
        importlib.import_module("ts").__version__,
        load.options.get("limit_max_image_pixels", "true").lower() == "true",
        metrics,
        dict(load.model_config),
    )


def read_data(item: Item, *, decode: bool) -> dict[str, Any]:
    """
    Return the parts of a request by name; a body that is not a form is called `body`.

    Without `decode` (`TS_DECODE_INPUT_REQUEST`), JSON and text are bytearrays, too.
    """
    data: dict[str, Any] = {}
    if item.path.startswith("/"):  # all routes but `/predictions` and similar ones pass on the query
        data |= {name: bytearray(value, "utf-8") for name, value in item.query}
    data.update((part.name or "body", _value(part, decode=decode)) for part in item.parts)
    return data


def read_headers(item: Item, mode: Mode, sequence_headers: tuple[str, str] | None) -> dict[str, Any]:
    """
    Return the headers of a request with those that TorchServe adds.

    `sequence_headers` are the names of the headers with a sequence's id and its start, for models that batch by
    sequence: a request without an id begins a sequence.
    """
    headers: dict[str, Any] = {part.name or "body": {"content-type": _mime_type(part)} for part in item.parts}
    headers |= dict(item.headers)
    if mode == "describe":
        headers["describe"] = "True"
    elif not item.path.startswith("/"):
        headers |= {"url_path": item.path, "explain": str(mode == "explain")}
    elif mode == "explain":
        headers["explain"] = "True"
    if sequence_headers is not None:
        id_header, start_header = sequence_headers
        if not any(name.lower() == id_header.lower() and value for name, value in item.headers):
            headers |= {id_header: f"ts-seq-{uuid.uuid4()}", start_header: "true"}
    return headers


def sequence_headers_of(context: Any, model_config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of the headers of sequences if the model batches by sequence."""
    if not model_config.get("sequenceBatching"):
        return None
    return context.header_key_sequence_id, context.header_key_sequence_start


def _value(part: Part, *, decode: bool) -> Any:
    mime_type = _mime_type(part)
    try:
        if decode and mime_type.lower() == "application/json":
            return json.loads(decode_text(part.content, part.content_type))
        if decode and mime_type.lower().startswith("text"):
            return decode_text(part.content, part.content_type)
    except (ValueError, RecursionError):
        logger.warning("The content of type %s cannot be decoded; the handler gets the bytes.", mime_type)
    return part.content


def _mime_type(part: Part) -> str:
    return (part.content_type or "").partition(";")[0].strip()
