"""The chat page: its own files and those shared by all pages, each read once."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.http.pages import SHARED, file_route, page_response, vendor_route

_PACKAGE = "headrace.server"
_FILES = (
    "attachments.js",
    "chat.js",
    "history.js",
    "server.js",
    "store.js",
    "style.css",
    "transfer.js",
    *SHARED,
)


def page_routes() -> list[Route]:
    """Return the routes of the page's scripts and styles; the page itself is `GET /` (`server.tgi_routes`)."""
    return [*(file_route("/web", _PACKAGE, name) for name in _FILES), vendor_route("/web")]


def is_browser(request: Request) -> bool:
    """Return whether the client is a browser, which gets a page instead of JSON."""
    return "text/html" in request.headers.get("accept", "")


def chat_page(request: Request) -> Response:
    """Return the page itself."""
    return page_response(request, _PACKAGE, "index.html")
