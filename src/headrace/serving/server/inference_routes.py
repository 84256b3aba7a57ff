"""
The routes of all APIs that generate text or compute vectors and scores.

They are those of OpenAI, Anthropic, Ollama, TGI and TEI, vLLM's around the tokenizer, and `/rerank` and `/score` as
Cohere, Jina and vLLM serve them. `GET /` is the chat page for a browser and TGI's health check for other clients.
Source: TGI `router/src/server.rs`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib.metadata import version as package_version
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.errors import InvalidRequest, NotFound
from headrace.core.generation import ChatPrompt
from headrace.core.tracing import trace_of
from headrace.serving.http.pages import api_page_routes, page_response, page_routes
from headrace.serving.server.base_service import NOT_READY, ServerPhase
from headrace.serving.server.generate import GenerationRoute
from headrace.serving.server.service import Service
from headrace.serving.wire.anthropic.dialect import AnthropicMessages, parse_count
from headrace.serving.wire.anthropic.reply import render_count as render_anthropic_count
from headrace.serving.wire.dialect import Dialect, ParsedRequest, RequestContext
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, field_names
from headrace.serving.wire.infill import Infill
from headrace.serving.wire.ollama import models as ollama
from headrace.serving.wire.ollama.dialect import OllamaChat, OllamaGenerate
from headrace.serving.wire.ollama.embeddings import OllamaEmbed, OllamaEmbeddings
from headrace.serving.wire.openai import pages as vllm
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.openai.pages import render_model, render_models
from headrace.serving.wire.openai.pooling import OpenAIEmbeddings, Rerank, Score
from headrace.serving.wire.openai.responses import OpenAIResponses
from headrace.serving.wire.openai.responses_reply import render_count
from headrace.serving.wire.openai.stored_responses import ACTIONS, Action, ResponseCall, ResponseKey, ResponseStore
from headrace.serving.wire.tei.dialect import Tei, TeiRoute
from headrace.serving.wire.tei.dialect import render_info as render_tei_info
from headrace.serving.wire.tgi.dialect import Tgi
from headrace.serving.wire.tgi.reply import (
    Version,
    parse_tokenize,
    render_chat_tokenize,
    render_info,
    render_tokenize,
    render_unhealthy,
)
from headrace.serving.wire.unknown_routes import (
    COUNT_TOKENS,
    DETOKENIZE,
    INPUT_TOKENS,
    MESSAGES,
    OPENAPI_PATH,
    RESPONSES,
    TOKENIZE,
    TOKENIZER_INFO,
    VERSION,
)

T = TypeVar("T")


def generation_route(service: Service, path: str, dialect: Dialect) -> Route:
    return Route(path, GenerationRoute(service, route=path, dialect=dialect), methods=["POST"])


def json_route(path: str, render: Callable[[], bytes]) -> Route:
    async def endpoint(_request: Request) -> Response:
        return Response(render(), media_type=JSON_CONTENT_TYPE)

    return Route(path, endpoint, methods=["GET"])


def body_route(
    service: Service,
    path: str,
    parse: Callable[[bytes, RequestContext], T],
    answer: Callable[[T], bytes],
    *,
    extra_bytes: Callable[[bytes], int] = lambda _: 0,
) -> Route:
    """Return a route that parses a body within the server's limits, and answers with JSON from another thread."""

    async def endpoint(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)
        async with service.admit(request.scope, request.receive) as body:
            parsed = await service.parse_body(body, lambda body: parse(body, context), extra_bytes=extra_bytes(body))
            return Response(await asyncio.to_thread(answer, parsed), media_type=JSON_CONTENT_TYPE)

    return Route(path, endpoint, methods=["POST"])


def openai_routes(service: Service) -> list[Route]:
    """Return the routes for models, completions, chat completions, responses and embeddings."""

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if not name:
            raise HTTPException(404)
        backend = service.backend
        return Response(render_model(backend.info, name, adapters=backend.adapters), media_type=JSON_CONTENT_TYPE)

    return [
        json_route("/v1/models", lambda: render_models(service.backend.info, adapters=service.backend.adapters)),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        generation_route(service, "/v1/chat/completions", OpenAIChat()),
        generation_route(service, "/v1/completions", OpenAICompletions()),
        generation_route(service, "/infill", Infill()),
        *_responses_routes(service),
        generation_route(service, "/v1/embeddings", OpenAIEmbeddings()),
    ]


