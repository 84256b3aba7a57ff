"""
The console at `/console`: static files, and an API for data that no public API returns.

These data are the traffic of the last hour, and the instance of each copy of a component. For everything else the page
uses the public APIs: SageMaker, Application Auto Scaling, CloudWatch, CloudWatch Logs and `/v1`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from headrace.gateway.traffic_history import TrafficHistory
from headrace.http.pages import PAGE_HEADERS, SHARED, media_type, read_page
from headrace.state.records import Json

CONSOLE_PATH = "/console"
MAX_RATES = 200
"""Endpoints in one request for rates; a page of the list has 25."""
_FILES = (
    "aws.js",
    "charts.js",
    "components.css",
    "components.js",
    "console.css",
    "console.js",
    "deploy.js",
    "detail.js",
    "dialog.js",
    "dialogs.css",
    "format.js",
    "list.js",
    "logs.js",
    "paths.js",
    "placement.js",
    "playground.js",
    "poll.js",
    "scaling.css",
    "scaling.js",
    "scaling_data.js",
    "timeline.js",
    "traffic.js",
    *SHARED,
)
_API_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def is_console(path: str) -> bool:
    """Return whether a path is the console's. NOTE: a signed request to it means a bucket called `console`."""
    return path == CONSOLE_PATH or path.startswith(f"{CONSOLE_PATH}/")


def needs_key(path: str) -> bool:
    """Return whether a path of the console needs a key: the API does, but not the page, which asks the user for it."""
    return path.startswith(f"{CONSOLE_PATH}/api/")


def console_app(
    history: TrafficHistory, components: Callable[[str], Json], *, clock: Callable[[], float] = time.time
) -> Starlette:
    """
    Create the application.

    Args:
        history: the gateway's traffic history; used in the event loop that calls the application.
        components: returns the description of an endpoint's inference components; called in a thread.
        clock: a clock, seconds since 1970.
    """

    async def traffic(request: Request) -> Response:
        """Handle `?endpoint=NAME&since=S`; S is seconds since 1970, or, if negative, relative to now."""
        name = request.query_params.get("endpoint", "")
        since_s = _number(request.query_params.get("since", "-600"))
        if not name or since_s is None:
            return _refusal("Expected ?endpoint=<name>&since=<seconds since 1970, or -600 for the last ten minutes>.")
        now_s = clock()
        return _json_response(history.series(name, since_s=since_s if since_s >= 0 else now_s + since_s, now_s=now_s))

    async def rates(request: Request) -> Response:
        """Handle `?endpoint=NAME&endpoint=NAME…`: return the rates of the last minute."""
        names = request.query_params.getlist("endpoint")
        if len(names) > MAX_RATES:
            return _refusal(f"The request names {len(names)} endpoints; expected at most {MAX_RATES}.")
        return _json_response(history.rates(names, now_s=clock()))

    async def placed(request: Request) -> Response:
        """Handle `?endpoint=NAME`: return the time, the inference components, and the instances of their copies."""
        name = request.query_params.get("endpoint", "")
        if not name:
            return _refusal("Expected ?endpoint=<name>.")
        return _json_response({"now_s": clock(), **await asyncio.to_thread(components, name)})

    return Starlette(
        routes=[
            Route(CONSOLE_PATH, _file("index.html"), methods=["GET"]),
            Route(f"{CONSOLE_PATH}/", _to_the_page, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/traffic", traffic, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/components", placed, methods=["GET"]),
            Route(f"{CONSOLE_PATH}/api/rates", rates, methods=["GET"]),
            *(Route(f"{CONSOLE_PATH}/web/{name}", _file(name), methods=["GET"]) for name in _FILES),
        ]
    )


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(read_page("headrace.platform", name), media_type=media_type(name), headers=PAGE_HEADERS)

    return endpoint


async def _to_the_page(_request: Request) -> Response:
    return RedirectResponse(CONSOLE_PATH, status_code=308)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _json_response(json: object) -> Response:
    return JSONResponse(json, headers=_API_HEADERS)


def _refusal(message: str) -> Response:
    return JSONResponse({"message": message}, status_code=400, headers=_API_HEADERS)
