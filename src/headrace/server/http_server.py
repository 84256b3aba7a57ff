"""Uvicorn as both of our servers run it: our protocol, our signals, our logs."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from headrace.server.http_protocol import StreamingProtocol


class HttpServer(uvicorn.Server):
    """Uvicorn that leaves the signals to us: it would raise them again at its end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around its run."""
        yield


def http_server(app: ASGIApp, *, grace_s: float | None = None) -> HttpServer:
    """
    Make a server around an application; `serve(sockets=[...])` runs it.

    Args:
        app: what answers.
        grace_s: how long requests may run on once it is to stop (rounded, one second at least); None: until they end.
    """
    config = uvicorn.Config(
        app,
        http=StreamingProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=None if grace_s is None else max(1, round(grace_s)),
    )
    return HttpServer(config)