def _responses_routes(service: Service) -> list[Route]:
    """Return the routes of the Responses API; those of stored responses only where some are stored."""
    dialect, store = OpenAIResponses(service.responses), service.responses

    def extra_bytes(body: bytes) -> int:
        return dialect.num_stored_bytes(body, time.time())

    responses = GenerationRoute(service, route=RESPONSES, dialect=dialect, extra_bytes=extra_bytes)
    return [
        Route(RESPONSES, responses, methods=["POST"]),
        body_route(
            service,
            INPUT_TOKENS,
            dialect.parse_count,
            lambda prompt: render_count(len(service.backend.tokenize(prompt)[1])),
            extra_bytes=extra_bytes,
        ),
        *(
            Route(f"{RESPONSES}/{{id}}{suffix}", _stored_response(store, action), methods=[method])
            for (method, suffix), action in ACTIONS.items()
            if store is not None
        ),
    ]


def _stored_response(store: ResponseStore, action: Action) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        key = ResponseKey("", request.path_params["id"])
        call = ResponseCall(store=store, key=key, query=request.query_params, now_s=time.time())
        return Response(action(call), media_type=JSON_CONTENT_TYPE)

    return endpoint


def anthropic_routes(service: Service) -> list[Route]:
    return [
        generation_route(service, MESSAGES, AnthropicMessages()),
        body_route(
            service,
            COUNT_TOKENS,
            parse_count,
            lambda prompt: render_anthropic_count(len(service.backend.tokenize(prompt)[1])),
        ),
    ]


def ollama_routes(service: Service) -> list[Route]:
    """Return Ollama's routes: those that generate, and those that describe the model."""
    return [
        generation_route(service, "/api/chat", OllamaChat()),
        generation_route(service, "/api/generate", OllamaGenerate()),
        generation_route(service, "/api/embed", OllamaEmbed()),
        generation_route(service, "/api/embeddings", OllamaEmbeddings()),
        json_route("/api/tags", lambda: ollama.render_tags(service.backend.info, service.backend.adapters)),
        json_route("/api/ps", lambda: ollama.render_running(service.backend.info, service.backend.adapters)),
        json_route("/api/version", ollama.render_version),
        body_route(service, "/api/show", ollama.render_show, bytes),
    ]


def tokenizer_routes(service: Service) -> list[Route]:
    """Return vLLM's routes around the tokenizer; `/tokenize` is TGI's too, whose body has `inputs`."""

    def parse(body: bytes, context: RequestContext) -> vllm.TokensRequest | str:
        return vllm.parse_tokens(body, context) if vllm.is_tokens_body(body) else parse_tokenize(body)

    def tokenize(request: vllm.TokensRequest | str) -> bytes:
        backend = service.backend
        if isinstance(request, str):  # TGI's
            return render_tokenize(backend.tokenize(request)[1])
        _, spans = backend.tokenize(request.prompt, add_special_tokens=request.add_special_tokens)
        return vllm.render_tokens(spans, max_model_len=backend.info.max_model_len, shows_pieces=request.shows_pieces)

    return [
        body_route(service, TOKENIZE, parse, tokenize),
        body_route(
            service, DETOKENIZE, vllm.parse_detokenize, lambda ids: vllm.render_text(service.backend.detokenize(ids))
        ),
        json_route(TOKENIZER_INFO, lambda: vllm.render_tokenizer(service.backend.tokenizer_config)),
        json_route(VERSION, lambda: vllm.render_version(package_version("headrace"))),
    ]


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEI_ROUTES: tuple[TeiRoute, ...] = ("embed", "embed_all", "predict", "similarity")


def tgi_routes(service: Service) -> list[Route]:
    """Return the routes of TGI but `/tokenize`, which is one of `tokenizer_routes`."""
    version: Version = "1.0" if service.settings.dialect in ("tgi-1.0", "hf-toolkit") else "3"

    async def root(request: Request) -> Response:
        if service.settings.web and "text/html" in request.headers.get("accept", ""):  # a browser
            return page_response(request, _PACKAGE, "index.html")
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
        num_state_slots=stats.num_state_slots,
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


_PACKAGE = "headrace.serving.server"
_ABOUT = (
    "One model, in the APIs of OpenAI, Anthropic, Ollama, TGI, TEI, LMI and SageMaker. A field that changes the answer "
    "is applied, or refused by name; fields that are not described have no effect."
)


def web_routes(service: Service) -> list[Route]:
    """Return the description and, unless the settings turn pages off, the pages' files; `GET /` is TGI's route."""

    async def openapi(_request: Request) -> Response:
        info = service.info()
        model = service.settings.model if info is None else info.name
        return Response(_document(model), media_type=JSON_CONTENT_TYPE)

    description = Route(OPENAPI_PATH, openapi, methods=["GET"])
    return [description, *api_page_routes(), *page_routes("/web", _PACKAGE)] if service.settings.web else [description]


@lru_cache(maxsize=2)
def _document(model: str) -> bytes:
    from headrace.serving.wire.openapi.document import render_openapi
    from headrace.serving.wire.openapi.operations import SERVER_OPERATIONS, with_model

    operations, version = with_model(SERVER_OPERATIONS, model), package_version("headrace")
    return render_openapi(operations, title="Headrace model server", version=version, description=_ABOUT)
