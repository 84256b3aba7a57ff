"""InvokeEndpointWithResponseStream, as boto3 sees it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from botocore.exceptions import ClientError, EventStreamError

from tests.prompt_server import PLATFORM_HTTP
from tests.waiting import WAIT_S

from .conftest import running
from .workers import Exchange

PARTS = [b'{"generated_text": "', b"h", b"\xc3\xa9", b'\\n"', b"}", b"\n"]


def parts_of(stream) -> list[bytes]:
    return list(each_part(stream))


def each_part(stream) -> Iterator[bytes]:
    """Yield the parts as they arrive; the connection is closed at the end, also after an error."""
    with closing(stream["Body"]) as events:
        for event in events:
            yield event["PayloadPart"]["Bytes"]


async def send_parts(exchange: Exchange) -> None:
    exchange.start(content_type="application/jsonlines", x_amzn_sagemaker_custom_attributes="a=1")
    for part in PARTS:
        exchange.chunk(part)
    exchange.end()


@pytest.mark.parametrize("http", [PLATFORM_HTTP, "httptools"], ids=["short way", "plain ASGI"])
def test_each_chunk_of_the_worker_is_one_payload_part(http):
    with running(http=http) as gateway:
        worker = gateway.serve(send_parts)
        stream = gateway.boto.invoke_endpoint_with_response_stream(
            EndpointName="ep", Body=b'{"stream": true}', Accept="application/jsonlines", ContentType="application/json"
        )
        assert stream["ContentType"] == "application/jsonlines"
        assert stream["InvokedProductionVariant"] == "AllTraffic"
        assert stream["CustomAttributes"] == "a=1"
        headers = stream["ResponseMetadata"]["HTTPHeaders"]
        assert headers["content-type"] == "application/vnd.amazon.eventstream"
        assert headers["x-accel-buffering"] == "no", "nginx would send the stream in one piece"
        assert parts_of(stream) == PARTS
        (asked,) = worker.asked
        assert asked.headers["accept"] == "application/jsonlines"
        assert asked.headers["content-type"] == "application/json"
        assert asked.headers["x-amzn-sagemaker-forwarded-api"] == "InvokeEndpointWithResponseStream"
        assert "x-amzn-sagemaker-accept" not in asked.headers
        gateway.until(gateway.is_idle, "the stream ended")


@pytest.mark.parametrize("http", [PLATFORM_HTTP, "httptools"], ids=["short way", "plain ASGI"])
def test_a_part_arrives_before_the_next_one_is_sent(http):
    taken = threading.Event()

    async def script(exchange: Exchange) -> None:
        exchange.start()
        for part in PARTS:
            taken.clear()
            exchange.chunk(part)
            await exchange.flush()
            await asyncio.get_running_loop().run_in_executor(None, taken.wait, 10)
        exchange.end()

    with running(http=http) as gateway:
        gateway.serve(script)
        got = []
        for part in each_part(gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")):
            got.append(part)
            taken.set()
        assert got == PARTS


def test_a_response_without_chunks_streams_too(gateway):
    async def script(exchange: Exchange) -> None:
        exchange.whole(b"all at once", content_type="text/plain")

    gateway.serve(script)
    stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")
    assert stream["ContentType"] == "text/plain"
    assert b"".join(parts_of(stream)) == b"all at once"


def test_a_response_without_a_body_is_a_stream_without_events(gateway):
    async def script(exchange: Exchange) -> None:
        exchange.start()
        exchange.end()

    gateway.serve(script)
    assert parts_of(gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")) == []


def test_sessions_cannot_be_opened_by_a_stream(gateway):
    gateway.serve()
    with pytest.raises(ClientError, match=r"'sessionId' failed to satisfy constraint"):
        gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x", SessionId="NEW_SESSION")


@pytest.mark.parametrize("http", [PLATFORM_HTTP, "httptools"], ids=["short way", "plain ASGI"])
def test_the_death_of_a_worker_is_an_event_of_its_stream(http):
    async def script(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(b"one")
        await exchange.flush()
        exchange.die()

    with running(http=http) as gateway:
        gateway.serve(script)
        stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")
        got = []
        with pytest.raises(EventStreamError) as caught:
            got.extend(each_part(stream))
        assert caught.value.response["Error"]["Code"] == "ModelStreamError"
        assert "reset or closed" in caught.value.response["Error"]["Message"]
        gateway.until(gateway.is_idle, "the stream ended")
        ((_, counters),) = gateway.gateway.metrics.counters()
        assert counters.streams_broken == 1


def test_a_stream_that_takes_too_long_ends_with_an_error_event():
    async def script(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(b"one")
        await exchange.until_gone()

    with running(stream_timeout_s=2.0) as gateway:  # the first part comes before it
        worker = gateway.serve(script)
        stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")
        parts = each_part(stream)
        assert next(parts) == b"one"
        with pytest.raises(EventStreamError) as caught:
            next(parts)
        assert caught.value.response["Error"]["Code"] == "ModelStreamError"
        assert "within the timeout period" in caught.value.response["Error"]["Message"]
        gateway.until(lambda: worker.num_gone == 1, "the worker saw that its client has gone")


def test_the_error_code_inside_a_stream_is_that_of_aws():
    async def script(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(b"one")
        await exchange.flush()
        exchange.die()

    with running() as gateway:
        gateway.serve(script)
        body = gateway.client.post("/endpoints/ep/invocations-response-stream", content=b"x").content
        assert b'"ErrorCode":"StreamBroken"' in body.replace(b'": "', b'":"')


@pytest.mark.parametrize("http", [PLATFORM_HTTP, "httptools"], ids=["short way", "plain ASGI"])
def test_a_client_that_does_not_read_pauses_its_worker_and_loses_nothing(http):
    chunk, num_chunks = b"x" * 50_000, 400
    is_stuck = threading.Event()

    async def script(exchange: Exchange) -> None:
        exchange.start()
        for number in range(num_chunks):
            exchange.chunk(b"%06d" % number + chunk)
            try:
                async with asyncio.timeout(0.5):
                    await exchange.flush()
            except TimeoutError:
                is_stuck.set()
                await exchange.flush()
        exchange.end()

    with running(http=http) as gateway:
        gateway.serve(script)
        stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x")
        assert is_stuck.wait(WAIT_S), "the worker was never held up"
        parts = parts_of(stream)
        assert [part[:6] for part in parts] == [b"%06d" % number for number in range(num_chunks)]
        assert {len(part) for part in parts} == {50_006}
