"""
Files and security headers of the web pages: the chat page, the console, and the page of an OpenAPI document.

They are static files without a build step, in the folder `web` of their packages. What several pages need (colours,
streaming, Markdown, rendering of an answer) is in `http/web`, with vendored libraries in `http/web/vendor`
(`scripts/vendor.py` fetches them).
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
_API_HEADERS = PAGE_HEADERS | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
"""Swagger UI writes HTML, so the rules of our own pages about that do not apply to it."""
DOCS_PATH = "/docs"
_API_FILES = {
    DOCS_PATH: "api.html",
    f"{DOCS_PATH}/api.css": "api.css",
    f"{DOCS_PATH}/api.js": "api.js",
    f"{DOCS_PATH}/swagger-ui.css": "vendor/swagger-ui-dist/swagger-ui.css",
    f"{DOCS_PATH}/swagger-ui-bundle.js": "vendor/swagger-ui-dist/swagger-ui-bundle.js",
}
_SHARED = "headrace.serving.http"
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "woff2": "font/woff2"}

Endpoint = Callable[[Request], Awaitable[Response]]


def page_routes(base: str, package: str) -> list[Route]:
    """Return the routes of a page's own scripts and styles, the shared ones, and the libraries, below `base`."""

    async def vendored(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _vendored():
            raise HTTPException(404)
        return page_response(request, _SHARED, f"vendor/{name}")

    return [
        *(Route(f"{base}/{name}", page_file(_SHARED, name), methods=["GET"]) for name in shared_files()),
        *(Route(f"{base}/{name}", page_file(package, name), methods=["GET"]) for name in _files_of(package)),
        Route(f"{base}/vendor/{{name:path}}", vendored, methods=["GET"]),
    ]


def api_page_routes() -> list[Route]:
    """Return the routes of Swagger UI, which shows the document at `/openapi.json` and sends requests."""

    def file(name: str) -> Endpoint:
        async def endpoint(_request: Request) -> Response:
            return Response(_read(_SHARED, name)[0], media_type=_media_type(name), headers=_API_HEADERS)

        return endpoint

    return [Route(path, file(name), methods=["GET"]) for path, name in _API_FILES.items()]


def page_file(package: str, *names: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return page_response(request, package, *names)

    return endpoint


def page_response(request: Request, package: str, *names: str) -> Response:
    """Answer with the files of the folder `web` of a package, one after the other, or 304 if the browser has them."""
    content, tag = _read(package, *names)
    headers = {**PAGE_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_media_type(names[0]), headers=headers)


def _media_type(name: str) -> str:
    return _TYPES[name.rpartition(".")[2]]


def shared_files() -> list[str]:
    """Return the scripts and styles that are served next to each page's own."""
    return [name for name in _files_of(_SHARED) if name not in _API_FILES.values()]


def _files_of(package: str) -> list[str]:
    names = (file.name for file in files(package).joinpath("web").iterdir())
    return sorted(name for name in names if name.endswith((".js", ".css")))


@cache
def _read(package: str, *names: str) -> tuple[bytes, str]:
    content = b"".join(files(package).joinpath("web", *name.split("/")).read_bytes() for name in names)
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@cache
def _vendored() -> frozenset[str]:
    packages = json.loads(files(_SHARED).joinpath("web", "vendor", "manifest.json").read_text())
    names = (
        f"{package.get('folder', package['name'])}/{entry['to']}"
        for package in packages
        for entry in package["files"].values()
    )
    return frozenset(name for name in names if name.rpartition(".")[2] in _TYPES)
