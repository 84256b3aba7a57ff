"""The routes of TorchServe and KServe to a model's handler: `/predictions`, `/explanations`, `/v1` and `/v2`."""

from collections.abc import Sequence
from dataclasses import replace

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.http.asgi import Receive, Scope, Send
from headrace.server.handlers.relay import HandlerRoute
from headrace.server.torchserve_service import TorchServeService
from headrace.wire.torchserve.management import ApiError, not_found, pretty
from headrace.wire.torchserve.model_paths import ModelCall, read_model_path

_VERSION = "0.12.0"
"""The version of TorchServe whose behaviour the routes have."""
_MODEL_PATHS = (
    "/predictions/{path:path}",
    "/explanations/{path:path}",
    "/models/{name}/invoke",
    "/v1/models/{name}:{verb}",
    "/v2/models/{name}/infer",
    "/v2/models/{name}/explain",
    "/{name}/predict",
    "/{name}/{version}/predict",
)


def torchserve_routes(service: TorchServeService) -> Sequence[BaseRoute]:
    """Return the routes; those without a model's name answer for the server."""
    model = _ModelRoute(service)
    about = _About(service)
    return [
        Route("/v2/models/{name}/versions/{rest:path}", about.no_versions, methods=["GET", "POST"]),
        *(Route(path, model, methods=["GET", "POST", "PUT"]) for path in _MODEL_PATHS),
        Route("/invocations", model, methods=["POST"]),
        Route("/v1/models/{name}", about.is_model_ready),
        Route("/v2/health/ready", about.is_ready),
        Route("/v2/health/live", about.is_live),
        Route("/v2", about.server),
    ]


class _ModelRoute:
    """Finds the model that a request names and relays the request to it."""

    def __init__(self, service: TorchServeService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            call = _read_call(scope)
            pool = self._service.find(call.model, call.version).pool
        except ApiError as error:
            await _error(error)(scope, receive, send)
            return
        route = HandlerRoute(self._service, mode=call.mode, item_path=lambda _: call.rest, pool=pool)
        await route(scope, receive, send)


def _read_call(scope: Scope) -> ModelCall:
    """
    Return the call of a model that a request's path names.

    Raises:
        ApiError: its path is not a path to a model.
    """
    call = read_model_path(scope["path"])
    if call is None:
        raise not_found()
    if call.model is None:  # TorchServe also reads the name from the query there
        return replace(call, model=QueryParams(scope["query_string"]).get("model_name"))
    return call


class _About:
    """Answers to questions about the server and its model."""

    def __init__(self, service: TorchServeService) -> None:
        self._service = service

    async def is_model_ready(self, request: Request) -> Response:
        """Answer KServe's request for a model's state."""
        name = request.path_params["name"]
        try:
            model = self._service.find(name, None)
        except ApiError as error:
            return _error(error)
        return _json({"name": name, "ready": model.pool.num_ready > 0})

    async def is_ready(self, _request: Request) -> Response:
        """Answer that the server takes requests."""
        return _json({"ready": True})

    async def is_live(self, _request: Request) -> Response:
        """Answer that the server lives."""
        return _json({"live": True})

    async def server(self, _request: Request) -> Response:
        """Describe the server; `extenstion` is TorchServe's spelling."""
        return _json({"name": "Torchserve", "version": _VERSION, "extenstion": ["kserve", "kubeflow"]})

    async def no_versions(self, _request: Request) -> Response:
        """Refuse KServe's versions, as TorchServe does."""
        return _json({"error": "Model versioning is not yet supported."}, status=501)


def _json(content: object, *, status: int = 200) -> Response:
    return Response(pretty(content), status_code=status, media_type="application/json")


def _error(error: ApiError) -> Response:
    return Response(error.body, status_code=error.status, media_type="application/json")
