"""The HTTP application of a server for a model's own code: SageMaker's routes, and those that a contract adds."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import HeadraceError, MethodNotAllowed, NotFound
from headrace.handlers.spec import ContractName
from headrace.server.app import middleware
from headrace.server.base_service import NOT_READY, ServerPhase
from headrace.server.djl_routes import djl_routes
from headrace.server.errors import EXCEPTION_HANDLERS, ExceptionHandler, route_error_handler
from headrace.server.handlers.metrics import handler_metrics
from headrace.server.handlers.relay import HandlerRoute
from headrace.server.handlers.service import CodeService
from headrace.wire.torchserve.errors import render_error
from headrace.wire.unknown_routes import render_error_for

_FAILED_STATUS = 500
_WORDS = {ServerPhase.READY: "Healthy", ServerPhase.TERMINATING: "Healthy", ServerPhase.LOADING: "PENDING"}
"""DJL's words; TorchServe and the toolkits know the first and `Unhealthy`."""


def handler_app(service: CodeService, more_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application; `more_routes` come before those of all contracts."""

    async def metrics(_request: Request) -> Response:
        return handler_metrics(service)

    routes = [
        *more_routes,
        *(djl_routes(service) if service.contract == "djl" else ()),
        Route("/ping", _Ping(service).answer, methods=["GET", "POST"]),
        Route("/invocations", HandlerRoute(service), methods=["POST"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
    if service.contract == "sagemaker":  # for batch transform jobs; the code of an image answers, or returns 404
        routes.append(Route("/execution-parameters", HandlerRoute(service), methods=["GET"]))
    app = Starlette(
        routes=routes,
        middleware=middleware(
            service.settings,
            is_draining=lambda: service.phase is ServerPhase.TERMINATING,
            tracer=service.tracer,
        ),
        exception_handlers=EXCEPTION_HANDLERS | {HTTPException: _other_routes(service)},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _other_routes(service: CodeService) -> ExceptionHandler:
    """Return the handler for other routes, in the format that DJL, TorchServe and multi-model-server share."""

    def describe(method: str, path: str, *, allowed: Sequence[str] = ()) -> HeadraceError:
        if allowed:
            return MethodNotAllowed(
                f"{method} {path} is not served; use {' or '.join(allowed)}.", allowed=tuple(allowed)
            )
        name = service.model_name or "<model>"
        predictions = f" and /predictions/{name}" if service.contract != "sagemaker" else ""
        return NotFound(f"{method} {path} is not served: the model's own code answers POST /invocations{predictions}.")

    return route_error_handler(describe, lambda path, error: render_error_for(path, error, default=render_error))


class _Ping:
    """The health check, by the contract."""

    def __init__(self, service: CodeService) -> None:
        self._service = service

    async def answer(self, _request: Request) -> Response:
        health = self._service.health
        status = 200 if health is ServerPhase.READY else _FAILED_STATUS if health is ServerPhase.FAILED else 503
        body = ping_body(self._service.contract, self._service.model_name, health)
        reason = {} if status == 200 else {"reason": NOT_READY[health]}
        return JSONResponse(body | reason, status_code=status)


def ping_body(contract: ContractName, model_name: str, health: ServerPhase) -> dict[str, object]:
    """Return the body of a health check as the contract's server words it."""
    if contract == "djl":
        word = "FAILED" if health is ServerPhase.FAILED else _WORDS.get(health, "Unhealthy")
        return {model_name: {"status": word}}
    return {"status": "Healthy" if health in {ServerPhase.READY, ServerPhase.TERMINATING} else "Unhealthy"}
