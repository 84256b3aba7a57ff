"""Requests for a model of a multi-model endpoint."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.platform.cluster.launcher import NoGrants
from headrace.platform.cluster.model_host.protocol import (
    REASON_HEADER,
    STATUSES,
    TIMING_HEADER,
    ModelTiming,
    model_id,
    parse_timing,
    render_timing,
)
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.routing import RoutingQuery, choose
from headrace.platform.state.routes import Route
from headrace.serving.artifacts.sources import GrantedObject, ObjectGrant, ObjectLocation

from .conftest import Running, running
from .routes import route, variant
from .workers import Exchange, Worker

PREFIX = "s3://b/models/"
LOADED = ModelTiming(wait=5000, download=1000, load=3900, unload=(70, 80))


@dataclass
class Grants(NoGrants):
    """Grants all locations but those with `missing`."""

    def for_uri(self, uri: str) -> ObjectGrant:
        if "missing" in uri:
            return ObjectGrant(uri=uri, error=f"{uri} does not exist.")
        stored = GrantedObject(location=ObjectLocation("b", "k"), etag="e", num_bytes=7, url="http://signed")
        return ObjectGrant(uri=uri, endpoint="http://s3", objects=(stored,))


async def instance(exchange: Exchange) -> None:
    """A model host that knows a model after its registration, and fails as a model's name says."""
    asked, known = exchange.asked, exchange.worker.__dict__.setdefault("known", {})
    if asked.path == "/models":
        known[json.loads(asked.body)["model_name"]] = json.loads(asked.body)
        exchange.whole(b"{}")
        return
    found = known.get(asked.path.split("/")[2])
    reason = "unknown" if found is None else found["url"].rpartition("/")[2].removesuffix(".tar.gz")
    if reason in STATUSES:
        exchange.whole(b'{"message": "no"}', status=f"{STATUSES[reason]} No", **{REASON_HEADER: reason})
    else:
        exchange.whole(asked.body, **{TIMING_HEADER: render_timing(LOADED), "content-type": "text/plain"})


@dataclass
class Multi:
    """A gateway with a multi-model endpoint `ep` and a common one `single`."""

    gateway: Running
    worker: Worker
    records: list[InvocationRecord]

    def invoke(self, **more: Any) -> Any:
        return self.gateway.boto.invoke_endpoint(**({"EndpointName": "ep", "Body": b"hi"} | more))

    def refused(self, **more: Any) -> tuple[str, str]:
        with pytest.raises(self.gateway.boto.exceptions.ClientError) as error:
            self.invoke(**more)
        return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]


def many(*urls: str, **more: Any) -> Route:
    return route(replace(variant("AllTraffic", list(urls)), model_prefix=PREFIX), **more)


@pytest.fixture(scope="module")
def multi() -> Iterator[Multi]:
    records: list[InvocationRecord] = []
    with running(grants=Grants(), publish=lambda record, _route: records.append(record)) as gateway:
        worker = gateway.worker(instance)
        gateway.put(many(worker.url), route(variant("AllTraffic", [worker.url]), endpoint="single"))
        yield Multi(gateway, worker, records)


def test_a_model_is_registered_with_a_grant_once_and_invoked(multi: Multi) -> None:
    multi.worker.asked.clear()
    for _ in range(2):
        assert multi.invoke(TargetModel="team/once.tar.gz")["Body"].read() == b"hi"
    name = model_id("team/once.tar.gz")
    paths = [asked.path for asked in multi.worker.asked]
    assert paths == [f"/models/{name}/invoke", "/models", *[f"/models/{name}/invoke"] * 2]
    registration = json.loads(multi.worker.asked[1].body)
    assert (registration["url"], registration["lazy"]) == (f"{PREFIX}team/once.tar.gz", True)
    assert registration["grants"][0]["objects"][0]["url"] == "http://signed"
    assert multi.worker.asked[-1].headers["x-amzn-sagemaker-target-model"] == "team/once.tar.gz"
    waits_s = [
        float(asked.headers["x-headrace-model-wait-s"]) for asked in multi.worker.asked if "invoke" in asked.path
    ]
    assert 50 < waits_s[1] < waits_s[0] <= 57, "the time for a registration counts"
    assert 50 < waits_s[2] <= 57
    multi.gateway.until(lambda: len(multi.records) >= 2, "requests were counted")
    assert multi.records[-1].target_timing == LOADED


