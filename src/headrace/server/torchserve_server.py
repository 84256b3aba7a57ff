"""A model server of TorchServe's models: its routes, and the management and metrics APIs on addresses of their own."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.middleware import Middleware

from headrace.core.errors import SettingsError
from headrace.core.spans import NO_TRACER, Tracer
from headrace.core.telemetry import get_logger, setup_logging
from headrace.handlers.spec import HandlerSpec
from headrace.handlers.torchserve import model_version
from headrace.handlers.torchserve_config import ManagementOptions
from headrace.handlers.torchserve_models import TorchServeModels
from headrace.http.otlp import tracing
from headrace.server.app import middleware
from headrace.server.base_service import ServerPhase
from headrace.server.handlers.app import handler_app
from headrace.server.lifecycle import SideApp, flush, in_daemon_thread, serve
from headrace.server.main import TRACED_SERVICE, log_notices
from headrace.server.torchserve_management import management_app
from headrace.server.torchserve_metrics import metrics_app
from headrace.server.torchserve_routes import torchserve_routes
from headrace.server.torchserve_service import TorchServeService
from headrace.settings.addresses import split_address
from headrace.settings.container_names import Notice
from headrace.settings.server_settings import ServerSettings
from headrace.wire.torchserve.management import ApiError, Registration

_MAX_REGISTRATIONS: Final = 4
"""Registrations that are fetched and unpacked at once."""

FindRegistered = Callable[[Registration], HandlerSpec]
"""Finds the model of a registration; blocks, and raises the client's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """A model that is loaded at startup."""

    url: str
    prepare: Callable[[], HandlerSpec]
    """Prepares what the children need, such as an environment with the model's packages; blocks."""
    is_default: bool = False
    """Its version becomes the default one."""


OnModelsReady = Callable[[str, Sequence[HandlerSpec], Mapping[str, str]], None]
"""Called once, when all models are loaded, with the URL, what is served, and the addresses of the other APIs."""


def run_torchserve_server(
    settings: ServerSettings,
    startup: Sequence[Startup],
    find_model: FindRegistered,
    *,
    options: ManagementOptions,
    notices: Iterable[Notice] = (),
    on_ready: OnModelsReady | None = None,
) -> int:
    """
    Serve TorchServe's models until a signal stops the server.

    Args:
        settings: the server's settings.
        startup: the models to load; none: clients register them.
        find_model: finds the models that clients register; called on threads.
        options: the options of the management API.
        notices: about the settings, logged first.
        on_ready: called when the server is ready.

    Returns:
        The exit code; the error of a failure has been written to stderr.
    """
    setup_logging(format=settings.log_format, level=settings.log_level)
    log_notices(notices)
    with tracing(settings.otlp_traces_endpoint, os.environ, service=TRACED_SERVICE) as tracer:
        server = TorchServeServer(settings, startup, find_model, options=options, on_ready=on_ready, tracer=tracer)
        return serve(server)


class TorchServeServer:
    """A server of TorchServe's models; see `Served`."""

    def __init__(
        self,
        settings: ServerSettings,
        startup: Sequence[Startup],
        find_model: FindRegistered,
        *,
        options: ManagementOptions,
        on_ready: OnModelsReady | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """See `run_torchserve_server`."""
        fetching = asyncio.Semaphore(_MAX_REGISTRATIONS)

        async def find(registration: Registration) -> HandlerSpec:
            async with fetching:
                return await in_daemon_thread(lambda: find_model(registration))

        self.settings = settings
        self.models = TorchServeModels(find, options)
        self._service = TorchServeService(settings, self.models, tracer=tracer)
        self.limiter = self._service.limiter
        self.app = handler_app(self._service, torchserve_routes(self._service))
        self.terminate = self._service.terminate
        self.close = self._service.close
        self._startup = startup
        self._on_ready = on_ready
        self.side_apps = list(self._side_apps())

    def _side_apps(self) -> Iterable[SideApp]:
        for name, address, make in (
            ("management", self.settings.management_address, management_app),
            ("metrics", self.settings.metrics_address, metrics_app),
        ):
            if address is not None:
                host, port = split_address(address)
                app = make(self.models, self._layers(host))
                yield SideApp(name=name, setting=f"{name}_address", host=host, port=port, app=app)

    def _layers(self, host: str) -> list[Middleware]:
        def is_draining() -> bool:
            return self._service.phase is ServerPhase.TERMINATING

        return middleware(self.settings, host=host, is_draining=is_draining)

    async def start(self) -> None:
        """Prepare what the children need, and wait until every model has a worker that has loaded it."""
        specs = [await in_daemon_thread(model.prepare) for model in self._startup]
        try:
            async with asyncio.TaskGroup() as group:
                for spec, model in zip(specs, self._startup, strict=True):
                    group.create_task(self.models.load(spec, url=model.url))
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise (SettingsError(f"{first}.") if isinstance(first, ApiError) else first) from None
        for spec, model in zip(specs, self._startup, strict=True):
            if model.is_default:
                self.models.set_default(spec.model_name, model_version(spec.load.manifest))
        self._service.phase = ServerPhase.READY

    def report_ready(self, url: str, start_ms: int, side_urls: Mapping[str, str]) -> None:
        """Log what is served and call `on_ready`."""
        models = self.models.all()
        get_logger().info(
            "server.ready",
            url=url,
            contract="torchserve",
            models=[f"{model.name} {model.version}" for model in models],
            workers=sum(model.pool.min_workers for model in models),
            start_ms=start_ms,
            **side_urls,
        )
        if self._on_ready is not None:
            self._on_ready(url, [model.spec for model in models], side_urls)

    async def finish(self, deadline_s: float) -> None:
        """Let requests in flight finish until the deadline, and stop the children."""
        at_stop = self.limiter.in_flight
        await asyncio.shield(self.models.close(deadline_s=deadline_s))
        await flush(self.limiter)
        get_logger().info("server.stopped", in_flight=at_stop)
