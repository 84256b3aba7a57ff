"""`headrace serve` on a store of TorchServe's archives: its three addresses, as clients of TorchServe use them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.headrace_handler.torchserve_models import pack, write_model
from tests.waiting import WAIT_S

from .conftest import Served, free_port, serve

HANDLER = """
    import os
    from ts.torch_handler.base_handler import BaseHandler

    class Handler(BaseHandler):
        def initialize(self, ctx):
            self.initialized = True

        def handle(self, data, ctx):
            ctx.metrics.add_counter("Answers", len(data))
            version = ctx.manifest["model"]["modelVersion"]
            return [{"version": version, "secret": os.environ.get("SECRET")}] * len(data)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    work = tmp_path_factory.mktemp("work")
    for name, manifest in {
        "echo": {"modelName": "echo"},
        "echo2": {"modelName": "echo", "modelVersion": "2.0"},
        "other": {"modelName": "other"},
    }.items():
        pack(write_model(work / name, HANDLER, **manifest), folder / f"{name}.mar")
    pack(write_model(work / "broken", "def handle(data, ctx): raise RuntimeError('no')"), folder / "broken.mar")
    return folder


class TorchServeClient:
    """The three addresses of a server."""

    def __init__(self, served: Served, management: int, metrics: int) -> None:
        self.served = served
        self.predictions = httpx.Client(base_url=served.url, timeout=WAIT_S)
        self.management = httpx.Client(base_url=f"http://127.0.0.1:{management}", timeout=WAIT_S)
        self.metrics = httpx.Client(base_url=f"http://127.0.0.1:{metrics}", timeout=WAIT_S)

    def close(self) -> None:
        for client in (self.predictions, self.management, self.metrics):
            client.close()

    def status(self, method: str, path: str, code: int = 200) -> str:
        """Return the sentence of the management API."""
        response = self.management.request(method, path)
        assert response.status_code == code, response.text
        status: str = response.json()["status"]
        return status

    def predict(self, path: str) -> Any:
        """Return the body of a prediction, or of its error."""
        return self.predictions.post(path, content=b"x").json()


@pytest.fixture(scope="module")
def client(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeClient]:
    folder = tmp_path_factory.mktemp("serve")
    management, metrics = free_port(), free_port()
    config = folder / "ts.properties"
    config.write_text(
        f"management_address=http://127.0.0.1:{management}\nmetrics_address=http://127.0.0.1:{metrics}\n"
        "load_models=echo.mar\njob_queue_size=7\nblacklist_env_vars=SECRET\nvmargs=-Xmx1g\n"
    )
    env = {"TS_CONFIG_FILE": str(config), "SECRET": "x", "HEADRACE_HOME": str(folder)}
    served = serve(store, folder, "--handler", "torchserve", env=env)
    client = TorchServeClient(served, management, metrics)
    try:
        yield client
    finally:
        client.close()
        assert served.stop() == 0


def test_config_properties_are_applied_and_what_has_no_effect_is_named(client: TorchServeClient) -> None:
    assert client.predict("/predictions/echo") == {"version": "1.0", "secret": None}
    (model,) = client.management.get("/models/echo").json()
    assert (model["modelUrl"], model["loadedAtStartup"]) == ("echo.mar", True)
    assert model["jobQueueStatus"]["remainingCapacity"] == 7
    assert "TorchServe's vmargs has no effect: there is no JVM." in client.served.log_path.read_text()


def test_a_model_is_registered_served_scaled_and_unregistered(client: TorchServeClient) -> None:
    assert client.predict("/predictions/other") == {
        "code": 404,
        "type": "ModelNotFoundException",
        "message": "Model not found: other",
    }
    registered = client.status("POST", "/models?url=other.mar&initial_workers=1&synchronous=true")
    assert registered == 'Model "other" Version: 1.0 registered with 1 initial workers'
    for path in ("/predictions/other", "/models/other/invoke", "/v1/models/other:predict", "/v2/models/other/infer"):
        assert client.predict(path)["version"] == "1.0"
    assert client.predict("/invocations?model_name=other")["version"] == "1.0"

    scaled = client.status("PUT", "/models/other?min_worker=2&synchronous=true")
    assert scaled == "Workers scaled to 2 for model: other"
    (model,) = client.management.get("/models/other").json()
    assert (model["minWorkers"], [worker["status"] for worker in model["workers"]]) == (2, ["READY", "READY"])
    assert client.status("PUT", "/models/other/1.0?min_worker=0&synchronous=true") == (
        "Workers scaled to 0 for model: other, version: 1.0"
    )
    assert client.predict("/predictions/other")["type"] == "ServiceUnavailableException"

    assert client.status("DELETE", "/models/other") == 'Model "other" unregistered'
    assert client.predict("/predictions/other")["type"] == "ModelNotFoundException"


def test_requests_without_a_version_get_the_default_one(client: TorchServeClient) -> None:
    assert client.status("POST", "/models?url=echo2.mar&initial_workers=1&synchronous=false", 202) == (
        "Processing worker updates..."
    )
    assert client.predict("/predictions/echo")["version"] == "1.0"
    assert client.predict("/predictions/echo/2.0")["version"] == "2.0"
    assert client.status("PUT", "/models/echo/2.0/set-default") == (
        'Default version successfully updated for model "echo" to "2.0"'
    )
    assert client.predict("/predictions/echo")["version"] == "2.0"
    assert client.predict("/invocations")["version"] == "2.0"
    client.status("PUT", "/models/echo/1.0/set-default")
    client.status("DELETE", "/models/echo/2.0")


def test_a_model_that_cannot_be_loaded_is_refused(client: TorchServeClient) -> None:
    refused = client.management.post("/models", json={"url": "broken.mar", "initial_workers": 1})
    assert refused.json() == {
        "code": 500,
        "type": "InternalServerException",
        "message": "Failed to start workers for model broken version: 1.0",
    }
    assert [model["modelName"] for model in client.management.get("/models").json()["models"]] == ["echo"]


def test_a_page_of_another_site_registers_nothing(client: TorchServeClient) -> None:
    response = client.management.post("/models?url=other.mar", headers={"Origin": "http://evil.example"})
    assert response.status_code == 403


def test_metrics_have_the_counts_of_all_models_and_of_their_code(client: TorchServeClient) -> None:
    client.predict("/predictions/echo")
    response = client.metrics.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'model_name="echo",model_version="1.0"} ' in response.text
    assert 'Answers_total{Level="Model",ModelName="echo"} ' in response.text
    assert 'headrace_handler_ready_workers{model="echo"} 1.0' in client.predictions.get("/metrics").text
