"""The HTTP application of one model server."""

from starlette.applications import Starlette
from starlette.routing import Route

from headrace.inference.engine.backend import Backend
from headrace.serving.server.adapter_routes import adapter_routes
from headrace.serving.server.batch_routes import batch_routes
from headrace.serving.server.inference_routes import (
    anthropic_routes,
    ollama_routes,
    openai_routes,
    pooling_routes,
    tgi_routes,
    tokenizer_routes,
    web_routes,
)
from headrace.serving.server.middleware import EXCEPTION_HANDLERS, middleware
from headrace.serving.server.sagemaker import sagemaker_routes
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings


def create_app(settings: ServerSettings, backend: Backend | None = None) -> Starlette:
    """Create the application; without a started backend it answers that it loads, until `app.state.service.attach`."""
    return app_of(Service(settings, backend))


def app_of(service: Service) -> Starlette:
    app = Starlette(
        routes=_routes(service),
        middleware=middleware(service),
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
        *batch_routes(service, inference),
        *inference,
        *sagemaker_routes(service, inference),
        *adapter_routes(service),
        *web_routes(service),
    ]
