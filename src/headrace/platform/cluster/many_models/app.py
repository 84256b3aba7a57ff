"""The HTTP application in front of many models: its own routes, and all others to the model that a request names."""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version as package_version
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from headrace.core.errors import InvalidRequest, NotFound
from headrace.platform.cluster.many_models.forward import ForwardedRequests
from headrace.platform.cluster.many_models.lists import render_model, render_models, render_running, render_tags
from headrace.platform.cluster.many_models.pull import PullRoute, read_body
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.serving.http.pages import api_page_routes, page_response, page_routes
from headrace.serving.server.base_service import NOT_READY, ServerPhase
from headrace.serving.server.middleware import EXCEPTION_HANDLERS, middleware
from headrace.serving.wire.framing import JSON_CONTENT_TYPE
from headrace.serving.wire.ollama import models as ollama
from headrace.serving.wire.openai.pages import render_version
from headrace.serving.wire.openapi.document import render_openapi
from headrace.serving.wire.openapi.operations import MANY_MODELS_OPERATIONS
from headrace.serving.wire.unknown_routes import LOAD_MODEL, MODELS, OPENAPI_PATH, UNLOAD_MODEL, VERSION

_PAGES: Final = "headrace.serving.server"
"""The package with the files of the chat page."""
_ABOUT: Final = "Many models by name, in the APIs of OpenAI, Anthropic, Ollama, TGI, TEI, LMI and SageMaker."
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def many_models_app(service: ManyModels) -> Starlette:
    app = Starlette(
        routes=[
            *_health_routes(service),
            *_model_routes(service),
            *_ollama_routes(service),
            *_page_routes(service),
            Mount("", app=ForwardedRequests(service)),
        ],
        middleware=middleware(service),
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _health_routes(service: ManyModels) -> list[BaseRoute]:
    async def health(request: Request) -> Response:
        if request.url.path == "/" and service.settings.web and "text/html" in request.headers.get("accept", ""):
            return page_response(request, _PAGES, "index.html")
        phase = service.health
        if phase is ServerPhase.READY:
            return JSONResponse({"status": "Healthy", "models": len(service.catalogue.presets)})
        return JSONResponse({"status": phase.title(), "reason": NOT_READY[phase]}, status_code=503)

    async def metrics(_request: Request) -> Response:
        if not service.settings.metrics:
            raise NotFound("Metrics are turned off here (metrics=false).")
        from headrace.platform.cluster.many_models.metrics import render_metrics  # prometheus_client takes 50 ms

        return Response(await render_metrics(service), media_type=_METRICS_TYPE)

    return [
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _model_routes(service: ManyModels) -> list[BaseRoute]:
    async def models(request: Request) -> Response:
        if "reload" in request.query_params:
            await service.refresh()
        return Response(render_models(service), media_type=JSON_CONTENT_TYPE)

    async def model(request: Request) -> Response:
        preset = await service.find(request.path_params["name"])
        return Response(render_model(service, preset), media_type=JSON_CONTENT_TYPE)

    async def load(request: Request) -> Response:
        service.check_open()
        async with service.admit(request.scope, request.receive) as body:
            fields = await service.parse_body(body, read_body)
            service.begin_load(await service.find(fields.model or fields.name))
        return JSONResponse({"success": True})

    async def unload(request: Request) -> Response:
        async with service.admit(request.scope, request.receive) as body:
            fields = await service.parse_body(body, read_body)
            preset = await service.find(fields.model or fields.name)
            if not service.host.retire(preset.name):
                state = service.host.status(preset.name).value
                raise InvalidRequest(f"The model `{preset.name}` is {state}; expected a loaded model.", param="model")
        return JSONResponse({"success": True})

    return [
        Route("/models", models, methods=["GET"]),
        Route(MODELS, models, methods=["GET"]),
        Route(f"{MODELS}/{{name:path}}", model, methods=["GET"]),
        Route(LOAD_MODEL, load, methods=["POST"]),
        Route(UNLOAD_MODEL, unload, methods=["POST"]),
    ]


def _ollama_routes(service: ManyModels) -> list[BaseRoute]:
    return [
        json_route("/api/tags", lambda: render_tags(service)),
        json_route("/api/ps", lambda: render_running(service)),
        json_route("/api/version", ollama.render_version),
        json_route(VERSION, lambda: render_version(package_version("headrace"))),
        Route("/api/pull", PullRoute(service), methods=["POST"]),
    ]


def json_route(path: str, render: Callable[[], bytes]) -> Route:
    async def endpoint(_request: Request) -> Response:
        return Response(render(), media_type=JSON_CONTENT_TYPE)

    return Route(path, endpoint, methods=["GET"])


def _page_routes(service: ManyModels) -> list[BaseRoute]:
    async def openapi(_request: Request) -> Response:
        return Response(_document(), media_type=JSON_CONTENT_TYPE)

    description = Route(OPENAPI_PATH, openapi, methods=["GET"])
    return [description, *api_page_routes(), *page_routes("/web", _PAGES)] if service.settings.web else [description]


@lru_cache(maxsize=1)
def _document() -> bytes:
    title, version = "Headrace server of many models", package_version("headrace")
    return render_openapi(MANY_MODELS_OPERATIONS, title=title, version=version, description=_ABOUT)
