"""The model host over HTTP: SageMaker's contract, and requests that load their model."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from headrace.core.errors import InvalidRequest
from headrace.platform.cluster.launcher import ModelPrefix, WorkerSpec
from headrace.platform.cluster.model_host.app import ModelHostApp
from headrace.platform.cluster.model_host.protocol import REASON_HEADER, TIMING_HEADER, Registration, parse_timing
from headrace.platform.cluster.model_host.serve import hosted_model
from headrace.serving.artifacts.sources import GrantedObject, ObjectGrant, ObjectLocation
from headrace.serving.http.client import HttpClient
from tests.platform.gateway.workers import Exchange, Worker

from .hosts import HostScene

SPEC = WorkerSpec(
    name="host",
    environment={"NAME": "m", "SAGEMAKER_MULTI_MODEL": "true"},
    models=ModelPrefix(prefix="/models/"),
    memory_bytes=1,
    threads=3,
)
LIMIT_BYTES = 400


async def model_server(exchange: Exchange) -> None:
    """Echo a body, in chunks if a client asks for that."""
    if "x-stream" in exchange.asked.headers:
        exchange.start(**{"x-model": "yes"})
        exchange.chunk(b"one")
        exchange.chunk(b"two")
        exchange.end()
    else:
        exchange.whole(exchange.asked.body, status="201 Created", **{"x-model": "yes"})


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker(model_server)
    await worker.start()
    yield worker
    await worker.stop()


@pytest.fixture
async def scene(worker: Worker) -> HostScene:
    scene = HostScene()
    scene.machine.url = worker.url
    return scene


@pytest.fixture
async def client(scene: HostScene) -> AsyncIterator[httpx.AsyncClient]:
    host, upstream = scene.host(), HttpClient()

    async def metrics() -> bytes:
        return b"a 1\n"

    app = ModelHostApp(
        host=host,
        client=upstream,
        hosted=lambda registration: hosted_model(SPEC, registration, LIMIT_BYTES),
        metrics=metrics,
        token="t",
    )
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": "Bearer t"}
    async with httpx.AsyncClient(transport=transport, base_url="http://host", headers=headers) as made:
        yield made
    await host.close()
    await upstream.close()


async def test_the_contract_loads_lists_invokes_and_unloads(client: httpx.AsyncClient, worker: Worker) -> None:
    body = {"model_name": "a", "url": "/models/a"}
    assert (await client.get("/models")).json() == {"models": []}
    assert (await client.post("/models", json=body)).status_code == 200
    assert (await client.post("/models", json=body)).status_code == 409
    described = {"modelName": "a", "modelUrl": "/models/a"}
    assert (await client.get("/models")).json() == {"models": [described]}
    assert (await client.get("/models/a")).json() == described
    answer = await client.post("/models/a/invoke", content=b"hi")
    assert (answer.status_code, answer.content, answer.headers["x-model"]) == (201, b"hi", "yes")
    assert TIMING_HEADER not in answer.headers, "it did not wait"
    chat = await client.post("/models/a/v1/chat/completions?b=%20", content=b"hi")
    assert (chat.content, worker.asked[-1].path) == (b"hi", "/v1/chat/completions?b=%20")
    assert (await client.delete("/models/a")).status_code == 200
    for call in (client.delete, client.get):
        assert (await call("/models/a")).status_code == 404
    assert (await client.get("/metrics")).text == "a 1\n"


async def test_a_request_loads_a_registered_model_and_streams(client: httpx.AsyncClient) -> None:
    unknown = await client.post("/models/a/invoke", content=b"hi")
    assert (unknown.status_code, unknown.headers[REASON_HEADER]) == (404, "unknown")
    assert (await client.post("/models", json={"model_name": "a", "url": "/models/a", "lazy": True})).is_success
    assert (await client.get("/models")).json() == {"models": []}
    answer = await client.post(
        "/models/a/invoke", content=b"hi", headers={"x-stream": "1", "x-headrace-model-wait-s": "9"}
    )
    assert answer.content == b"onetwo"
    assert parse_timing(answer.headers[TIMING_HEADER]).load is not None


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/models", b"{", 400),
        ("POST", "/models", b'{"model_name": "a", "url": "/other/a"}', 400),
        ("POST", "/models", b'{"model_name": "a", "url": "/models/../a"}', 400),
        ("PUT", "/models", b"", 404),
        ("GET", "/models/a/invoke", b"", 404),
        ("GET", "/nothing", b"", 404),
    ],
)
async def test_other_requests_are_refused(
    client: httpx.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    answer = await client.request(method, path, content=content)
    assert (answer.status_code, answer.json()["code"]) == (status, status)


async def test_requests_need_the_token_but_for_health_checks(client: httpx.AsyncClient) -> None:
    client.headers["Authorization"] = "Bearer other"
    assert (await client.get("/ping")).status_code == 200
    assert (await client.get("/models")).status_code == 401


async def test_a_lost_connection_loads_the_model_again(client: httpx.AsyncClient, scene: HostScene) -> None:
    scene.machine.url, url = "http://127.0.0.1:1", scene.machine.url
    await client.post("/models", json={"model_name": "a", "url": "/models/a"})
    scene.machine.url = url
    scene.machine.crash(scene.machine.started[0])
    assert (await client.post("/models/a/invoke", content=b"hi")).content == b"hi"
    assert len(scene.machine.started) == 2


def test_a_model_is_a_worker_with_the_rest_of_the_specification() -> None:
    stored = GrantedObject(location=ObjectLocation("b", "k"), etag="e", num_bytes=90, url="u")
    grant = ObjectGrant(uri="s3://b/k", objects=(stored,))
    spec = replace(SPEC, models=ModelPrefix(prefix="s3://b/"))
    registration = Registration(model_name="a", url="s3://b/k.tar.gz", grants=(grant,))
    made = hosted_model(spec, registration, LIMIT_BYTES)
    assert (made.num_bytes, made.spec.models, made.spec.grants, made.spec.threads) == (90, None, (grant,), 3)
    assert made.spec.environment == {"NAME": "m"}
    assert made.spec.artifacts[0].is_archive
    assert made.spec.memory_bytes == 180, "twice its files, as that is more than a quarter of the limit"
    assert hosted_model(spec, replace(registration, grants=()), LIMIT_BYTES).spec.memory_bytes == LIMIT_BYTES // 4
    with pytest.raises(InvalidRequest, match="is not below"):
        hosted_model(SPEC, registration, LIMIT_BYTES)
