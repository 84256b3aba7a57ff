"""
Files and security headers that the chat page and the console share.

The chat page of the model server and the console of the platform are static files without a build step. What both
need (colours, streaming, Markdown, rendering of an answer) is in `http/web`, with vendored libraries in
`http/web/vendor` (`scripts/vendor.py` fetches them).
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""A page may load nothing from other sites and make no HTML from text, and no site may frame it."""
SHARED = (
    "answer.js",
    "base.css",
    "blocks.js",
    "clipboard.js",
    "code.js",
    "conversation.js",
    "dom.js",
    "events.js",
    "loops.js",
    "markdown.css",
    "markdown.js",
    "maths.js",
    "messages.css",
    "patch.js",
    "poll.js",
    "thinking.js",
    "turn.js",
)
"""The files of `http/web`, served next to a page's own files."""
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "woff2": "font/woff2"}


def media_type(name: str) -> str:
    """Return the media type of a file by its extension."""
    return _TYPES[name.rpartition(".")[2]]


def read_shared(path: str) -> bytes:
    """Read a file of `http/web`."""
    return _read("headrace.http", path)[0]


def file_route(base: str, package: str, name: str) -> Route:
    """Return the route of a page's own file or a shared one below the path `base`."""
    return Route(f"{base}/{name}", page_file(package, name), methods=["GET"])


def vendor_route(base: str) -> Route:
    """Return the route of the vendored libraries below the path `base`."""

    async def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _vendored():
            raise HTTPException(404)
        return page_response(request, "headrace.http", f"vendor/{name}")

    return Route(f"{base}/vendor/{{name:path}}", endpoint, methods=["GET"])


def page_file(package: str, name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with a file of a page."""
    home = "headrace.http" if name in SHARED else package

    async def endpoint(request: Request) -> Response:
        return page_response(request, home, name)

    return endpoint


def page_response(request: Request, package: str, name: str) -> Response:
    """Answer with a file of the folder `web` of a package, or 304 if the browser has it."""
    content, tag = _read(package, name)
    headers = {**PAGE_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type(name), headers=headers)


@cache
def _read(package: str, name: str) -> tuple[bytes, str]:
    """Return the content of a file and its entity tag."""
    content = files(package).joinpath("web", *name.split("/")).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@cache
def _vendored() -> frozenset[str]:
    """Return the vendored files that a page may load."""
    packages = json.loads(files("headrace.http").joinpath("web", "vendor", "manifest.json").read_text())
    names = (
        f"{package.get('folder', package['name'])}/{entry['to']}"
        for package in packages
        for entry in package["files"].values()
    )
    return frozenset(name for name in names if name.rpartition(".")[2] in _TYPES)
