"""InvokeEndpoint and InvokeEndpointWithResponseStream: the response in one piece, or as an event stream."""

from time import perf_counter

from headrace.platform.gateway import errors
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.request import Invocation
from headrace.platform.gateway.service import InvocationService, finish, relay
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse, ResponseBroken
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.aws import eventstream
from headrace.serving.wire.framing import UNBUFFERED_HEADERS


async def invoke(
    service: InvocationService, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord
) -> None:
    """Answer with the worker's response in one piece, so that every failure has a status (`AwsError`)."""
    query = service.routing_query(invocation, body)
    request = ClientRequest(headers=invocation.worker_headers(), body=body)
    try:
        async with service.invoke(
            invocation.endpoint, query, request, record, timeout_s=service.config.invocation_timeout_s
        ) as response:
            await service.check_status(response, invocation.endpoint, exchange.hold)
            content = await service.read(response, invocation.endpoint, exchange.hold)
    except TimeoutError:
        raise service.texts.timed_out(invocation.endpoint) from None
    record.first_s = perf_counter()
    record.num_parts = 1
    record.status = 200
    headers = service.response_headers(invocation, record, response.headers)
    headers["Content-Type"] = response.headers.get("content-type", "application/octet-stream")
    await exchange.respond(200, headers.items(), content)


CONTENT_TYPE = "application/vnd.amazon.eventstream"


async def stream(
    service: InvocationService, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord
) -> None:
    """
    Answer with an event stream, one PayloadPart for each chunk of the worker.

    Before the first byte a failure has a status (`AwsError`); after it, it is an event: `ModelStreamError` if the model
    or its connection failed, `InternalStreamFailure` if the platform did. Source: botocore sagemaker-runtime, shape
    ResponseStream.
    """
    query = service.routing_query(invocation, body)
    request = ClientRequest(headers=invocation.worker_headers(), body=body)
    try:
        async with service.invoke(
            invocation.endpoint, query, request, record, timeout_s=service.config.stream_timeout_s
        ) as response:
            await service.check_status(response, invocation.endpoint, exchange.hold)
            record.status = 200
            await exchange.start(200, _headers(service, invocation, record, response))
            await relay(response, exchange, record, eventstream.payload_part)
    except TimeoutError:
        if not exchange.is_started:
            raise service.texts.timed_out(invocation.endpoint) from None
        record.error = errors.TIME_EXCEEDED_CODE
        exchange.put(eventstream.model_stream_error(errors.STREAM_TIMED_OUT, errors.TIME_EXCEEDED_CODE))
    except ResponseBroken:
        record.error = errors.STREAM_BROKEN_CODE
        exchange.put(eventstream.model_stream_error(errors.STREAM_BROKEN, errors.STREAM_BROKEN_CODE))
    await finish(exchange)


async def fail_stream(exchange: Exchange, message: str) -> None:
    """End a stream that the platform interrupts, unless it has ended."""
    if exchange.is_finished:
        return
    exchange.put(eventstream.internal_stream_failure(message))
    await finish(exchange)


def _headers(
    service: InvocationService, invocation: Invocation, record: InvocationRecord, response: ClientResponse
) -> list[tuple[str, str]]:
    headers = service.response_headers(invocation, record, response.headers)
    headers["Content-Type"] = CONTENT_TYPE
    headers["X-Amzn-SageMaker-Content-Type"] = response.headers.get("content-type", "application/octet-stream")
    return [*headers.items(), *UNBUFFERED_HEADERS]
