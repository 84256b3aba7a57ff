"""Adapters of a `model.py` with several processes, and the routes that name the model."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest
import pytest_asyncio

from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.pool import HandlerPool
from tests.serving.handlers.support import pool_of, until
from tests.serving.server.handlers.test_relay import service_for, serving
from tests.waiting import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
import json, os, time
from djl_python import Input, Output

adapters = {}

def register_adapter(inputs: Input):
    name = inputs.get_property("name")
    if name == "broken":
        raise ValueError("no such weights")
    options = inputs.get_as_string("rank") if inputs.contains_key("rank") else None
    adapters[name] = [inputs.get_property("src"), options]
    return Output()

def update_adapter(inputs: Input):
    adapters[inputs.get_property("name")] = [inputs.get_property("src"), "updated"]
    return Output()

def unregister_adapter(inputs: Input):
    del adapters[inputs.get_property("name")]
    return Output()

def handle(inputs: Input):
    if inputs.is_empty():
        return None
    time.sleep(0.05)  # so that requests at once are taken by different processes
    return Output().add_as_json({"pid": os.getpid(), "adapters": adapters})
"""


@dataclass
class Scene:
    client: httpx.AsyncClient
    pool: HandlerPool

    async def seen(self) -> dict[int, object]:
        """Return the adapters of each process by its id."""
        found: dict[int, object] = {}
        async with asyncio.timeout(WAIT_S):
            while len(found) < 2:
                responses = await asyncio.gather(*(self.client.post("/invocations", content=b"x") for _ in range(4)))
                found = {response.json()["pid"]: response.json()["adapters"] for response in responses}
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.py").write_text(MODEL)
    (folder / "serving.properties").write_text("minWorkers=2\nmaxWorkers=2\n")
    spec = make_spec(find_model(folder, model_name="m", env={}))
    async with (
        pool_of(replace(spec, environment={"PATH": "/usr/bin:/bin"})) as pool,
        serving(service_for(pool)) as url,
        httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client,
    ):
        await until(lambda: pool.num_ready == 2)
        yield Scene(client, pool)


async def test_every_process_gets_each_change_and_so_does_one_that_is_started_later(scene: Scene) -> None:
    registered = await scene.client.post("/adapters", params={"name": "a", "src": "/a", "rank": "8"})
    assert (registered.status_code, registered.json()) == (200, {"status": "Adapter a registered"})
    assert list((await scene.seen()).values()) == [{"a": ["/a", "8"]}] * 2

    victim = scene.pool.workers[0].child
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    await until(
        lambda: scene.pool.num_ready == 2 and victim.pid not in {w.child and w.child.pid for w in scene.pool.workers}
    )
    assert list((await scene.seen()).values()) == [{"a": ["/a", "8"]}] * 2

    updated = await scene.client.post("/models/m/adapters/a/update", params={"src": "/b"})
    listed = await scene.client.get("/adapters")
    assert updated.json() == {"status": "Adapter a updated"}
    assert list((await scene.seen()).values()) == [{"a": ["/b", "updated"]}] * 2
    assert listed.json() == {"adapters": [{"name": "a", "src": "/b"}]}

    gone = await scene.client.delete("/models/m/adapters/a")
    assert gone.json() == {"status": "Adapter a unregistered"}
    assert list((await scene.seen()).values()) == [{}] * 2
    assert not scene.pool.for_every_child


async def test_an_adapter_that_the_code_cannot_load_is_not_kept(scene: Scene) -> None:
    broken = await scene.client.post("/adapters", params={"name": "broken", "src": "/x"})
    listed = await scene.client.get("/models/m/adapters")

    assert (broken.status_code, broken.json()["error"]) == (424, "no such weights")
    assert listed.json() == {"adapters": []}
    assert not scene.pool.for_every_child


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "message"),
    [
        ("GET", "/adapters/none", 400, "BadRequestException", "The adapter none was not found"),
        ("DELETE", "/adapters/none", 400, "BadRequestException", "The adapter none was not found"),
        ("POST", "/adapters", 400, "BadRequestException", "`name` is missing"),
        ("POST", "/models/other/adapters", 404, "ModelNotFoundException", "Model or workflow not found: other"),
        ("POST", "/predictions/other", 404, "ModelNotFoundException", "Model or workflow not found: other"),
    ],
)
async def test_errors_have_djls_format(
    scene: Scene, method: str, path: str, status: int, kind: str, message: str
) -> None:
    response = await scene.client.request(method, path)

    body = response.json()
    assert (response.status_code, body["code"], body["type"]) == (status, status, kind)
    assert body["message"].startswith(message)


async def test_a_body_of_very_many_values_is_refused_before_it_is_decoded(scene: Scene) -> None:
    response = await scene.client.post("/adapters", content=b'{"name":[' + b"[]," * 100_000 + b"[]]}")
    assert (response.status_code, response.json()["type"]) == (413, "RequestEntityTooLargeException")


@pytest.mark.parametrize("path", ["/predictions/m", "/models/m/invoke"])
async def test_a_path_may_name_the_model(scene: Scene, path: str) -> None:
    assert "pid" in (await scene.client.post(path, content=b"x")).json()
