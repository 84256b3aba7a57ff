"""Requests are copied to shadow variants, which never delay or change the answer of a request."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.platform.gateway import capture as capture_module
from headrace.platform.gateway import shadows as shadows_module
from headrace.platform.gateway.metrics import InvocationLabels, InvocationRecord
from headrace.platform.state.routes import Route

from .async_parts import MemoryObjects
from .conftest import Running, running
from .routes import route, variant
from .test_capture import CAPTURE, answer
from .workers import Exchange, Script, Worker, echo

SHADOW = InvocationLabels("ep", "Shadow", "")


@pytest.fixture
def published() -> list[InvocationRecord]:
    return []


@pytest.fixture
def gateway(
    objects: MemoryObjects, published: list[InvocationRecord], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    monkeypatch.setattr(capture_module, "WRITE_S", 0.0)
    with running(objects=objects, draw=lambda: 0.3, publish=lambda record, _: published.append(record)) as made:
        yield made


def put(gateway: Running, script: Script, *, share: float = 1.0, **more: object) -> tuple[Worker, Worker]:
    """Serve an endpoint with a production worker that echoes, and a shadow worker."""
    production, shadow = gateway.worker(answer if "capture" in more else echo), gateway.worker(script)
    gateway.put(shadowed(production, shadow, share=share, **more))
    return production, shadow


def shadowed(production: Worker, shadow: Worker, *, share: float = 1.0, **more: object) -> Route:
    made = route(variant("AllTraffic", [production.url]))
    return replace(made, shadows=(variant("Shadow", [shadow.url], weight=share),), **more)


def ask(gateway: Running, body: bytes = b"x", **more: str) -> bytes:
    answered = gateway.boto.invoke_endpoint(EndpointName="ep", Body=body, **more)
    assert answered["InvokedProductionVariant"] == "AllTraffic"
    content: bytes = answered["Body"].read()
    return content


def stream(gateway: Running, body: bytes = b"x") -> bytes:
    answered = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=body)
    return b"".join(event["PayloadPart"]["Bytes"] for event in answered["Body"])


def counters(gateway: Running) -> tuple[int, int, int]:
    """Return the counts of the shadow variant: copies that ended, that failed, and that were dropped."""
    found = dict(gateway.gateway.metrics.counters()).get(SHADOW)
    if found is None:
        return 0, 0, 0
    return found.invocations, found.errors_4xx + found.errors_5xx, found.copies_dropped


async def never(exchange: Exchange) -> None:
    await exchange.until_gone()


async def loud(exchange: Exchange) -> None:
    exchange.start(content_type="text/plain")
    exchange.chunk(b"another answer")
    exchange.end()


def test_copies_are_sent_by_share_and_counted_for_the_shadow(
    gateway: Running, published: list[InvocationRecord]
) -> None:
    production, shadow = put(gateway, loud)
    assert (ask(gateway, ContentType="text/csv", CustomAttributes="c=1"), stream(gateway)) == (b"x", b"x")
    gateway.until(lambda: counters(gateway) == (2, 0, 0), "both are copied")
    asked, copied = (
        [(each.path, each.body, {**each.headers, "host": ""}) for each in worker.asked]
        for worker in (production, shadow)
    )
    assert asked == copied
    gateway.put(shadowed(production, shadow, share=0.3))  # 0.3 is drawn
    ask(gateway)
    gateway.put(shadowed(production, shadow, share=0.31))
    ask(gateway)
    ask(gateway, SessionId="NEW_SESSION")
    assert gateway.client.get("/endpoints/ep/openai/v1/models").status_code == 200, "no invocation"
    gateway.until(lambda: counters(gateway) == (3, 0, 0), "one more is copied")
    with pytest.raises(gateway.boto.exceptions.ValidationError):
        ask(gateway, TargetVariant="Shadow")
    gateway.until(gateway.is_idle, "all ended")
    assert [record.variant for record in published].count("Shadow") == 3
    assert all(record.first_s and record.model_s for record in published if record.variant == "Shadow")


@pytest.mark.parametrize("how", ["fails", "breaks", "is gone"])
def test_a_shadow_that_fails_changes_no_answer(gateway: Running, how: str) -> None:
    async def fail(exchange: Exchange) -> None:
        if how == "fails":
            exchange.whole(b"no", status="500 Oops")
        else:
            exchange.start()
            exchange.chunk(b"part")
            await exchange.flush()
            exchange.die()

    _, shadow = put(gateway, fail)
    if how == "is gone":
        gateway.run(shadow.stop())
    assert [ask(gateway), stream(gateway)] == [b"x", b"x"]
    gateway.until(lambda: sum(counters(gateway)[:1]) == 2, "both copies ended")
    assert counters(gateway)[1:] == (2, 0)
    assert "shadow.crashed" not in gateway.log.getvalue()
    assert gateway.log.getvalue().count("shadow.failing") == 1


def test_copies_beyond_a_limit_or_without_a_replica_are_dropped(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows_module, "MAX_COPIES", 2)
    monkeypatch.setattr(shadows_module, "MAX_COPIED_BYTES", 8)
    production, shadow = put(gateway, never)
    assert [ask(gateway) for _ in range(5)] == [b"x"] * 5
    assert counters(gateway) == (0, 0, 3)
    gateway.until(lambda: len(shadow.asked) == 2, "two copies arrived")
    gateway.run(shadow.stop())
    gateway.until(lambda: counters(gateway) == (2, 2, 3), "both failed")
    gateway.put(replace(shadowed(production, shadow), shadows=(variant("Shadow", []),)))
    ask(gateway)
    assert counters(gateway) == (2, 2, 4)
    gateway.put(shadowed(production, gateway.worker()))
    ask(gateway, b"too large")
    assert counters(gateway) == (2, 2, 5)


def test_copies_without_an_answer_end_with_the_gateway() -> None:
    with running() as gateway:
        _, shadow = put(gateway, never)
        ask(gateway)
        gateway.until(lambda: shadow.asked, "the copy arrived")
        gateway.run(asyncio.wait_for(gateway.gateway._service.shadows.close(), 5))
        gateway.until(lambda: shadow.num_gone, "it was aborted")


@pytest.mark.parametrize("percentage", [30, 31])
def test_a_copy_is_captured_with_its_request_or_not_at_all(
    gateway: Running, objects: MemoryObjects, percentage: int
) -> None:
    put(gateway, loud, capture=replace(CAPTURE, percentage=percentage))
    stream(gateway)
    if percentage == 30:  # 30 is drawn
        gateway.until(lambda: counters(gateway) == (1, 0, 0), "it is copied")
        return
    gateway.until(lambda: gateway.gateway.metrics.captures_written == 2, "both are written")
    lines = {uri.split("/")[5]: json.loads(body) for uri, (body, _) in objects.objects.items()}
    assert set(lines) == {"AllTraffic", "Shadow"}
    assert lines["Shadow"]["captureData"]["endpointOutput"]["data"] == "YW5vdGhlciBhbnN3ZXI="
    assert lines["AllTraffic"]["captureData"]["endpointOutput"]["encoding"] == "CSV"
    assert len({line["eventMetadata"]["eventId"] for line in lines.values()}) == 1
