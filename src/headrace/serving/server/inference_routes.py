"""
The routes of OpenAI's, Anthropic's and Ollama's APIs, and vLLM's around the tokenizer.

TGI's and TEI's are in `server.tgi_routes`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version as package_version
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.serving.server.generate import GenerationRoute
from headrace.serving.server.service import Service
from headrace.serving.wire.anthropic.dialect import AnthropicMessages, parse_count
from headrace.serving.wire.anthropic.reply import render_count as render_anthropic_count
from headrace.serving.wire.dialect import Dialect, RequestContext
from headrace.serving.wire.framing import JSON_CONTENT_TYPE
from headrace.serving.wire.ollama import models as ollama
from headrace.serving.wire.ollama.dialect import OllamaChat, OllamaGenerate
from headrace.serving.wire.ollama.embeddings import OllamaEmbed, OllamaEmbeddings
from headrace.serving.wire.openai import pages as vllm
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.openai.pages import render_model, render_models
from headrace.serving.wire.openai.pooling import OpenAIEmbeddings
from headrace.serving.wire.openai.responses import OpenAIResponses
from headrace.serving.wire.openai.responses_reply import render_count
from headrace.serving.wire.openai.stored_responses import ACTIONS, Action, ResponseCall, ResponseKey, ResponseStore
from headrace.serving.wire.tgi.reply import parse_tokenize, render_tokenize
from headrace.serving.wire.unknown_routes import (
    COUNT_TOKENS,
    DETOKENIZE,
    INPUT_TOKENS,
    MESSAGES,
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
