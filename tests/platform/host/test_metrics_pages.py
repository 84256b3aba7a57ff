"""Pages for Prometheus: of the gateway, of each worker, and the list of workers."""

from collections.abc import Iterator

import httpx
import pytest

from headrace.platform.control.loops.scraper import fetch
from headrace.platform.host.metrics_pages import metrics_app
from headrace.platform.state.routes import AdapterRoute, Fleet, Replica, Route, VariantRoute
from headrace.testing.echo import EchoBackend
from tests import plain_http
from tests.platform.gateway.routes import component, route, variant
from tests.serving.server.conftest import serving as serving_model
from tests.waiting import WAIT_S

from .serving import serving


def route_of(replica: Replica) -> Route:
    fleet = Fleet(generation=1, share=1.0, replicas=(replica,))
    return route(VariantRoute(name="v", weight=1.0, fleets=(fleet,)))


@pytest.fixture(scope="module")
def routes() -> dict[str, Route]:
    return {}


@pytest.fixture(scope="module")
def client(routes: dict[str, Route]) -> Iterator[httpx.Client]:
    async def page(replica: Replica) -> str | None:
        return await fetch(replica.url, token=replica.token)

    async def gateway() -> bytes:
        return b"gateway 1\n"

    app = metrics_app(gateway, lambda: routes, page)
    with serving(app) as url, plain_http.Client(base_url=url, timeout=WAIT_S) as client:
        yield client


def test_the_list_has_each_worker_with_its_labels_at_the_address_of_the_platform(
    client: httpx.Client, routes: dict[str, Route]
) -> None:
    routes.clear()
    adapter = AdapterRoute(name="a", base="base")
    routes["one"] = route(variant("v", ["w1", "w2"], ["w3"], shares=[0.9, 0.1]), endpoint="one")
    routes["two"] = route(
        variant("v", []),
        endpoint="two",
        components=(component("adapted", ["w4"], host="v", adapter=adapter), component("base", ["w4"], host="v")),
    )
    found = client.get("/metrics/targets", headers={"host": "platform.example:7450"})
    assert found.headers["content-type"] == "application/json"
    groups = {group["labels"]["instance"]: group for group in found.json()}
    assert groups.keys() == {"w1", "w2", "w3", "w4"}
    assert all(group["targets"] == ["platform.example:7450"] for group in groups.values())
    assert groups["w3"]["labels"] == {
        "__metrics_path__": "/metrics/workers/w3",
        "__scheme__": "http",
        "instance": "w3",
        "endpoint": "one",
        "variant": "v",
    }
    assert groups["w4"]["labels"]["component"] == "base"


def test_the_page_of_a_worker_is_that_of_its_server(client: httpx.Client, routes: dict[str, Route]) -> None:
    with serving_model(EchoBackend(), api_key="its-token") as model:
        routes.clear()
        routes["ep"] = route_of(Replica(worker="w1", url=model.url, token="its-token"))
        page = client.get("/metrics/workers/w1")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'headrace_running_sequences{model_name="echo"} 0.0' in page.text


@pytest.mark.parametrize(("worker", "status"), [("nowhere", 404), ("w1", 502)])
def test_a_worker_that_is_gone_has_no_page(
    client: httpx.Client, routes: dict[str, Route], worker: str, status: int
) -> None:
    routes["ep"] = route_of(Replica(worker="w1", url="http://127.0.0.1:9"))
    assert client.get(f"/metrics/workers/{worker}").status_code == status


def test_the_platforms_own_page_is_that_of_the_gateway(client: httpx.Client) -> None:
    assert client.get("/metrics").text == "gateway 1\n"
