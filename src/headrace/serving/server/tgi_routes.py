"""
TGI's routes, and those for vectors and scores: TEI's, and `/rerank` and `/score` of Cohere, Jina and vLLM.

`GET /` is the chat page for a browser and TGI's health check for other clients. Source: TGI `router/src/server.rs`.
"""

from importlib.metadata import version as package_version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.errors import InvalidRequest, NotFound
from headrace.core.generation import ChatPrompt
from headrace.serving.server.base_service import NOT_READY, ServerPhase
from headrace.serving.server.generate import GenerationRoute
from headrace.serving.server.inference_routes import body_route, generation_route, json_route
from headrace.serving.server.pages import chat_page, is_browser
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.dialect import Dialect, ParsedRequest
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, field_names
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.pooling import Rerank, Score
from headrace.serving.wire.tei.dialect import Tei, TeiRoute
from headrace.serving.wire.tei.dialect import render_info as render_tei_info
from headrace.serving.wire.tgi.dialect import Tgi
from headrace.serving.wire.tgi.reply import Version, render_chat_tokenize, render_info, render_unhealthy

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEI_ROUTES: tuple[TeiRoute, ...] = ("embed", "embed_all", "predict", "similarity")


def tgi_routes(service: Service) -> list[Route]:
    """Return the routes of TGI but `/tokenize`, which is one of `tokenizer_routes`."""
    version = _tgi_version(service.settings)

    async def root(request: Request) -> Response:
        if service.settings.web and is_browser(request):
            return chat_page(request)
        return await health(request)

    async def health(_request: Request) -> Response:
        phase = service.health
        if phase is ServerPhase.READY:
            return Response(status_code=200)
        return Response(render_unhealthy(NOT_READY[phase]), status_code=503, media_type=JSON_CONTENT_TYPE)

    def chat_tokenize(parsed: ParsedRequest) -> bytes:
        prompt = parsed.requests[0].prompt
        if not isinstance(prompt, ChatPrompt):
            raise InvalidRequest("`messages` is missing.", param="messages")
        return render_chat_tokenize(*service.backend.tokenize(prompt))

    async def metrics(_request: Request) -> Response:
        if not service.settings.metrics:
            raise NotFound("Metrics are turned off here (metrics=false).")
        # Imported at the first scrape: prometheus_client would cost every start 50 ms.
        from headrace.core.exposition import render

        page = render(service.metrics)
        if service.formatters is not None:
            from headrace.serving.server.handlers.metrics import pool_metrics

            page += pool_metrics(service.formatters.pool)
        return Response(page, media_type=_METRICS_TYPE)

    return [
        Route("/", root, methods=["GET"]),
        generation_route(service, "/", Tgi(version=version, route="compat")),
        generation_route(service, "/generate", Tgi(version=version, route="generate")),
        generation_route(service, "/generate_stream", Tgi(version=version, route="generate_stream")),
        Route("/health", health, methods=["GET"]),
        json_route("/info", lambda: _info(service, version)),
        body_route(service, "/chat_tokenize", OpenAIChat().parse, chat_tokenize),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _tgi_version(settings: ServerSettings) -> Version:
    """Return the version of TGI that the settings name, else the current one."""
    return "1.0" if settings.dialect in ("tgi-1.0", "hf-toolkit") else "3"


def _info(service: Service, version: Version) -> bytes:
    """Describe the model and its limits, as TEI does in its dialect and for a model that generates no text."""
    stats, model, settings = service.stats(), service.backend.info, service.settings
    if model.pooling is not None and (settings.dialect == "tei" or not model.generates):
        return render_tei_info(
            model,
            model.pooling,
            max_concurrent_requests=settings.max_concurrent_requests,
            server_version=package_version("headrace"),
        )
    return render_info(
        model,
        version=version,
        limits=service.limits,
        kv_cache_tokens=stats.num_blocks * stats.block_tokens,
        max_concurrent_requests=settings.max_concurrent_requests,
        server_version=package_version("headrace"),
    )


def pooling_routes(service: Service) -> list[Route]:
    """Return the routes for vectors and scores; on `/rerank` the field `texts` means TEI's body."""

    def rerank_dialect(body: bytes) -> Dialect:
        return Tei("rerank") if "texts" in field_names(body) else Rerank()

    rerank = GenerationRoute(service, route="/rerank", dialect=Rerank(), choose=rerank_dialect)
    return [
        *(generation_route(service, f"/{name}", Tei(name)) for name in _TEI_ROUTES),
        Route("/rerank", rerank, methods=["POST"]),
        generation_route(service, "/v1/rerank", Rerank()),
        generation_route(service, "/v2/rerank", Rerank(shows_documents=False)),
        generation_route(service, "/score", Score()),
        generation_route(service, "/v1/score", Score()),
    ]