def test_the_header_names_the_model_of_a_stream(multi: Multi) -> None:
    answer = multi.gateway.client.post(
        "/endpoints/ep/invocations-response-stream",
        content=b"hi",
        headers={"X-Amzn-SageMaker-Target-Model": "team/a.tar.gz"},
    )
    assert (answer.status_code, b"hi" in answer.content) == (200, True)


def test_clients_of_openai_name_the_model_behind_the_endpoint(multi: Multi) -> None:
    def chat(model: str) -> Any:
        return multi.gateway.client.post("/v1/chat/completions?a=1", json={"model": model})

    assert chat("ep/team/words.gguf").json() == {"model": "ep/team/words.gguf"}
    assert multi.worker.asked[-1].path == f"/models/{model_id('team/words.gguf')}/v1/chat/completions?a=1"
    multi.gateway.client.post("/api/chat", json={"model": "ep/team/words.gguf:latest"})
    assert multi.worker.asked[-1].path == f"/models/{model_id('team/words.gguf')}/api/chat"
    assert chat("ep/not-ready.tar.gz").status_code == 429
    assert chat("ep/not-loaded.tar.gz").status_code >= 500
    for model in ("ep/missing.tar.gz", "ep", "ep/a\nb"):
        assert chat(model).status_code == 400


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        ({}, "ValidationError", "is missing a target model header"),
        (
            {"EndpointName": "single", "TargetModel": "a"},
            "ValidationError",
            "Endpoint single is not a multi-model endpoint and does not support target model header.",
        ),
        (
            {"TargetModel": "missing.tar.gz"},
            "ValidationError",
            "Failed to download model data(bucket: b, key: models/missing.tar.gz). Please ensure",
        ),
        ({"TargetModel": "not-fetched.tar.gz"}, "ValidationError", "Failed to download model data of the target model"),
        ({"TargetModel": "not-ready.tar.gz"}, "ModelNotReadyException", "still being loaded"),
        ({"TargetModel": "not-loaded.tar.gz"}, "ModelError", "Received server error (500) from primary"),
        ({"TargetModel": "no-memory.tar.gz"}, "ModelError", "Received server error (507) from primary"),
    ],
)
def test_a_model_that_is_not_loaded_is_an_error_of_aws(
    multi: Multi, asked: dict[str, str], code: str, message: str
) -> None:
    found = multi.refused(**asked)
    assert (found[0], message in found[1]) == (code, True), found


def test_a_model_goes_to_few_instances() -> None:
    workers = [f"http://w{number}" for number in range(6)]
    routed = many(*workers)

    def chosen(target: str, loads: dict[str, int] | None = None) -> str:
        return choose(routed, RoutingQuery(target_model=target), loads or {}, lambda: 0.5).replica.worker

    targets = [f"m{number}.tar.gz" for number in range(60)]
    assert {target: chosen(target) for target in targets} == {target: chosen(target) for target in targets}
    assert {chosen(target) for target in targets} == set(workers), "models are spread over instances"
    first = chosen("m0.tar.gz")
    assert chosen("m0.tar.gz", {first: 100}) != first, "a busy model goes to a second instance"


def test_timings_are_read_as_they_are_written() -> None:
    assert parse_timing(render_timing(LOADED)) == LOADED
    for broken in ("", "wait;x=y;=1", "wait=\u00b2;load=-1", f"unload={'9' * 5000}"):
        assert parse_timing(broken) == ModelTiming(wait=0)
