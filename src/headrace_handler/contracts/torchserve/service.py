"""The contract of TorchServe: load a handler, and call it with batches."""

import importlib
import json
import logging
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace_handler.client_data import decode_text
from headrace_handler.contract import Call, Item, Load, LoadFailed, Mode, Part
from headrace_handler.contracts.torchserve.loader import Handle, add_envelope, load_handler
from headrace_handler.contracts.torchserve.responses import Responses

logger = logging.getLogger(__name__)

DEFAULT_METRICS: Final = Path(__file__).with_name("metrics.json")


class TorchServe:
    """A handler behind TorchServe's contract. One context lives as long as the process, because handlers extend it."""

    _handle: Handle
    _context: Any

    def load(self, load: Load) -> None:
        """
        Import the handler and initialize it.

        Raises:
            LoadFailed: 507 for a lack of memory, else 500.
        """
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
