"""
Attributes of the spans of generations, in OpenTelemetry's terms for generative AI; never texts of clients or models.

Sources: OpenTelemetry semantic conventions 1.37, "Generative AI spans"; the `gen_ai.latency.*` names are those of vLLM
(`vllm/tracing`).
"""

from headrace.core.generation import ChatPrompt
from headrace.core.spans import Span
from headrace.core.telemetry import RequestRecord
from headrace.http.spans import DISCONNECTED
from headrace.wire.dialect import ParsedRequest

_FAILED = frozenset({"aborted", "error"})


def describe_request(span: Span, parsed: ParsedRequest, *, model: str) -> None:
    """Record the parameters of a request; `model` is the name of the served model."""
    if not span.is_recording or not parsed.requests:
        return
    first = parsed.requests[0]
    span.describe(
        {
            "gen_ai.provider.name": "headrace",
            "gen_ai.operation.name": _operation(parsed),
            "gen_ai.request.model": first.adapter or model,
            "gen_ai.response.model": model,
        }
    )
    if first.pooling is None:
        sampling = first.sampling
        span.describe(
            {
                "gen_ai.request.choice.count": sampling.n * len(parsed.requests),
                "gen_ai.request.max_tokens": sampling.max_new_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "headrace.stream": parsed.stream,
            }
        )


def _operation(parsed: ParsedRequest) -> str:
    first = parsed.requests[0]
    if first.pooling is not None:
        return "embeddings" if first.pooling.task != "score" else "score"
    return "chat" if isinstance(first.prompt, ChatPrompt) else "text_completion"


def describe_outcome(span: Span, record: RequestRecord) -> None:
    """Record the outcome of a generation: tokens, times, and the reason of a failure."""
    if not span.is_recording:
        return
    span.describe({"headrace.dialect": record.dialect, "gen_ai.latency.e2e": record.total_s})
    if record.first_s is not None:
        _describe_tokens(span, record, record.first_s)
    if record.finish == "disconnected":
        span.fail(DISCONNECTED)
    elif record.status >= 500 or record.finish in _FAILED:
        span.fail(record.error or record.finish or "error")
    elif record.error is not None:
        span.describe({"error.type": record.error})


def _describe_tokens(span: Span, record: RequestRecord, first_s: float) -> None:
    span.describe(
        {
            "gen_ai.usage.input_tokens": record.prompt_tokens or None,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": record.finish_reasons or None,
            "gen_ai.latency.time_to_first_token": record.ttft_s,
            "gen_ai.latency.time_in_model_decode": record.last_s - first_s,
        }
    )
    if record.parsed_s is not None and record.queue_s is not None:
        scheduled_s = record.parsed_s + record.queue_s
        span.describe(
            {
                "gen_ai.latency.time_in_queue": record.queue_s,
                "gen_ai.latency.time_in_model_prefill": max(0.0, first_s - scheduled_s),
            }
        )
        span.add_event("prefill", scheduled_s)
    span.add_event("first_token", first_s)
    span.add_event("last_token", record.last_s)
