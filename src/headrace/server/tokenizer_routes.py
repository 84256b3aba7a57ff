"""vLLM's routes around the tokenizer; `/tokenize` is TGI's too, whose body has `inputs`."""

import asyncio
from importlib.metadata import version as package_version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.tracing import trace_of
from headrace.server.service import Service
from headrace.wire.openai.tokenizer import (
    TokensRequest,
    is_tokens_body,
    parse_detokenize,
    parse_tokens,
    render_text,
    render_tokenizer,
    render_tokens,
    render_version,
)
from headrace.wire.tgi.pages import parse_tokenize, render_tokenize
from headrace.wire.unknown_routes import DETOKENIZE, TOKENIZE, TOKENIZER_INFO, VERSION

_JSON = "application/json"


def tokenizer_routes(service: Service) -> list[Route]:
    """Return the routes that tokenize, detokenize and describe the tokenizer."""

    async def tokenize(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)

        def parse(body: bytes) -> TokensRequest | str:
            return parse_tokens(body, context) if is_tokens_body(body) else parse_tokenize(body)

        async with service.admit(request.scope, request.receive) as body:
            asked = await service.understand(body, parse)
            return Response(await asyncio.to_thread(_tokenized, service, asked), media_type=_JSON)

    async def detokenize(request: Request) -> Response:
        context = service.context(trace_of(request.scope).request_id)
        async with service.admit(request.scope, request.receive) as body:
            token_ids = await service.understand(body, lambda body: parse_detokenize(body, context))
            text = await asyncio.to_thread(service.backend.detokenize, token_ids)
            return Response(render_text(text), media_type=_JSON)

    async def tokenizer_info(_request: Request) -> Response:
        return Response(render_tokenizer(service.backend.tokenizer_config), media_type=_JSON)

    async def version(_request: Request) -> Response:
        return Response(render_version(package_version("headrace")), media_type=_JSON)

    return [
        Route(TOKENIZE, tokenize, methods=["POST"]),
        Route(DETOKENIZE, detokenize, methods=["POST"]),
        Route(TOKENIZER_INFO, tokenizer_info, methods=["GET"]),
        Route(VERSION, version, methods=["GET"]),
    ]


def _tokenized(service: Service, asked: TokensRequest | str) -> bytes:
    """Return the body of the answer in the form of the request; a text alone is TGI's."""
    backend = service.backend
    if isinstance(asked, str):
        return render_tokenize(backend.tokenize(asked)[1])
    _, spans = backend.tokenize(asked.prompt, add_special_tokens=asked.add_special_tokens)
    return render_tokens(spans, max_model_len=backend.info.max_model_len, shows_pieces=asked.shows_pieces)
