"""A model server around a model's own code: from its description to its exit code."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.core.telemetry import get_logger, setup_logging
from headrace.handlers.pool import HandlerPool
from headrace.handlers.spec import HandlerSpec
from headrace.http.otlp import tracing
from headrace.server.handlers.app import handler_app
from headrace.server.handlers.service import HandlerService
from headrace.server.lifecycle import SideApp, flush, in_daemon_thread, serve
from headrace.server.main import TRACED_SERVICE, log_notices
from headrace.settings.container_names import Notice
from headrace.settings.server_settings import ServerSettings

Prepare = Callable[[HandlerSpec], HandlerSpec]
"""Prepares what the children need, such as an environment with the model's packages. Blocks; raises `HeadraceError`."""

OnHandlerReady = Callable[[str, HandlerSpec], None]
"""Called once, when the first child has loaded the code, with the URL and what is served."""


def run_handler_server(
    settings: ServerSettings,
    spec: HandlerSpec,
    *,
    notices: Iterable[Notice] = (),
    prepare: Prepare | None = None,
    on_ready: OnHandlerReady | None = None,
) -> int:
    """
    Serve a model's own code until a signal stops the server.

    Args:
        settings: the server's settings.
        spec: the code.
        notices: about the settings, logged first.
        prepare: called on a thread before the first child starts, while `/ping` answers 503.
        on_ready: called when the server is ready.

    Returns:
        The exit code; the error of a failure has been written to stderr.
    """
    setup_logging(format=settings.log_format, level=settings.log_level)
    log_notices(notices)
    with tracing(settings.otlp_traces_endpoint, os.environ, service=TRACED_SERVICE) as tracer:
        service = HandlerService(settings, spec, tracer=tracer)
        return serve(HandlerServer(service, prepare=prepare, on_ready=on_ready))


class HandlerServer:
    """A server around a model's own code; see `Served`."""

    def __init__(
        self,
        service: HandlerService,
        *,
        prepare: Prepare | None = None,
        on_ready: OnHandlerReady | None = None,
    ) -> None:
        """See `run_handler_server`."""
        self.settings = service.settings
        self.limiter = service.limiter
        self.app = handler_app(service)
        self.side_apps: Sequence[SideApp] = ()
        self.terminate = service.terminate
        self.close = service.close
        self._service = service
        self._prepare = prepare
        self._on_ready = on_ready
        self._pool: HandlerPool | None = None

    async def start(self) -> None:
        """Prepare what the children need, and wait for the first of them."""
        spec, prepare = self._service.spec, self._prepare
        if prepare is not None:
            spec = await in_daemon_thread(lambda: prepare(spec))
        pool = HandlerPool(spec)
        await pool.start()  # closes the pool itself if it fails or is cancelled
        self._pool = pool
        self._service.attach(pool)

    def report_ready(self, url: str, start_ms: int, _side_urls: Mapping[str, str]) -> None:
        """Log what is served and call `on_ready`."""
        spec = self._service.spec
        get_logger().info(
            "server.ready",
            url=url,
            model=spec.model_name,
            contract=spec.contract,
            entry=spec.load.entry,
            workers=spec.min_workers,
            max_workers=spec.max_workers,
            start_ms=start_ms,
        )
        if self._on_ready is not None:
            self._on_ready(url, spec)

    async def finish(self, deadline_s: float) -> None:
        """Let requests in flight finish until the deadline, and stop the children."""
        if self._pool is None:
            return
        at_stop = self.limiter.in_flight
        await asyncio.shield(self._pool.close(deadline_s=deadline_s))
        await flush(self.limiter)
        get_logger().info("server.stopped", in_flight=at_stop)
