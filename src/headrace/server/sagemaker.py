"""
The container contract of SageMaker: `/ping` and `/invocations`.

Source: SageMaker developer guide, "Custom inference code with hosting services".
"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.server.attribute_routes import RoutedInvocations, posted
from headrace.server.base_service import NOT_READY, ServerPhase
from headrace.server.dialects import invocations_dialect
from headrace.server.eula import with_eula_check
from headrace.server.generate import GenerationRoute
from headrace.server.service import Service

_STATUS = {
    ServerPhase.LOADING: "Loading",
    ServerPhase.READY: "Healthy",
    ServerPhase.TERMINATING: "Terminating",
    ServerPhase.CLOSING: "Closing",
    ServerPhase.FAILED: "Failed",
}


def sagemaker_routes(service: Service, others: Iterable[Route]) -> list[Route]:
    """Return the routes `/ping` and `/invocations`, of which the latter also leads to `others`."""

    async def ping(_request: Request) -> Response:
        info = service.info()
        health = service.health
        body = {"status": _STATUS[health], "model": None if info is None else info.name}
        if health is ServerPhase.READY:
            return JSONResponse(body)
        return JSONResponse({**body, "reason": NOT_READY[health]}, status_code=503)

    dialect, choose = invocations_dialect(service.settings, service.info)
    invocations = GenerationRoute(service, route="/invocations", dialect=dialect, choose=choose)
    routed = RoutedInvocations(invocations, posted(others))
    return [
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/invocations", with_eula_check(routed, service.settings), methods=["POST"]),
    ]
