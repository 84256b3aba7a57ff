"""Ollama's routes below `/api`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.server.generate import GenerationRoute
from headrace.server.service import Service
from headrace.wire.dialect import Dialect
from headrace.wire.ollama.dialect import OllamaChat, OllamaGenerate
from headrace.wire.ollama.embeddings import OllamaEmbed, OllamaEmbeddings
from headrace.wire.ollama.models import render_running, render_show, render_tags, render_version

_JSON = "application/json"
_DIALECTS: dict[str, Dialect] = {
    "/api/chat": OllamaChat(),
    "/api/generate": OllamaGenerate(),
    "/api/embed": OllamaEmbed(),
    "/api/embeddings": OllamaEmbeddings(),
}


def ollama_routes(service: Service) -> list[Route]:
    """Return the routes that answer, and those that describe the model."""

    async def tags(_request: Request) -> Response:
        return Response(render_tags(service.backend.info, service.backend.adapters), media_type=_JSON)

    async def running(_request: Request) -> Response:
        return Response(render_running(service.backend.info, service.backend.adapters), media_type=_JSON)

    async def version(_request: Request) -> Response:
        return Response(render_version(), media_type=_JSON)

    async def show(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)
        async with service.admit(request.scope, request.receive) as body:
            shown = await service.understand(body, lambda body: render_show(body, context))
            return Response(shown, media_type=_JSON)

    return [
        *(
            Route(path, GenerationRoute(service, route=path, dialect=dialect), methods=["POST"])
            for path, dialect in _DIALECTS.items()
        ),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/version", version, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
    ]
