"""The chat page: its own files and those shared by all pages, each read once."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.http.pages import PAGE_HEADERS, SHARED, media_type, read_page

_FILES = ("chat.js", "style.css", *SHARED)


def page_routes() -> list[Route]:
    """Return the routes of the page's scripts and styles; the page itself is `GET /` (`server.tgi_routes`)."""
    return [Route(f"/web/{name}", page_file(name), methods=["GET"]) for name in _FILES]


def is_browser(request: Request) -> bool:
    """Return whether the client is a browser, which gets a page instead of JSON."""
    return "text/html" in request.headers.get("accept", "")


def page(name: str) -> Response:
    """Return a file of the page."""
    return Response(read_page("headrace.server", name), media_type=media_type(name), headers=PAGE_HEADERS)


def page_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with a file of the page."""

    async def endpoint(_request: Request) -> Response:
        return page(name)

    return endpoint
