"""TorchServe's management API over children that run handlers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve import make_spec
from headrace.serving.handlers.torchserve_config import ManagementOptions
from headrace.serving.handlers.torchserve_models import TorchServeModels
from headrace.serving.http.asgi import Message
from headrace.serving.http.errors import CLIENT_GONE_STATUS
from headrace.serving.server.handlers.metrics import metrics_app
from headrace.serving.server.torchserve_routes import management_app
from headrace.serving.wire.torchserve.management import Registration
from tests.headrace_handler.torchserve_models import write_model
from tests.waiting import WAIT_S

HANDLER = """
    class Handler:
        def initialize(self, ctx): ...
        def handle(self, data, ctx):
            if ctx.get_request_header(0, "describe") == "True":
                return [{"kind": "test"}]
            return ["OK"] * len(data)
"""
BROKEN = "def handle(data, ctx): raise RuntimeError('Initialize failure.')"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API; models are folders in `tmp_path` by their names."""

    async def find(registration: Registration) -> HandlerSpec:
        folder = tmp_path / registration.url
        if not folder.is_dir():
            raise SettingsError(f"Model not found at: {registration.url}")
        spec = make_spec(find_model(folder, model_name="m", env={"TS_MIN_WORKERS": "1"}))
        return replace(spec, load_timeout_s=60)

    write_model(tmp_path / "noop", HANDLER)
    write_model(tmp_path / "noop2", HANDLER, modelName="noop", modelVersion="2.0")
    write_model(tmp_path / "broken", BROKEN)
    models = TorchServeModels(find)
    app = Starlette(routes=[Mount("/metrics-api", metrics_app(models)), Mount("/", management_app(models))])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://management") as client:
        try:
            yield client
        finally:
            await models.close(deadline_s=0)


def status_of(response: httpx.Response, code: int = 200) -> str:
    assert response.status_code == code, response.text
    status: str = response.json()["status"]
    return status


