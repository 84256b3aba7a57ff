"""
Pages for Prometheus: the gateway's metrics, those of each worker, and the list of workers for its service discovery.

Workers listen on loopback or on the network of a cluster, with tokens of their own, so that Prometheus scrapes them
through the platform, with the platform's address and credentials. Source: Prometheus, "HTTP SD".
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as Page

from headrace.platform.state.routes import Replica, Route

METRICS_PATH = "/metrics"
TARGETS_PATH = f"{METRICS_PATH}/targets"
WORKERS_PATH = f"{METRICS_PATH}/workers"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FetchPage = Callable[[Replica], Awaitable[str | None]]
"""Fetches a worker's page of metrics; None if it has none, or does not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A worker with the labels of its metrics."""

    replica: Replica
    endpoint: str
    variant: str
    component: str
    """The inference component that it is a copy of; empty if it serves the variant itself."""

    def to_json(self, *, host: str, scheme: str) -> dict[str, object]:
        """Return a target group of Prometheus' service discovery, for a platform that is reached at `host`."""
        labels = {
            "__metrics_path__": f"{WORKERS_PATH}/{self.replica.worker}",
            "__scheme__": scheme,
            "instance": self.replica.worker,
            "endpoint": self.endpoint,
            "variant": self.variant,
            "component": self.component,
        }
        return {"targets": [host], "labels": {name: value for name, value in labels.items() if value}}


def targets(routes: Mapping[str, Route]) -> dict[str, Target]:
    """Return the serving workers by name; an adapter's are those of its base component."""
    found: dict[str, Target] = {}
    for route in routes.values():
        served = [(variant, variant.name, "") for variant in route.all_variants]
        served += [
            (copies.route, copies.variant, copies.name) for copies in route.components if not copies.route.adapter
        ]
        for target, variant, component in served:
            for replica in (replica for fleet in target.fleets for replica in fleet.replicas):
                labels = Target(replica=replica, endpoint=route.endpoint, variant=variant, component=component)
                found.setdefault(replica.worker, labels)
    return found


def is_metrics(path: str) -> bool:
    return path in {METRICS_PATH, TARGETS_PATH} or path.startswith(f"{WORKERS_PATH}/")


def metrics_app(
    gateway_page: Callable[[], Awaitable[bytes]], routes: Callable[[], Mapping[str, Route]], fetch: FetchPage
) -> Starlette:
    """Create the application; `gateway_page` renders the metrics of all gateways."""

    async def gateway(_request: Request) -> Response:
        return Response(await gateway_page(), headers={"content-type": METRICS_TYPE})

    async def discovery(request: Request) -> Response:
        host, scheme = request.headers.get("host", ""), request.url.scheme
        return JSONResponse([target.to_json(host=host, scheme=scheme) for target in targets(routes()).values()])

    async def worker(request: Request) -> Response:
        target = targets(routes()).get(request.path_params["worker"])
        if target is None:
            return PlainTextResponse(f"There is no such worker. {TARGETS_PATH} lists all of them.\n", 404)
        page = await fetch(target.replica)
        if page is None:
            return PlainTextResponse("The worker has no metrics, or does not answer.\n", 502)
        return Response(page, headers={"content-type": METRICS_TYPE})

    return Starlette(
        routes=[
            Page(METRICS_PATH, gateway, methods=["GET"]),
            Page(TARGETS_PATH, discovery, methods=["GET"]),
            Page(f"{WORKERS_PATH}/{{worker}}", worker, methods=["GET"]),
        ]
    )
