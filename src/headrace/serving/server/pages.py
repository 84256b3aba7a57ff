"""The chat page, the description of the server's routes, `/openapi.json`, and its page, `/docs`."""

from functools import lru_cache
from importlib.metadata import version as package_version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.serving.http.pages import api_page_routes, page_response, page_routes
from headrace.serving.server.service import Service
from headrace.serving.wire.framing import JSON_CONTENT_TYPE
from headrace.serving.wire.openapi.document import DocumentInfo, render_openapi
from headrace.serving.wire.openapi.operations import OPENAPI_PATH, SERVER_OPERATIONS, with_model

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


def is_browser(request: Request) -> bool:
    """Return whether the client is a browser, which gets a page instead of JSON."""
    return "text/html" in request.headers.get("accept", "")


def chat_page(request: Request) -> Response:
    return page_response(request, _PACKAGE, "index.html")


@lru_cache(maxsize=2)
def _document(model: str) -> bytes:
    info = DocumentInfo(title="Headrace model server", version=package_version("headrace"), description=_ABOUT)
    return render_openapi(with_model(SERVER_OPERATIONS, model), info)
