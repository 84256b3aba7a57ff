"""The log line of each request to an endpoint."""

from headrace.core.telemetry import get_logger
from headrace.gateway.metrics import InvocationRecord


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
