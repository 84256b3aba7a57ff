"""The description of the server's routes, `/openapi.json`, and its page, `/docs`."""

from functools import lru_cache
from importlib.metadata import version as package_version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.http.api_page import api_page_routes
from headrace.server.service import Service
from headrace.wire.openapi.document import DocumentInfo, render_openapi
from headrace.wire.openapi.operations import OPENAPI_PATH, with_model
from headrace.wire.openapi.server_operations import SERVER_OPERATIONS

_ABOUT = (
    "One model, in the APIs of OpenAI, Anthropic, Ollama, TGI, TEI, LMI and SageMaker. A field that changes the answer "
    "is applied, or refused by name; fields that are not described have no effect."
)


def openapi_routes(service: Service) -> list[Route]:
    """Return the route of the description and, unless the settings turn pages off, those of its page."""

    async def openapi(_request: Request) -> Response:
        info = service.info()
        model = service.settings.model if info is None else info.name
        return Response(_document(model), media_type="application/json")

    return [
        Route(OPENAPI_PATH, openapi, methods=["GET"]),
        *(api_page_routes() if service.settings.web else ()),
    ]


@lru_cache(maxsize=2)
def _document(model: str) -> bytes:
    info = DocumentInfo(title="Headrace model server", version=package_version("headrace"), description=_ABOUT)
    return render_openapi(with_model(SERVER_OPERATIONS, model), info)
