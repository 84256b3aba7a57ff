"""Routes of stored responses (Responses API)."""

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.wire.framing import JSON_CONTENT_TYPE
from headrace.wire.openai.response_actions import ACTIONS, Action, ResponseCall
from headrace.wire.openai.stored_responses import ResponseKey, ResponseStore
from headrace.wire.unknown_routes import RESPONSES


def response_routes(store: ResponseStore) -> list[Route]:
    """Return the routes of the responses in a store."""
    return [
        Route(f"{RESPONSES}/{{id}}{suffix}", _endpoint(store, action), methods=[method])
        for (method, suffix), action in ACTIONS.items()
    ]


def _endpoint(store: ResponseStore, action: Action) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = ResponseCall(
            store=store,
            key=ResponseKey("", request.path_params["id"]),
            query=request.query_params,
            now_s=time.time(),
        )
        return Response(action(call), media_type=JSON_CONTENT_TYPE)

    return endpoint