async def describe(api: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    response = await api.get(path)
    assert response.status_code == 200, response.text
    described: list[dict[str, Any]] = response.json()
    return described


async def test_a_model_is_registered_scaled_described_and_removed(api: httpx.AsyncClient) -> None:
    registered = await api.post("/models", params={"url": "noop"})
    assert status_of(registered) == (
        'Model "noop" Version: 1.0 registered with 0 initial workers. '
        "Use scale workers API to add workers for the model."
    )
    assert (await api.get("/v1/models/noop")).json() == {"name": "noop", "ready": False}
    assert (await api.get("/models/noop?customized=true")).status_code == 503

    scaled = await api.put("/models/noop", params={"min_worker": 1, "synchronous": "true"})
    assert status_of(scaled) == "Workers scaled to 1 for model: noop"
    assert (await api.get("/v1/models/noop")).json() == {"name": "noop", "ready": True}

    (model,) = await describe(api, "/models/noop?customized=true")
    assert (model["modelName"], model["modelVersion"], model["minWorkers"]) == ("noop", "1.0", 1)
    assert model["customizedMetadata"] == {"kind": "test"}
    assert [worker["status"] for worker in model["workers"]] == ["READY"]
    assert model["workers"][0]["pid"] > 1
    assert model["workers"][0]["memoryUsage"] > 0
    assert model["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}

    metrics = (await api.get("/metrics-api/metrics")).text
    assert 'PredictionTime{Level="Model",ModelName="noop"}' in metrics
    assert "ts_inference_requests_total{hostname=" in metrics
    named = (await api.get("/metrics-api/metrics?name[]=PredictionTime")).text
    assert "PredictionTime" in named
    assert "ts_inference_requests" not in named

    assert status_of(await api.delete("/models/noop")) == 'Model "noop" unregistered'
    missing = await api.get("/models/noop")
    assert missing.status_code == 404
    assert missing.json() == {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: noop"}


async def test_versions_share_a_name_and_one_is_the_default(api: httpx.AsyncClient) -> None:
    for url in ("noop", "noop2"):
        await api.post("/models", params={"url": url})

    assert [model["modelVersion"] for model in await describe(api, "/models/noop")] == ["1.0"]
    assert len(await describe(api, "/models/noop/all")) == 2
    assert (await api.delete("/models/noop/1.0")).status_code == 403
    assert status_of(await api.put("/models/noop/2.0/set-default")) == (
        'Default version successfully updated for model "noop" to "2.0"'
    )
    assert [model["modelVersion"] for model in await describe(api, "/models/noop")] == ["2.0"]
    assert (await api.get("/models")).json() == {"models": [{"modelName": "noop", "modelUrl": "noop2"}]}
    again = await api.post("/models", params={"url": "noop"})
    assert (again.status_code, again.json()["type"]) == (409, "ConflictStatusException")
    assert (await api.get("/models/noop/9")).json()["type"] == "ModelVersionNotFoundException"


async def test_a_model_that_cannot_be_loaded_is_not_registered(api: httpx.AsyncClient) -> None:
    failed = await api.post("/models", json={"url": "broken", "initial_workers": 1, "synchronous": True})

    assert failed.status_code == 500
    assert failed.json()["message"] == "Failed to start workers for model broken version: 1.0"
    assert (await api.get("/models")).json() == {"models": []}


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/models", 400, "BadRequestException"),
        ("POST", "/models?url=../x", 404, "ModelNotFoundException"),
        ("POST", "/models?url=x&batch_size=-7", 400, "BadRequestException"),
        ("POST", "/models?url=other", 400, "ModelException"),
        ("PATCH", "/models", 405, "MethodNotAllowedException"),
        ("PUT", "/models/m", 404, "ModelNotFoundException"),
        ("DELETE", "/models/m", 404, "ModelNotFoundException"),
        ("GET", "/other", 404, "ResourceNotFoundException"),
    ],
)
async def test_bad_requests_have_torchserves_exceptions(
    api: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    response = await api.request(method, path)

    assert (response.status_code, json.loads(response.content)["type"]) == (status, kind)


async def test_more_workers_than_a_machine_has_are_refused(api: httpx.AsyncClient) -> None:
    await api.post("/models", params={"url": "noop"})

    refused = await api.put("/models/noop?min_worker=1000")
    assert refused.json()["message"] == "max_worker is 1000; expected at most 64."
    refused = await api.put("/models/noop?min_worker=2&max_worker=1")
    assert refused.json()["message"] == "max_worker cannot be less than min_worker."


async def test_models_are_fixed_where_the_model_api_is_off() -> None:
    async def find(registration: Registration) -> HandlerSpec:
        raise AssertionError(f"{registration.url} is not looked for")

    app = management_app(TorchServeModels(find, ManagementOptions(accepts_changes=False)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://management") as client:
        assert (await client.get("/models")).json() == {"models": []}
        for method, path in (("POST", "/models?url=noop"), ("DELETE", "/models/noop")):
            response = await client.request(method, path)
            assert (response.status_code, response.json()["type"]) == (405, "MethodNotAllowedException")


async def test_another_version_is_the_default_when_the_first_one_fails_to_load(
    api: httpx.AsyncClient, tmp_path: Path
) -> None:
    slow = f"import time\n{BROKEN.replace('raise', 'time.sleep(2); raise')}"
    write_model(tmp_path / "slow", slow, modelName="noop", modelVersion="3.0")
    registering = asyncio.create_task(api.post("/models?url=slow&initial_workers=1&synchronous=true"))
    async with asyncio.timeout(WAIT_S):
        while not (await describe_all(api)):
            await asyncio.sleep(0.01)
    assert (await api.post("/models?url=noop2&initial_workers=1&synchronous=true")).status_code == 200
    assert (await registering).status_code == 500
    (model,) = await describe(api, "/models/noop")
    assert model["modelVersion"] == "2.0"
    assert [listed["modelName"] for listed in await describe_all(api)] == ["noop"]


async def describe_all(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await api.get("/models")).json()["models"]
    return listed


async def test_a_server_that_shuts_down_takes_no_more_models(tmp_path: Path) -> None:
    async def find(registration: Registration) -> HandlerSpec:
        await models.close(deadline_s=0)
        return make_spec(find_model(tmp_path / registration.url, model_name="m", env={}))

    write_model(tmp_path / "noop", HANDLER)
    models = TorchServeModels(find)
    transport = httpx.ASGITransport(management_app(models))
    async with httpx.AsyncClient(transport=transport, base_url="http://management") as client:
        response = await client.post("/models?url=noop&initial_workers=1")
    assert (response.status_code, response.json()["type"]) == (503, "ServiceUnavailableException")
    assert models.all() == []


async def test_a_client_that_leaves_within_its_body_is_no_error() -> None:
    """The server logs a traceback for each exception that an application raises."""

    async def find(registration: Registration) -> HandlerSpec:
        raise AssertionError(f"{registration.url} is not looked for")

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/models", "query_string": b""}
    headers = [(b"content-type", b"application/json")]
    await management_app(TorchServeModels(find))({**scope, "headers": headers}, receive, send)
    assert sent[0]["status"] == CLIENT_GONE_STATUS
