"""Run the gateway alone in front of one worker: `python -m benchmarks.gateway.host URL`; prints its own URL."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import uvloop

from headrace.core.telemetry import setup_logging
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.state.records import AnyKind, NoStatus, Record
from headrace.platform.state.routes import ROUTE, Fleet, Replica, Route, VariantRoute
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, url_of
from headrace.serving.settings.platform_settings import PlatformSettings

if TYPE_CHECKING:
    from headrace.platform.state.store import Store

ENDPOINT = "bench"


class OneRoute:
    """The part of a store that the gateway uses, with one endpoint."""

    def __init__(self, worker_url: str) -> None:
        replica = Replica(worker="worker", url=worker_url)
        fleet = Fleet(generation=1, share=1.0, replicas=(replica,))
        route = Route(
            endpoint=ENDPOINT,
            endpoint_arn="",
            endpoint_uid="",
            created_s=0,
            status="InService",
            variants=(VariantRoute(name="AllTraffic", weight=1.0, fleets=(fleet,)),),
        )
        self._record = Record(
            kind=ROUTE, name=ENDPOINT, uid="", revision=1, spec=route, status=NoStatus(), created_s=0, modified_s=0
        )

    def revision(self) -> int:
        """Return the revision of the store, which never changes."""
        return 1

    def list(self, _kind: AnyKind) -> list[Record[Route, NoStatus]]:
        return [self._record]

    def subscribe(self, _listener: Callable[[], None]) -> Callable[[], None]:
        """Accept a subscriber; nothing ever changes."""
        return lambda: None


async def serve(worker_url: str) -> None:
    gateway = Gateway(cast("Store", OneRoute(worker_url)), GatewayConfig(account="0" * 12, region="us-east-1"))
    await gateway.start()
    listener = bind("127.0.0.1", 0)
    print(url_of(listener), flush=True)
    await http_server(gateway, limits=http_limits(PlatformSettings())).serve(sockets=[listener])
    await gateway.close()


if __name__ == "__main__":
    setup_logging(format="json", level="error")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
