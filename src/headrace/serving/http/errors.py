"""Handling of requests that fail: the client gets an error in its dialect, and bugs are logged."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from headrace.core.errors import HeadraceError, Internal, Unavailable
from headrace.core.telemetry import get_logger
from headrace.serving.http.body import ClientGone

CLIENT_GONE_STATUS = 499
"""Status in the log of a request whose client disconnected. Source: nginx."""

LAST_RESPONSE_S = 1.0
"""Time to answer a request that is cancelled because the server stops, which does not wait for it."""


class ResponseAborted(Exception):
    """A response that has begun cannot be completed: the server closes the connection, so that the client notices."""


SendError = Callable[[HeadraceError], Awaitable[None]]
"""Sends an error: as a response if nothing was sent yet, else in the stream."""


@asynccontextmanager
async def errors_answered(
    send_error: SendError, *, request_id: str, program: str = "server", stopping: str = ""
) -> AsyncIterator[None]:
    """
    Answer errors raised in the block; a bug is logged with its traceback and answered as `Internal`.

    The answer to a bug names `program` and `request_id`, to find its log line. `stopping` is the text of the error for
    a request that is cancelled; without it, it gets none. `ClientGone` and `ResponseAborted` are raised on: nothing can
    be answered.
    """
    try:
        yield
    except HeadraceError as error:
        await send_error(error)
    except asyncio.CancelledError:
        if stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_RESPONSE_S):
                    await send_error(Unavailable(stopping))
        raise
    except (ClientGone, ResponseAborted):
        raise
    except Exception:  # noqa: BLE001 -- the edge of every request
        get_logger().exception("request.crashed")
        await send_error(internal_error(request_id, program=program))


def internal_error(request_id: str, *, program: str = "server") -> Internal:
    """Return the error that stands for a bug; the log has its traceback."""
    return Internal(f"Something went wrong inside the {program} (request {request_id}).")
