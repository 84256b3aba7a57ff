"""
TorchServe's and KServe's routes to a model's handler, `/predictions`, `/explanations`, `/v1` and `/v2`.

Its management API registers, scales, describes and unregisters models, in an application on a port of its own.
"""

import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.serving.handlers.errors import Refused, WholeResponse
from headrace.serving.handlers.exchange import HandlerRequest
from headrace.serving.handlers.torchserve_models import Registered, TorchServeModels
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.http.body import BodyTooLarge, BodyTooSlow, read_body
from headrace.serving.server.handlers.relay import HandlerRoute
from headrace.serving.server.handlers.service import TorchServeService
from headrace.serving.server.middleware import COMMON_HANDLERS
from headrace.serving.wire.torchserve import management as api
from headrace.serving.wire.torchserve.management import ApiError, not_found, pretty, read_model_path

Endpoint = Callable[[Request], Awaitable[Response]]

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

    async def is_model_ready(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            return _json({"name": name, "ready": service.find(name, None).pool.num_ready > 0})
        except ApiError as error:
            return _error(error)

    def fixed(content: dict[str, object], *, status: int = 200) -> Endpoint:
        async def endpoint(_request: Request) -> Response:
            return _json(content, status=status)

        return endpoint

    no_versions = fixed({"error": "Model versioning is not yet supported."}, status=501)
    about = fixed({"name": "Torchserve", "version": _VERSION, "extenstion": ["kserve", "kubeflow"]})  # its spelling
    return [
        Route("/v2/models/{name}/versions/{rest:path}", no_versions, methods=["GET", "POST"]),
        *(Route(path, model, methods=["GET", "POST", "PUT"]) for path in _MODEL_PATHS),
        Route("/invocations", model, methods=["POST"]),
        Route("/v1/models/{name}", is_model_ready),
        Route("/v2/health/ready", fixed({"ready": True})),
        Route("/v2/health/live", fixed({"live": True})),
        Route("/v2", about),
    ]


class _ModelRoute:
    """Finds the model that a request names and relays the request to it."""

    def __init__(self, service: TorchServeService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = read_model_path(scope["path"])
            if call is None:
                raise not_found()
            if call.model is None:  # TorchServe also reads the name from the query there
                call = replace(call, model=QueryParams(scope["query_string"]).get("model_name"))
            pool = self._service.find(call.model, call.version).pool
        except ApiError as error:
            await _error(error)(scope, receive, send)
            return
        route = HandlerRoute(self._service, mode=call.mode, item_path=lambda _: call.rest, pool=pool)
        await route(scope, receive, send)


def _json(content: object, *, status: int = 200) -> Response:
    return Response(pretty(content), status_code=status, media_type="application/json")


def _error(error: ApiError) -> Response:
    return Response(error.body, status_code=error.status, media_type="application/json")


_MAX_BODY_BYTES: Final = 64 << 10
_BODY_TIMEOUT_S: Final = 10.0


def management_app(models: TorchServeModels, layers: Sequence[Middleware] = ()) -> Starlette:
    """Create the application; `layers` guard it, because clients that register models run code."""
    methods = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"]
    routes = [Route("/{path:path}", _Management(models).handle, methods=methods)]
    return Starlette(routes=routes, middleware=layers, exception_handlers=COMMON_HANDLERS)


class _Management:
    def __init__(self, models: TorchServeModels) -> None:
        self._models = models

    async def handle(self, request: Request) -> Response:
        """Answer a request; an `ApiError` is answered with its status."""
        try:
            status, answer = await self._answer(request)
        except ApiError as error:
            return _error(error)
        return _json(answer, status=status)

    async def _answer(self, request: Request) -> tuple[int, Any]:  # noqa: PLR0911 -- one return for each operation
        segments = request.url.path.rstrip("/").split("/")[1:]
        query = request.query_params
        match request.method, segments:
            case "GET", ["models"]:
                page = api.list_models(
                    self._models.urls(), limit=query.get("limit"), next_page_token=query.get("next_page_token")
                )
                return 200, page
            case "POST", ["models"]:
                model, is_ready = await self._models.register(api.read_registration(await _parameters(request)))
                status = api.registered(model.name, model.version, model.pool.min_workers)
                return (200, {"status": status}) if is_ready else (202, {"status": api.PROCESSING})
            case "GET", ["models", name, *version] if len(version) <= 1:
                return 200, await self._describe(request, name, version[0] if version else None)
            case "PUT", ["models", name, version, "set-default"]:
                self._models.set_default(name, version)
                return 200, {"status": f'Default version successfully updated for model "{name}" to "{version}"'}
            case "PUT", ["models", name, *version] if len(version) <= 1:
                return await self._scale(request, name, version[0] if version else query.get("model_version"))
            case "DELETE", ["models", name, *version] if len(version) <= 1:
                await self._models.unregister(name, version[0] if version else None)
                return 200, {"status": f'Model "{name}" unregistered'}
            case "GET", ["v1", "models", name]:
                name = name.partition(":")[0]
                return 200, {"name": name, "ready": self._models.find(name).pool.num_ready > 0}
        raise api.method_not_allowed() if segments[:1] == ["models"] else not_found()

    async def _describe(self, request: Request, name: str, version: str | None) -> list[dict[str, Any]]:
        if version == api.ALL_VERSIONS:
            return [model.describe() for model in self._models.versions(name)]
        model = self._models.find(name, version)
        described = model.describe()
        if api.is_true(request.query_params.get("customized")):
            described["customizedMetadata"] = await self._metadata(request, model)
        return [described]

    async def _metadata(self, request: Request, model: Registered) -> Any:
        """Return the metadata that the handler itself reports."""
        try:
            response = model.pool.submit(
                HandlerRequest(
                    request_id=str(uuid.uuid4()),
                    mode="describe",
                    method=request.method,
                    path=request.url.path,
                    headers=request.headers.items(),
                )
            )
        except Refused:
            text = f'Model "{model.name}" has no worker to serve describe request. '
            raise ApiError(
                503, "ServiceUnavailableException", text + "Please use scale workers API to add workers."
            ) from None
        try:
            head = await response.head()
        finally:
            response.close()
        if head.status != 200 or not isinstance(head, WholeResponse):
            raise ApiError(head.status, "InternalServerException", "Prediction failed")
        body = bytes(head.body)
        try:
            return json.loads(body or b"null")
        except (ValueError, RecursionError):
            return body.decode("utf-8", "replace")

    async def _scale(self, request: Request, name: str, version: str | None) -> tuple[int, Any]:
        model = self._models.find(name, version)
        least = _number(request, "min_worker", 1)
        most = _number(request, "max_worker", least)
        is_ready = await self._models.scale(
            model,
            least,
            most,
            wait=api.is_true(request.query_params.get("synchronous")),
            named_version=version,
        )
        done = f"Workers scaled to {least} for model: {name}" + (f", version: {version}" if version else "")
        return (200, {"status": done}) if is_ready else (202, {"status": api.PROCESSING})


def _number(request: Request, key: str, default: int) -> int:
    """Return a number of the query; as in TorchServe, the default if it is not a number."""
    value = request.query_params.get(key, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else default


async def _parameters(request: Request) -> dict[str, Any]:
    """Return the parameters from a JSON body, else from the query."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return dict(request.query_params)
    try:
        body = await read_body(request.receive, max_bytes=_MAX_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S)
        content = json.loads(body)
    except (BodyTooLarge, BodyTooSlow, ValueError, RecursionError) as error:
        raise api.bad_request(
            f"The body cannot be read: {error or type(error).__name__}. Expected a JSON object."
        ) from error
    if not isinstance(content, dict):
        raise api.bad_request("The body is not a JSON object; expected keys such as url.")
    return content
