"""The page that shows an OpenAPI document and sends requests: Swagger UI, served from `http/web`."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.http.pages import media_type, read_shared

DOCS_PATH = "/docs"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Swagger UI writes HTML, so the rules of our own pages about that do not apply to it."""
_LIBRARY = "vendor/swagger-ui-dist"
_FILES = {
    "api.css": "api.css",
    "api.js": "api.js",
    "swagger-ui.css": f"{_LIBRARY}/swagger-ui.css",
    "swagger-ui-bundle.js": f"{_LIBRARY}/swagger-ui-bundle.js",
}


def api_page_routes() -> list[Route]:
    """Return the routes of the page, which reads the document at `/openapi.json`."""
    files = [Route(f"{DOCS_PATH}/{name}", _file(path), methods=["GET"]) for name, path in _FILES.items()]
    return [Route(DOCS_PATH, _file("api.html"), methods=["GET"]), *files]


def _file(path: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(read_shared(path), media_type=media_type(path), headers=_HEADERS)

    return endpoint
