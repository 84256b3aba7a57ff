"""TorchServe's and KServe's routes over a child that runs a handler."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve import make_spec
from headrace.serving.handlers.torchserve_models import TorchServeModels
from headrace.serving.server.handlers.service import TorchServeService
from headrace.serving.server.torchserve_routes import torchserve_routes
from headrace.serving.settings.loading import load_settings
from headrace.serving.wire.torchserve.management import Registration
from tests import plain_http
from tests.headrace_handler.torchserve_models import write_model
from tests.serving.server.handlers.test_relay import serving
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLER = """
    import os, sys
    from ts.handler_utils.utils import send_intermediate_predict_response
    from ts.utils.util import PredictionException

    class Service:
        def initialize(self, ctx):
            self.num_calls = 0

        def handle(self, data, ctx):
            self.num_calls += 1
            return [self.answer(row, index, ctx) for index, row in enumerate(data)]

        def answer(self, row, index, ctx):
            text = row["body"] if isinstance(row["body"], str) else row["body"].decode()
            if text == "599":
                raise PredictionException("Some Prediction Error", 599)
            if text == "exit":
                os._exit(3)
            if text.startswith("stream"):
                for word in text.split():
                    ids = {index: ctx.request_ids[index]}
                    send_intermediate_predict_response([word] * (index + 1), ids, "", 200, ctx)
                if "fail" in text:
                    raise ValueError
                return ""
            ctx.set_response_header(index, "dummy", "1")
            return {
                "body": text,
                "url_path": ctx.get_request_header(index, "url_path"),
                "explain": ctx.get_request_header(index, "explain"),
                "query": {k: v.decode() for k, v in row.items() if k != "body"},
            }
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    folder = write_model(tmp_path_factory.mktemp("models") / "noop", HANDLER)
    spec = make_spec(find_model(folder, model_name="endpoint", env={}, family="torchserve"))
    spec = replace(spec, environment={"PATH": "/usr/bin:/bin"}, load_timeout_s=WAIT_S)
    models = TorchServeModels(no_models)
    settings, _ = load_settings({"model": "noop"}, {})
    service = TorchServeService(settings, models, is_ready=True)
    await models.load(spec, url="noop.mar")
    try:
        async with (
            serving(service, torchserve_routes(service)) as url,
            plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client,
        ):
            yield client
    finally:
        await models.close(deadline_s=0)


async def no_models(registration: Registration) -> HandlerSpec:
    raise SettingsError(f"{registration.url} is not expected here.")


@pytest.mark.parametrize(
    ("path", "url_path", "explain"),
    [
        ("/predictions/noop", "", "False"),
        ("/predictions/endpoint", "", "False"),
        ("/predictions/noop/1.0", "", "False"),
        ("/predictions/noop/1.0/a/b", "a/b", "False"),
        ("/explanations/noop", "", "True"),
        ("/v1/models/noop:predict", "", "False"),
        ("/v1/models/noop:explain", "", "True"),
        ("/v2/models/noop/infer", "", "False"),
        ("/invocations", None, None),
        ("/models/noop/invoke", None, None),
        ("/noop/predict", None, None),
        ("/noop/1.0/predict", None, None),
    ],
)
async def test_every_route_reaches_the_handler(
    client: httpx.AsyncClient, path: str, url_path: str | None, explain: str | None
) -> None:
    response = await client.post(f"{path}?q=1", content=b"x")

    assert response.status_code == 200, response.text
    query = {} if url_path is not None else {"q": "1"}
    assert response.json() == {"body": "x", "url_path": url_path, "explain": explain, "query": query}
    assert response.headers["dummy"] == "1"
    assert "content-type" not in response.headers


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/predictions/other", "ModelNotFoundException"),
        ("/predictions/noop/9", "ModelVersionNotFoundException"),
        ("/predictions/", "ResourceNotFoundException"),
        ("/v1/models/other:predict", "ModelNotFoundException"),
    ],
)
async def test_another_model_is_not_found(client: httpx.AsyncClient, path: str, kind: str) -> None:
    response = await client.post(path, content=b"x")

    assert (response.status_code, response.json()["type"]) == (404, kind)


async def test_a_link_in_a_page_of_another_site_runs_no_model(client: httpx.AsyncClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

    assert (await client.get("/predictions/noop", headers=link)).status_code == 403
    assert (await client.get("/predictions/noop", headers=link | {"sec-fetch-site": "none"})).status_code == 200


async def test_kserves_questions_are_answered(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ping")).json() == {"status": "Healthy"}
    assert (await client.get("/v1/models/noop")).json() == {"name": "noop", "ready": True}
    assert (await client.get("/v2/health/ready")).json() == {"ready": True}
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2")).json()["name"] == "Torchserve"
    assert (await client.post("/v2/models/noop/versions/1/infer", content=b"x")).status_code == 501


async def test_metrics_have_what_the_handler_reports(client: httpx.AsyncClient) -> None:
    await client.post("/predictions/noop", content=b"x")
    async with asyncio.timeout(WAIT_S):  # its line may come after the response
        while 'PredictionTime{Level="Model",ModelName="endpoint"}' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.05)


async def test_streamed_parts_are_chunks(client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = b"POST /predictions/noop HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\nconnection: close\r\n\r\n"
    writer.write(head + b"stream a b")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"ts_stream_next: true" in head
    assert body == b"6\r\nstream\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"


async def test_a_failure_in_a_stream_is_told_in_band_and_breaks_the_connection(client: httpx.AsyncClient) -> None:
    received = b""
    with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 -- the error comes after the last chunk
        async with client.stream("POST", "/predictions/noop", content=b"stream fail") as response:
            async for chunk in response.aiter_raw():
                received += chunk
    assert received.startswith(b"streamfail\n{")
    assert b'"message": "Prediction failed"' in received


async def test_failures_have_torchserves_status_and_text_and_the_next_request_is_served(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/predictions/noop", content=b"599")
    assert response.status_code == 599
    assert response.json() == {"code": 599, "type": "InternalServerException", "message": "Some Prediction Error"}

    response = await client.post("/predictions/noop", content=b"exit")
    assert (response.status_code, response.json()["message"]) == (500, "Worker died.")
    async with asyncio.timeout(WAIT_S):
        while (await client.post("/predictions/noop", content=b"x")).status_code != 200:
            await asyncio.sleep(0.05)
