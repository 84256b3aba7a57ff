"""
TGI's routes. Source: TGI `router/src/server.rs`.

`GET /` is the chat page for a browser and TGI's health check for other clients.
"""

import asyncio
from importlib.metadata import version as package_version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.errors import InvalidRequest, NotFound
from headrace.core.generation import ChatPrompt
from headrace.core.tracing import trace_of
from headrace.server.base_service import NOT_READY, ServerPhase
from headrace.server.dialects import tgi_dialect, tgi_version
from headrace.server.generate import GenerationRoute
from headrace.server.pages import chat_page, is_browser
from headrace.server.service import Service
from headrace.wire.openai.chat import OpenAIChat
from headrace.wire.tei.pages import render_info as render_tei_info
from headrace.wire.tgi.dialect import Route as TgiRoute
from headrace.wire.tgi.pages import render_chat_tokenize, render_info, render_unhealthy

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


def tgi_routes(service: Service) -> list[Route]:
    """Return the routes of TGI but `/tokenize`, which is one of `tokenizer_routes`."""
    pages = _TgiPages(service)
    return [
        Route("/", pages.root, methods=["GET"]),
        Route("/", _generation(service, "/", "compat"), methods=["POST"]),
        Route("/generate", _generation(service, "/generate", "generate"), methods=["POST"]),
        Route("/generate_stream", _generation(service, "/generate_stream", "generate_stream"), methods=["POST"]),
        Route("/health", pages.health, methods=["GET"]),
        Route("/info", pages.info, methods=["GET"]),
        Route("/chat_tokenize", pages.chat_tokenize, methods=["POST"]),
        Route("/metrics", pages.metrics, methods=["GET"]),
    ]


def _generation(service: Service, path: str, route: TgiRoute) -> GenerationRoute:
    return GenerationRoute(service, route=path, dialect=tgi_dialect(service.settings, route))


class _TgiPages:
    """The endpoints of TGI that do not generate text."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def root(self, request: Request) -> Response:
        """Answer with the chat page, or with TGI's health check."""
        if self._service.settings.web and is_browser(request):
            return chat_page(request)
        return await self.health(request)

    async def health(self, _request: Request) -> Response:
        """Answer 200 without a body while the server is ready."""
        health = self._service.health
        if health is ServerPhase.READY:
            return Response(status_code=200)
        return Response(render_unhealthy(NOT_READY[health]), status_code=503, media_type=_JSON)

    async def info(self, _request: Request) -> Response:
        """Describe the model and its limits, as TEI does in its dialect and for a model that generates no text."""
        stats, model = self._service.stats(), self._service.backend.info
        is_tei = self._service.settings.dialect == "tei" or not model.generates
        if is_tei and model.pooling is not None:
            described = render_tei_info(
                model,
                model.pooling,
                max_concurrent_requests=self._service.settings.max_concurrent_requests,
                server_version=package_version("headrace"),
            )
            return Response(described, media_type=_JSON)
        body = render_info(
            model,
            version=tgi_version(self._service.settings),
            limits=self._service.limits,
            kv_cache_tokens=stats.num_blocks * stats.block_tokens,
            max_concurrent_requests=self._service.settings.max_concurrent_requests,
            server_version=package_version("headrace"),
        )
        return Response(body, media_type=_JSON)

    async def chat_tokenize(self, request: Request) -> Response:
        """Answer with the tokens of a chat, rendered by the chat template."""
        context = self._service.context(trace_of(request.scope).request_id)
        async with self._service.admit(request.scope, request.receive) as body:
            parsed = await self._service.understand(body, lambda body: OpenAIChat().parse(body, context))
            prompt = parsed.requests[0].prompt
            if not isinstance(prompt, ChatPrompt):
                raise InvalidRequest("`messages` is missing.", param="messages")
            text, spans = await asyncio.to_thread(self._service.backend.tokenize, prompt)
            return Response(render_chat_tokenize(text, spans), media_type=_JSON)

    async def metrics(self, _request: Request) -> Response:
        """Answer with the metrics for Prometheus."""
        if not self._service.settings.metrics:
            raise NotFound("Metrics are turned off here (metrics=false).")
        # Imported at the first scrape: prometheus_client would cost every start 50 ms.
        from headrace.core.exposition import render

        metrics = render(self._service.metrics)
        if self._service.formatters is not None:
            from headrace.server.handlers.metrics import pool_metrics

            metrics += pool_metrics(self._service.formatters.pool)
        return Response(metrics, media_type=_METRICS_TYPE)
