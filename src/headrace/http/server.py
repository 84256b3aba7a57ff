"""Uvicorn as both of our servers run it: our protocol, our signals, our logs."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from headrace.http.protocol import DEFAULT_LIMITS, HttpLimits, StreamingProtocol

_OTHER_DESCRIPTORS = 1024
"""Files and connections to workers, besides the connections of clients."""


class HttpServer(uvicorn.Server):
    """Uvicorn that leaves the signals to us: it would raise them again at its end."""

    def stop(self, *, grace_s: float | None = None) -> None:
        """
        Close the listener and end.

        Args:
            grace_s: how long requests may run on (rounded, one second at least); None: until they end.
        """
        self.config.timeout_graceful_shutdown = None if grace_s is None else max(1, round(grace_s))
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around its run."""
        yield


def http_server(app: ASGIApp, *, limits: HttpLimits = DEFAULT_LIMITS) -> HttpServer:
    """Make a server around an application; `serve(sockets=[...])` runs it. `limits` are of its connections."""
    _allow_descriptors(limits.max_connections + _OTHER_DESCRIPTORS)
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(StreamingProtocol, limits=limits)),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
    return HttpServer(config)


def _allow_descriptors(wanted: int) -> None:
    """Raise the soft limit of this process, as far as it may: it is often 1024, and `accept` fails above it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
