"""The description of the platform's routes below `/v1` and of SageMaker's runtime, and its page."""

from functools import cache
from importlib.metadata import version as package_version

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.http.pages import DOCS_PATH, api_page_routes
from headrace.wire.aws.http import HttpRequest
from headrace.wire.openapi.document import DocumentInfo, render_openapi
from headrace.wire.openapi.operations import OPENAPI_PATH, PLATFORM_OPERATIONS

_ABOUT = (
    "`model` is the name of an endpoint or of an inference component; GET /v1/models lists those that can answer. "
    "AWS's other operations (SageMaker, S3, CloudWatch, ...) are called by the SDKs of AWS and not described here."
)


def is_api_docs(request: HttpRequest, path: str) -> bool:
    """Return whether a request is for the description or its page. NOTE: a bucket may be called `docs`."""
    if request.method not in {"GET", "HEAD"}:
        return False
    is_browser = "text/html" in request.headers.get("accept", "")
    return path == OPENAPI_PATH or path in _FILE_PATHS or (path == DOCS_PATH and is_browser)


def api_docs_app() -> Starlette:
    """Return the application."""
    return Starlette(routes=[Route(OPENAPI_PATH, _openapi, methods=["GET"]), *api_page_routes()])


_FILE_PATHS = frozenset(route.path for route in api_page_routes()) - {DOCS_PATH}


async def _openapi(_request: Request) -> Response:
    return Response(_document(), media_type="application/json")


@cache
def _document() -> bytes:
    info = DocumentInfo(title="Headrace platform", version=package_version("headrace"), description=_ABOUT)
    return render_openapi(PLATFORM_OPERATIONS, info)
