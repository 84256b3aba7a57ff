"""OpenAI's routes below `/v1`."""

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.server.generate import GenerationRoute
from headrace.server.response_routes import response_routes
from headrace.server.service import Service
from headrace.wire.openai.chat import OpenAIChat
from headrace.wire.openai.completions import OpenAICompletions
from headrace.wire.openai.embeddings import OpenAIEmbeddings
from headrace.wire.openai.models import render_model, render_models
from headrace.wire.openai.responses import OpenAIResponses
from headrace.wire.openai.responses_reply import render_count
from headrace.wire.unknown_routes import INPUT_TOKENS, RESPONSES

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
    embeddings = GenerationRoute(service, route="/v1/embeddings", dialect=OpenAIEmbeddings())
    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        *_responses_routes(service),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]


def _responses_routes(service: Service) -> list[Route]:
    """Return the routes of the Responses API."""
    dialect = OpenAIResponses(service.responses)

    def weigh(body: bytes) -> int:
        return dialect.num_stored_bytes(body, time.time())

    async def input_tokens(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)
        async with service.admit(request.scope, request.receive) as body:
            prompt = await service.understand(
                body, lambda body: dialect.parse_count(body, context), num_more_bytes=weigh(body)
            )
            _, spans = await asyncio.to_thread(service.backend.tokenize, prompt)
            return Response(render_count(len(spans)), media_type=_JSON)

    responses = GenerationRoute(service, route=RESPONSES, dialect=dialect, weigh=weigh)
    return [
        Route(RESPONSES, responses, methods=["POST"]),
        Route(INPUT_TOKENS, input_tokens, methods=["POST"]),
        *(() if service.responses is None else response_routes(service.responses)),
    ]
