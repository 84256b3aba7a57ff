"""`inference.py` over HTTP: the bodies and types that SageMaker's clients send and expect."""

import io
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import numpy as np
import pytest
import pytest_asyncio

from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.sagemaker import make_spec
from tests import plain_http
from tests.serving.handlers.support import pool_of
from tests.serving.server.handlers.test_relay import service_for, serving
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAM = """
class Sum:
    def predict(self, rows):
        if rows.shape[1] > 3:
            raise ValueError("too many columns")
        return rows.sum(axis=1)

def model_fn(model_dir):
    return Sum()

def execution_parameters_fn():
    return {"MaxConcurrentTransforms": 2}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "inference.py").write_text(PROGRAM)
    environment = {"PATH": "/usr/bin:/bin", "SAGEMAKER_PROGRAM": "inference.py"}
    spec = make_spec(find_model(folder, model_name="model-a", env=environment, family="sklearn"))
    async with (
        pool_of(replace(spec, environment=environment)) as pool,
        serving(service_for(pool)) as url,
        plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client,
    ):
        yield client


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(array))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/csv", b"1,2\n3,4"),
        ("application/json", b"[[1, 2], [3, 4]]"),
        ("application/x-npy", npy([[1.0, 2], [3, 4]])),
    ],
)
async def test_csv_json_and_npy_are_read_and_written(client: httpx.AsyncClient, content_type: str, body: bytes) -> None:
    async def invoke(accept: str) -> httpx.Response:
        return await client.post("/invocations", content=body, headers={"content-type": content_type, "accept": accept})

    as_json, as_csv, as_npy = [await invoke(accept) for accept in ("*/*", "text/csv", "application/x-npy")]

    assert (as_json.json(), as_json.headers["content-type"]) == ([3, 7], "application/json")
    assert (as_csv.text, as_csv.headers["content-type"]) == ("3.0\n7.0\n", "text/csv; charset=utf-8")
    assert np.load(io.BytesIO(as_npy.content)).tolist() == [3, 7]


async def test_errors_have_the_status_and_type_of_the_image(client: httpx.AsyncClient) -> None:
    unknown = await client.post("/invocations", content=b"1", headers={"content-type": "image/png"})
    failed = await client.post("/invocations", content=b"1,2,3,4", headers={"content-type": "text/csv"})

    assert (unknown.status_code, unknown.json()["error"]) == (415, "UnsupportedFormatError")
    assert (failed.status_code, failed.headers["content-type"]) == (500, "text/html; charset=utf-8")


async def test_health_and_the_parameters_of_batch_transform_are_told(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ping")).json() == {"status": "Healthy"}
    assert (await client.get("/execution-parameters")).json() == {"MaxConcurrentTransforms": 2}
