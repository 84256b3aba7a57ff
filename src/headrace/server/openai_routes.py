"""OpenAI's routes below `/v1`."""

import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.server.generate import GenerationRoute
from headrace.server.response_routes import response_routes
from headrace.server.service import Service
from headrace.wire.openai.chat import OpenAIChat
from headrace.wire.openai.completions import OpenAICompletions
from headrace.wire.openai.embeddings import OpenAIEmbeddings
from headrace.wire.openai.models import render_model, render_models
from headrace.wire.openai.responses import OpenAIResponses
from headrace.wire.unknown_routes import RESPONSES

_JSON = "application/json"


def openai_routes(service: Service) -> list[Route]:
    """Return the routes for models, completions, chat completions, responses and embeddings."""

    async def models(_request: Request) -> Response:
        return Response(render_models(service.backend.info, adapters=service.backend.adapters), media_type=_JSON)

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if not name:
            raise HTTPException(404)
        backend = service.backend
        return Response(render_model(backend.info, name, adapters=backend.adapters), media_type=_JSON)

    chat = GenerationRoute(service, route="/v1/chat/completions", dialect=OpenAIChat())
    completions = GenerationRoute(service, route="/v1/completions", dialect=OpenAICompletions())
    dialect = OpenAIResponses(service.responses)
    responses = GenerationRoute(
        service,
        route=RESPONSES,
        dialect=dialect,
        weigh=lambda body: dialect.num_stored_bytes(body, time.time()),
    )
    embeddings = GenerationRoute(service, route="/v1/embeddings", dialect=OpenAIEmbeddings())
    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route(RESPONSES, responses, methods=["POST"]),
        *(() if service.responses is None else response_routes(service.responses)),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]
