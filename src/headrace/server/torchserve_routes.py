"""The routes of TorchServe and KServe to a model's handler: `/predictions`, `/explanations`, `/v1` and `/v2`."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.handlers.torchserve import model_version
from headrace.http.asgi import Receive, Scope, Send
from headrace.server.handlers.relay import HandlerRoute
from headrace.server.handlers.service import HandlerService
from headrace.server.service import ServerPhase
from headrace.wire.torchserve.management import ApiError, model_not_found, not_found, pretty, version_not_found
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


def torchserve_routes(service: HandlerService) -> Sequence[BaseRoute]:
    """Return the routes; those without a model's name answer for the server."""
    model = _ModelRoute(service)
    about = _About(service)
    return [
        Route("/v2/models/{name}/versions/{rest:path}", about.no_versions, methods=["GET", "POST"]),
        *(Route(path, model, methods=["GET", "POST", "PUT"]) for path in _MODEL_PATHS),
        Route("/v1/models/{name}", about.is_model_ready),
        Route("/v2/health/ready", about.is_ready),
        Route("/v2/health/live", about.is_live),
        Route("/v2", about.server),
    ]


class _ModelRoute:
    """Finds the model that a path names and relays the request to it."""

    def __init__(self, service: HandlerService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            call = self._find(scope["path"])
        except ApiError as error:
            await _error(error)(scope, receive, send)
            return
        await HandlerRoute(self._service, mode=call.mode, item_path=lambda _: call.rest)(scope, receive, send)

    def _find(self, path: str) -> ModelCall:
        """
        Return what the path asks for.

        Raises:
            ApiError: the server has no such model or version.
        """
        call = read_model_path(path)
        if call is None:
            raise not_found()
        check_model(self._service, call.model, call.version)
        return call


class _About:
    """Answers to questions about the server and its model."""

    def __init__(self, service: HandlerService) -> None:
        self._service = service

    async def is_model_ready(self, request: Request) -> Response:
        """Answer KServe's request for a model's state."""
        name = request.path_params["name"]
        try:
            check_model(self._service, name, None)
        except ApiError as error:
            return _error(error)
        return _json({"name": name, "ready": self._service.health is ServerPhase.READY})

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
        """Refuse KServe's versions, as TorchServe."""
        return _json({"error": "Model versioning is not yet supported."}, status=501)


def check_model(service: HandlerService, name: str | None, version: str | None) -> None:
    """
    Check that a request is for the model that is served, by the server's name for it or that of its manifest.

    Raises:
        ApiError: it is for another model or version.
    """
    load = service.spec.load
    model = load.manifest.get("model") or {}
    if name is not None and name not in {load.model_name, model.get("modelName")}:
        raise model_not_found(name)
    if version is not None and version != model_version(load.manifest):
        raise version_not_found(name or load.model_name, version)


def _json(content: object, *, status: int = 200) -> Response:
    return Response(pretty(content), status_code=status, media_type="application/json")


def _error(error: ApiError) -> Response:
    return Response(error.body, status_code=error.status, media_type="application/json")
