"""
The container contract of SageMaker, `/ping` and `/invocations`, and the custom attributes that `/invocations` reads.

`route` sends a request to another route of the server: SageMaker's runtime reaches `/invocations` only, and AWS's
containers of vLLM take the route from `CustomAttributes="route=/v1/embeddings"`. They allow any path; here routes that
change the server, those of adapters, are left out. `accept_eula` accepts a model's licence, as the containers of
SageMaker JumpStart for Llama require it: they answer 424 until it is true.

Sources: SageMaker developer guide, "Custom inference code with hosting services"; `sagemaker_serve.py` of
aws/deep-learning-containers (`scripts/docker/vllm`); the model scripts that JumpStart deploys for Llama 2.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.core.errors import NotFound
from headrace.core.telemetry import get_logger
from headrace.serving.http.asgi import ASGIApp, Receive, Scope, Send, send_reply
from headrace.serving.server.base_service import NOT_READY, ServerPhase
from headrace.serving.server.generate import GenerationRoute
from headrace.serving.server.service import Service
from headrace.serving.server.sessions import SessionCheck
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.dialect import ErrorReply
from headrace.serving.wire.registry import get_dialect, select_dialect

ATTRIBUTES_HEADER: Final = b"x-amzn-sagemaker-custom-attributes"
_NAME: Final = "route"


def read_attributes(text: str) -> dict[str, str]:
    """Return the custom attributes of the form `name=value`, separated by commas or semicolons; the last one counts."""
    pairs = (part.partition("=") for part in text.replace(";", ",").split(","))
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals or name.strip()}


def attributes_of(scope: Scope) -> dict[str, str]:
    values = (value for name, value in scope["headers"] if name == ATTRIBUTES_HEADER)
    return read_attributes(b",".join(values).decode("latin-1"))


class RoutedInvocations:
    """The app of `/invocations`, which passes requests that name another route to it."""

    def __init__(self, default: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self._default = default
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = attributes_of(scope).get(_NAME)
        if path is None or path == scope["path"]:
            await self._default(scope, receive, send)
            return
        app = self._routes.get(path)
        if app is None:
            known = ", ".join(sorted(self._routes))
            raise NotFound(f"The custom attribute route is {path[:100]!r}; expected one of {known}.")
        # In place, so that errors and the log are those of the route.
        scope.update(path=path, raw_path=path.encode())
        await app(scope, receive, send)


def posted(routes: Iterable[Route]) -> dict[str, ASGIApp]:
    """Return the apps of the routes that take a POST at one path."""
    return {
        route.path: route.app
        for route in routes
        if "POST" in (route.methods or ()) and "{" not in route.path and route.path != "/"
    }


GATED: Final = ("meta-llama/",)
"""Prefixes of the models whose licence JumpStart requires to be accepted in each request."""
STATUS: Final = 424
_BODY: Final = {
    "code": STATUS,
    "message": "prediction failure",
    "error": "Need to pass custom_attributes='accept_eula=true' as part of header: it says that you have read and "
    "accept the end-user license agreement (EULA) of the model, which its model card links to.",
}


def accepted_eula(attributes: Mapping[str, str]) -> bool | None:
    """Return the value of `accept_eula` in custom attributes; None if they have none."""
    value = attributes.get("accept_eula")
    return None if value is None else value.lower() == "true"


class EulaCheck:
    """Middleware that refuses requests which decline the model's licence, or do not accept it where required."""

    def __init__(self, app: ASGIApp, *, is_required: bool) -> None:
        self._app = app
        self._is_required = is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = accepted_eula(attributes_of(scope))
        if accepted or (accepted is None and not self._is_required):
            await self._app(scope, receive, send)
            return
        get_logger().info("request.refused", route=scope["path"], status=STATUS, reason="accept_eula is not true")
        await send_reply(scope, send, ErrorReply(status=STATUS, body=json.dumps(_BODY).encode()))


def with_eula_check(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    is_gated = settings.eula_check == "gated" and settings.model.startswith(GATED)
    if settings.eula_check == "required" or is_gated:
        return EulaCheck(app, is_required=settings.eula_check == "required")
    return app


def sagemaker_routes(service: Service, others: Iterable[Route]) -> list[Route]:
    """Return the routes of the container contract, of which `/invocations` also leads to `others`."""

    async def ping(_request: Request) -> Response:
        info = service.info()
        health = service.health
        model = None if info is None else info.name
        if health is ServerPhase.READY:
            return JSONResponse({"status": "Healthy", "model": model})
        body = {"status": health.title(), "model": model, "reason": NOT_READY[health]}
        return JSONResponse(body, status_code=503)

    async def execution_parameters(_request: Request) -> Response:
        """Tell a batch transform job to send one record in a request, and as many requests as the engine batches."""
        num_requests = min(service.backend.info.max_num_seqs, service.settings.max_concurrent_requests)
        return JSONResponse({"MaxConcurrentTransforms": num_requests, "BatchStrategy": "SINGLE_RECORD"})

    settings = service.settings
    dialect = get_dialect(settings.dialect, output_formatter=settings.output_formatter, tgi_compat=settings.tgi_compat)
    returns_features = settings.task == "features"
    invocations = GenerationRoute(
        service,
        route="/invocations",
        dialect=dialect,
        choose=lambda body: select_dialect(body, dialect, service.info(), returns_features=returns_features),
    )
    routed = RoutedInvocations(invocations, posted(others))
    return [
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/execution-parameters", execution_parameters, methods=["GET"]),
        Route("/invocations", with_eula_check(SessionCheck(routed, service), settings), methods=["POST"]),
    ]
