"""Invocations are captured to S3 in SageMaker's files and lines, and no request waits for that."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError, EventStreamError

from headrace.platform.gateway import capture as capture_module
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.state.routes import Capture

from .async_parts import MemoryObjects
from .conftest import Running, running
from .routes import route, variant
from .workers import Exchange

CAPTURE = Capture(
    destination="s3://bucket/captured/",
    percentage=100,
    takes_input=True,
    takes_output=True,
    csv_types=("text/csv",),
    json_types=("application/json",),
)
FILE = re.compile(r"s3://bucket/captured/ep/AllTraffic/\d{4}/\d\d/\d\d/\d\d/\d\d-\d\d-\d{3}-[0-9a-f-]{36}\.jsonl")


async def answer(exchange: Exchange) -> None:
    """Answer as the body says: with an error, with a stream that breaks off, or with two parts."""
    if exchange.asked.body == b"fail":
        exchange.whole(b"no", status="400 Bad Request")
        return
    exchange.start(content_type="text/csv; charset=utf-8")
    exchange.chunk(b"1,2\n")
    await exchange.flush()
    if exchange.asked.body == b"break":
        exchange.die()
        return
    exchange.chunk(b"3,\xc3\xa9\n")
    exchange.end()


@pytest.fixture
def gateway(objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(capture_module, "WRITE_S", 0.0)
    with running(objects=objects, draw=lambda: 0.3) as made:
        yield made


def put(gateway: Running, **changes: object) -> None:
    worker = gateway.worker(answer)
    gateway.put(replace(route(variant("AllTraffic", [worker.url])), capture=replace(CAPTURE, **changes)))


def counts(gateway: Running) -> tuple[int, int]:
    return gateway.gateway.metrics.captures_written, gateway.gateway.metrics.captures_lost


def lines(objects: MemoryObjects) -> list[dict]:
    return [json.loads(line) for body, _ in objects.objects.values() for line in body.splitlines()]


def test_input_and_output_are_written_as_sagemaker_writes_them(gateway: Running, objects: MemoryObjects) -> None:
    put(gateway)
    gateway.boto.invoke_endpoint(
        EndpointName="ep", Body=b'{"a": 1}', ContentType="application/json", InferenceId="i-1", CustomAttributes="c=1"
    )
    gateway.until(lambda: counts(gateway) == (1, 0), "it is written")
    ((uri, (_, content_type)),) = objects.objects.items()
    assert FILE.fullmatch(uri), uri
    assert content_type == "application/jsonlines"
    (line,) = lines(objects)
    metadata = line["eventMetadata"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata.pop("inferenceTime"))
    assert len(metadata.pop("eventId")) == 36
    assert metadata == {"customAttributes": ["c=1"], "inferenceId": "i-1"}
    assert (line["eventVersion"], line["captureData"]) == (
        "0",
        {
            "endpointInput": {
                "observedContentType": "application/json",
                "mode": "INPUT",
                "data": '{"a": 1}',
                "encoding": "JSON",
            },
            "endpointOutput": {
                "observedContentType": "text/csv; charset=utf-8",
                "mode": "OUTPUT",
                "data": "1,2\n3,é\n",
                "encoding": "CSV",
            },
        },
    )


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        ({"takes_output": False}, {"endpointInput"}),
        ({"takes_input": False}, {"endpointOutput"}),
        ({"csv_types": (), "json_types": ()}, {"endpointInput", "endpointOutput"}),
    ],
)
def test_sides_and_encodings_are_those_of_the_configuration(
    gateway: Running, objects: MemoryObjects, changes: dict, sides: set[str]
) -> None:
    put(gateway, **changes)
    stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"\xff", ContentType="text/csv")
    assert len(list(stream["Body"])) == 2
    gateway.until(lambda: counts(gateway) == (1, 0), "it is written")
    captured = lines(objects)[0]["captureData"]
    assert set(captured) == sides
    if "endpointInput" in sides:
        assert captured["endpointInput"]["encoding"] == "BASE64", "no text"
        assert base64.b64decode(captured["endpointInput"]["data"]) == b"\xff"
    if "csv_types" in changes:
        assert base64.b64decode(captured["endpointOutput"]["data"]).decode() == "1,2\n3,é\n"


def test_only_whole_answers_within_the_percentage_are_captured(gateway: Running, objects: MemoryObjects) -> None:
    put(gateway)
    with pytest.raises(ClientError):
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"fail")
    stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"break")["Body"]
    with closing(stream), pytest.raises(EventStreamError):
        list(stream)
    gateway.clean_up()
    put(gateway, percentage=30)  # 30 is drawn
    gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    gateway.clean_up()
    put(gateway, percentage=31)
    assert gateway.client.get("/endpoints/ep/openai/v1/models").status_code == 200, "no invocation"
    gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"y", ContentType="text/csv")
    gateway.until(lambda: counts(gateway) == (1, 0), "the last one is written")
    assert [line["captureData"]["endpointInput"]["data"] for line in lines(objects)] == ["y"]
    assert gateway.gateway._service.captures._num_bytes == 0


def test_records_that_cannot_be_kept_or_written_are_counted(
    gateway: Running, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(gateway)
    objects.failure = ObjectFailed("s3://bucket cannot be written: no such bucket")
    gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    gateway.until(lambda: counts(gateway) == (0, 1), "it is lost")
    assert "no such bucket" in gateway.log.getvalue()
    objects.failure = None
    monkeypatch.setattr(capture_module, "MAX_QUEUED_BYTES", 5)
    gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    gateway.until(lambda: counts(gateway) == (0, 2), "it is too large")
    assert gateway.gateway._service.captures._num_bytes == 0


def test_what_waits_is_written_when_the_gateway_stops(objects: MemoryObjects) -> None:
    with running(objects=objects, draw=lambda: 0.0) as gateway:
        put(gateway)
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
        gateway.until(gateway.is_idle, "the request ended")
    assert len(lines(objects)) == 1
