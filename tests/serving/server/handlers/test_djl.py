"""`model.py` over HTTP: the acceptance cases of DJL's echo, as its clients see them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.found import find_model
from tests import plain_http
from tests.serving.handlers.support import pool_of
from tests.serving.server.handlers.test_relay import service_for, serving
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
import sys
from djl_python import Input, Output

def pieces():
    for index in range(5):
        yield f"t-{index}\\n"

def handle(inputs: Input):
    if inputs.is_empty():
        return None
    if inputs.contains_key("exception"):
        raise ValueError(inputs.get_as_string("exception"))
    if inputs.contains_key("exit"):
        sys.exit()
    if inputs.contains_key("OOM"):
        raise MemoryError
    if inputs.contains_key("stream"):
        return Output().add_stream_content(pieces(), None)
    outputs = Output()
    for index, each in enumerate(inputs.get_batches()):
        size = inputs.get_batch_size()
        outputs.add(f"{each.get_as_string()} {size}", "data", index if inputs.is_batch() else None)
    return outputs.add_property("content-type", "text/own")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.py").write_text(MODEL)
    (folder / "serving.properties").write_text("batch_size=4\nmax_batch_delay=50\nmaxWorkers=1\n")
    spec = make_spec(find_model(folder, model_name="model-a", env={}))
    async with (
        pool_of(replace(spec, environment={"PATH": "/usr/bin:/bin"})) as pool,
        serving(service_for(pool)) as url,
        plain_http.AsyncClient(base_url=url, timeout=WAIT_S) as client,
    ):
        yield client


async def test_each_request_of_a_batch_gets_its_own_answer(client: httpx.AsyncClient) -> None:
    responses = await asyncio.gather(
        *(client.post("/invocations", content=str(index), headers={"content-type": "text/own"}) for index in range(4))
    )

    # How many come in one batch depends on the load of the machine.
    assert [response.text.split()[0] for response in responses] == ["0", "1", "2", "3"]
    assert {response.headers["content-type"] for response in responses} == {"text/own"}


@pytest.mark.parametrize(
    ("field", "status", "body"),
    [
        ("exception", 424, '{\n  "code":424,\n  "message":"invoke handler failure",\n  "error":"why"\n}'),
        ("OOM", 507, ""),
        ("stream", 200, "t-0\nt-1\nt-2\nt-3\nt-4\n"),
    ],
)
async def test_fields_of_a_form_reach_the_handler(
    client: httpx.AsyncClient, field: str, status: int, body: str
) -> None:
    response = await client.post("/invocations", data={field: "why"})

    assert (response.status_code, response.text) == (status, body)


async def test_a_multipart_field_and_a_query_parameter_are_contents_too(client: httpx.AsyncClient) -> None:
    form = await client.post("/invocations", files={"exception": b"file"})
    query = await client.post("/invocations?exception=query", content=b"x")

    assert [response.json()["error"] for response in (form, query)] == ["file", "query"]


async def test_an_exit_costs_its_own_request_and_the_model_is_healthy_again(client: httpx.AsyncClient) -> None:
    lost = await client.post("/invocations", data={"exit": ""})
    after = await client.post("/invocations", data={"exception": "served"})
    ping = await client.get("/ping")

    assert (lost.status_code, lost.json()["type"]) == (503, "WlmException")
    assert after.json()["error"] == "served"
    assert ping.status_code == 200


async def test_a_request_cannot_choose_the_handler(client: httpx.AsyncClient) -> None:
    response = await client.post("/invocations", content=b"x", headers={"handler": "other"})

    assert response.status_code == 400
    assert response.json()["message"] == "The handler can't be overridden in a request"
