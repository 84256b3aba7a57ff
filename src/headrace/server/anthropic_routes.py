"""Anthropic's routes: `/v1/messages` and the count of its tokens."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.server.generate import GenerationRoute
from headrace.server.service import Service
from headrace.wire.anthropic.dialect import AnthropicMessages, parse_count
from headrace.wire.anthropic.reply import render_count
from headrace.wire.unknown_routes import COUNT_TOKENS, MESSAGES


def anthropic_routes(service: Service) -> list[Route]:
    """Return the routes of the Messages API."""

    async def count_tokens(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)
        async with service.admit(request.scope, request.receive) as body:
            prompt = await service.understand(body, lambda body: parse_count(body, context))
            _, spans = await asyncio.to_thread(service.backend.tokenize, prompt)
            return Response(render_count(len(spans)), media_type="application/json")

    messages = GenerationRoute(service, route=MESSAGES, dialect=AnthropicMessages())
    return [
        Route(MESSAGES, messages, methods=["POST"]),
        Route(COUNT_TOKENS, count_tokens, methods=["POST"]),
    ]
