"""The log line of each request to an endpoint, and the attributes and events of its span."""

from headrace.core.telemetry import get_logger
from headrace.core.tracing import Span
from headrace.platform.gateway import openai, request
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.serving.http.spans import DISCONNECTED, describe_response
from headrace.serving.wire.unknown_routes import OPENAI_METHODS


def log_invocation(record: InvocationRecord) -> None:
    """Log one line per request: 5xx as errors, failures of the model and of the caller as warnings."""

    def ms(until_s: float | None) -> float | None:
        return None if until_s is None else round((until_s - record.started_s) * 1e3, 1)

    facts: dict[str, object] = {
        "request_id": record.request_id,
        "api": record.api,
        "endpoint": record.endpoint,
        "variant": record.variant,
        "worker": record.worker,
        "status": record.status,
        "asked_ms": ms(record.asked_s),
        "ttft_ms": ms(record.first_s),
        "total_ms": ms(record.ended_s),
        "parts": record.num_parts,
        "bytes": record.num_bytes,
    }
    optional = {
        "error": record.error,
        "model_status": record.model_status if record.model_status != record.status else 0,
        "tries": record.num_tries if record.num_tries > 1 else 0,
        "component": record.component,
        "held_ms": round(record.held_s * 1e3, 1),
        "inference_id": record.inference_id,
        "sdk_attempt": record.attempt,
        "disconnected": record.is_gone,
    }
    facts |= {name: value for name, value in optional.items() if value}
    logger = get_logger()
    level = logger.error if record.status >= 500 else logger.warning if record.error else logger.info
    level("invocation.finished", **facts)


ASYNC_RUN = "async invocation"
"""Name of the span of an asynchronous invocation while the model answers it."""


def end_span(span: Span, record: InvocationRecord, *, method: str, path: str) -> None:
    if span.is_recording:
        describe_invocation(span, record)
        describe_response(span, method=method, route=route_of(path), status=record.status)
    span.end()


def route_of(path: str) -> str:
    """Return a path with names as parameters; empty for a path that is not served, as clients choose those freely."""
    if request.match(path) is not None:
        return f"/endpoints/{{EndpointName}}/{path.rstrip('/').rpartition('/')[2]}"
    asked = openai.match(path)
    if asked is None or asked.path not in OPENAI_METHODS:
        return ""
    if asked.endpoint is None:
        return asked.path
    component = "" if asked.component is None else "/inference-components/{ComponentName}"
    return f"/endpoints/{{EndpointName}}{component}/openai{asked.path}"


def describe_invocation(span: Span, record: InvocationRecord) -> None:
    """Record where a request went, what it waited for, and why it failed."""
    span.describe(
        {
            "headrace.api": record.api,
            "headrace.endpoint": record.endpoint,
            "headrace.variant": record.variant,
            "headrace.component": record.component,
            "headrace.worker": record.worker,
            "headrace.worker.status": record.model_status or None,
            "headrace.tries": record.num_tries or None,
            "headrace.held_seconds": record.held_s or None,
        }
    )
    events = (("worker.chosen", record.asked_s), ("worker.answered", record.head_s), ("first_part", record.first_s))
    for name, at_s in events:
        if at_s is not None:
            span.add_event(name, at_s)
    if record.is_gone:
        span.fail(DISCONNECTED)
    elif record.error is not None and (record.status >= 500 or record.status == 200):
        span.fail(record.error)
    elif record.error is not None:
        span.describe({"error.type": record.error})
