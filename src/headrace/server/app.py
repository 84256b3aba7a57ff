"""The HTTP application of one model server: its routes and its middleware, each as one list."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from headrace.core.spans import NO_TRACER, Tracer
from headrace.engine.backend import Backend
from headrace.http.origins import ANY, allowed_patterns
from headrace.server.adapter_routes import adapter_routes
from headrace.server.anthropic_routes import anthropic_routes
from headrace.server.auth import RequireKey
from headrace.server.base_service import ServerPhase
from headrace.server.draining import CloseConnections
from headrace.server.errors import EXCEPTION_HANDLERS
from headrace.server.ollama_routes import ollama_routes
from headrace.server.openai_routes import openai_routes
from headrace.server.openapi_routes import openapi_routes
from headrace.server.origin_check import OriginCheck
from headrace.server.pages import page_routes
from headrace.server.pooling_routes import pooling_routes
from headrace.server.request_ids import RequestIds
from headrace.server.sagemaker import sagemaker_routes
from headrace.server.service import Service
from headrace.server.tgi_routes import tgi_routes
from headrace.server.tokenizer_routes import tokenizer_routes
from headrace.settings.addresses import is_loopback
from headrace.settings.server_settings import ServerSettings


def create_app(settings: ServerSettings, backend: Backend | None = None) -> Starlette:
    """
    Create the application.

    Args:
        settings: the server's settings.
        backend: a started backend. Without one the application answers that it is loading, until
            `app.state.service.attach(backend)`.
    """
    return app_of(Service(settings, backend))


def app_of(service: Service) -> Starlette:
    """Return the application around a service."""
    app = Starlette(
        routes=_routes(service),
        middleware=middleware(
            service.settings,
            is_draining=lambda: service.phase is ServerPhase.TERMINATING,
            tracer=service.tracer,
        ),
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False  # behind a gateway it would redirect to the worker's own address
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    inference = [
        *openai_routes(service),
        *anthropic_routes(service),
        *ollama_routes(service),
        *pooling_routes(service),
        *tgi_routes(service),
        *tokenizer_routes(service),
    ]
    return [
        *inference,
        *sagemaker_routes(service, inference),
        *adapter_routes(service),
        *openapi_routes(service),
        *(page_routes() if service.settings.web else ()),
    ]


def middleware(
    settings: ServerSettings,
    *,
    is_draining: Callable[[], bool],
    host: str | None = None,
    tracer: Tracer = NO_TRACER,
) -> list[Middleware]:
    """
    Return the middleware of every server: ids and spans, the end of connections, origins, CORS and the key.

    `host` is the address of an application that has its own.
    """
    is_open = is_loopback(host or settings.host) and settings.api_key is None
    is_private = is_open and ANY not in settings.cors_allow_origins
    hosts = allowed_patterns(settings.allowed_hosts, is_open=is_private)
    layers = [
        Middleware(RequestIds, tracer=tracer),
        Middleware(CloseConnections, is_draining=is_draining),
        Middleware(OriginCheck, origins=settings.cors_allow_origins, hosts=hosts),
    ]
    if settings.cors_allow_origins:
        # Before the key: a preflight request carries none.
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_allow_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    if settings.api_key is not None:
        layers.append(Middleware(RequireKey, api_key=settings.api_key))
    return layers
