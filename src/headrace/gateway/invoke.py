"""InvokeEndpoint: the worker's response in one piece, so that every failure has a status."""

from time import perf_counter

from headrace.gateway.metrics import InvocationRecord
from headrace.gateway.request import Invocation
from headrace.gateway.service import InvocationService
from headrace.http.client import ClientRequest
from headrace.http.exchange import Exchange


async def invoke(
    service: InvocationService, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord
) -> None:
    """
    Answer one request.

    Raises:
        AwsError: the request failed; nothing has been sent.
    """
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
