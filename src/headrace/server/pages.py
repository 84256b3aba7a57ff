"""The chat page: a few files that are read once, its own and those that all pages share."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.pages import PAGE_HEADERS, SHARED, media_type, read_page

_FILES = ("chat.js", "style.css", *SHARED)


def page_routes() -> list[Route]:
    """The page's scripts and styles; the page itself is `GET /` (`server.tgi_routes`)."""
    return [Route(f"/web/{name}", page_file(name), methods=["GET"]) for name in _FILES]


def is_browser(request: Request) -> bool:
    """Whether a page is wanted rather than an answer for a program."""
    return "text/html" in request.headers.get("accept", "")


def page(name: str) -> Response:
    """One file of the page."""
    return Response(read_page("headrace.server", name), media_type=media_type(name), headers=PAGE_HEADERS)


def page_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """What answers with one file of the page."""

    async def answer(_request: Request) -> Response:
        return page(name)

    return answer
