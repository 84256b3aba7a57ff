"""
InvokeEndpointWithResponseStream: each chunk of the worker becomes one PayloadPart of an event stream.

Before the first byte a failure has a status; after it, it is an event: `ModelStreamError` where the model or its
connection failed, `InternalStreamFailure` where we did. Source: botocore sagemaker-runtime, shape ResponseStream.
"""

from time import perf_counter

from headrace.gateway import errors
from headrace.gateway.downstream import Downstream
from headrace.gateway.metrics import InvocationRecord
from headrace.gateway.request import Invocation
from headrace.gateway.service import InvocationService, finish
from headrace.http.client import WorkerRequest
from headrace.http.client_response import Answer, AnswerBroken
from headrace.wire.aws import eventstream

CONTENT_TYPE = "application/vnd.amazon.eventstream"


async def stream(
    service: InvocationService, invocation: Invocation, body: bytes, down: Downstream, record: InvocationRecord
) -> None:
    """
    Answer one request.

    Raises:
        AwsError: in its place, as long as nothing was sent.
    """
    query = service.routing_query(invocation, body)
    request = WorkerRequest(headers=invocation.worker_headers(), body=body)
    try:
        async with service.invoke(
            invocation.endpoint, query, request, record, timeout_s=service.config.stream_timeout_s
        ) as answer:
            await service.check_status(answer, invocation.endpoint)
            record.status = 200
            await down.start(200, _headers(service, invocation, record, answer))
            await _relay(answer, down, record)
    except TimeoutError:
        if not down.is_started:
            raise service.texts.timed_out(invocation.endpoint) from None
        record.error = errors.TIME_EXCEEDED_CODE
        down.put(eventstream.model_stream_error(errors.STREAM_TIMED_OUT, errors.TIME_EXCEEDED_CODE))
    except AnswerBroken:
        record.error = errors.STREAM_BROKEN_CODE
        down.put(eventstream.model_stream_error(errors.STREAM_BROKEN, errors.STREAM_BROKEN_CODE))
    await finish(down)


async def fail_stream(down: Downstream, message: str) -> None:
    """End a stream that we have interrupted ourselves."""
    if down.is_finished:
        return
    down.put(eventstream.internal_stream_failure(message))
    await finish(down)


async def _relay(answer: Answer, down: Downstream, record: InvocationRecord) -> None:
    put, frame = down.put, eventstream.payload_part

    def put_part(part: bytes) -> bool:
        if record.first_s is None:
            record.first_s = perf_counter()
        record.num_parts += 1
        return put(frame(part))

    await answer.relay(put_part, down.drain)


def _headers(
    service: InvocationService, invocation: Invocation, record: InvocationRecord, answer: Answer
) -> list[tuple[str, str]]:
    headers = service.answer_headers(invocation, record, answer.headers)
    headers["Content-Type"] = CONTENT_TYPE
    headers["X-Amzn-SageMaker-Content-Type"] = answer.headers.get("content-type", "application/octet-stream")
    return list(headers.items())
