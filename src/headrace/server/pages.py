"""The chat page: three files that are read once, served with a policy that lets them load nothing from elsewhere."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_TYPES = {"chat.js": "text/javascript", "markdown.js": "text/javascript", "style.css": "text/css"}


def page_routes() -> list[Route]:
    """The page's script and style; the page itself is `GET /` (`server.tgi_routes`)."""
    return [Route(f"/web/{name}", _file(name), methods=["GET"]) for name in _TYPES]


def is_browser(request: Request) -> bool:
    """Whether a page is wanted rather than an answer for a program."""
    return "text/html" in request.headers.get("accept", "")


@cache
def read_page(name: str) -> bytes:
    """One file of the page."""
    return files("headrace.server").joinpath("web", name).read_bytes()


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return Response(read_page(name), media_type=_TYPES[name], headers=PAGE_HEADERS)

    return answer
