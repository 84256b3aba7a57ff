"""Model servers around models' own code: that of one model, or TorchServe's models with their management API."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.telemetry import get_logger
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve import model_version
from headrace.serving.handlers.torchserve_config import ManagementOptions
from headrace.serving.handlers.torchserve_models import TorchServeModels
from headrace.serving.http.otlp import tracing
from headrace.serving.server.base_service import ServerPhase
from headrace.serving.server.handlers.app import handler_app
from headrace.serving.server.handlers.metrics import metrics_app
from headrace.serving.server.handlers.service import HandlerService, TorchServeService
from headrace.serving.server.lifecycle import ModelServer, SideApp, in_daemon_thread, serve
from headrace.serving.server.main import TRACED_SERVICE, log_start
from headrace.serving.server.middleware import middleware
from headrace.serving.server.torchserve_routes import management_app, torchserve_routes
from headrace.serving.settings.container_names import Notice
from headrace.serving.settings.rules import split_address
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.torchserve.management import ApiError, Registration

Prepare = Callable[[HandlerSpec], HandlerSpec]
"""Prepares what the children need, such as an environment with the model's packages. Blocks; raises `HeadraceError`."""

OnHandlerReady = Callable[[str, HandlerSpec], None]
"""Called once, when the first child has loaded the code, with the URL and what is served."""

_MAX_REGISTRATIONS: Final = 4
"""Registrations that are fetched and unpacked at once."""

FindRegistered = Callable[[Registration], HandlerSpec]
"""Finds the model of a registration; blocks, and raises the client's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    url: str
    prepare: Callable[[], HandlerSpec]
    """Prepares what the children need, such as an environment with the model's packages; blocks."""
    is_default: bool = False
    """Its version becomes the default one."""


OnModelsReady = Callable[[str, Sequence[HandlerSpec], Mapping[str, str]], None]
"""Called once, when all models are loaded, with the URL, what is served, and the addresses of the other APIs."""


def run_handler_server(
    settings: ServerSettings,
    spec: HandlerSpec,
    *,
    notices: Iterable[Notice] = (),
    prepare: Prepare | None = None,
    on_ready: OnHandlerReady | None = None,
) -> int:
    """
    Serve a model's own code until a signal stops the server; return the exit code.

    `prepare` is called on a thread before the first child starts, while `/ping` answers 503. The error of a failure has
    been written to stderr.
    """
    log_start(settings, notices)
    with tracing(settings.otlp_traces_endpoint, os.environ, service=TRACED_SERVICE) as tracer:
        return serve(_HandlerServer(HandlerService(settings, spec, tracer=tracer), prepare, on_ready))


class _HandlerServer(ModelServer):
    def __init__(self, service: HandlerService, prepare: Prepare | None, on_ready: OnHandlerReady | None) -> None:
        super().__init__(service, handler_app(service))
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
        if self._pool is not None:
            at_stop = self._service.limiter.in_flight
            await asyncio.shield(self._pool.close(deadline_s=deadline_s))
            await self.flush()
            get_logger().info("server.stopped", in_flight=at_stop)


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
    Serve TorchServe's models until a signal stops the server; return the exit code.

    The models of `startup` are loaded first; `find_model` finds, on a thread, those that clients register. The error of
    a failure has been written to stderr.
    """
    log_start(settings, notices)
    with tracing(settings.otlp_traces_endpoint, os.environ, service=TRACED_SERVICE) as tracer:
        return serve(
            _TorchServeServer(settings, startup, find_model, options=options, on_ready=on_ready, tracer=tracer)
        )


class _TorchServeServer(ModelServer):
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
        fetching = asyncio.Semaphore(_MAX_REGISTRATIONS)

        async def find(registration: Registration) -> HandlerSpec:
            async with fetching:
                return await in_daemon_thread(lambda: find_model(registration))

        self._models = TorchServeModels(find, options)
        service = TorchServeService(settings, self._models, tracer=tracer)
        super().__init__(service, handler_app(service, torchserve_routes(service)))
        self._startup = startup
        self._on_ready = on_ready
        self.side_apps = list(self._side_apps())

    def _side_apps(self) -> Iterable[SideApp]:
        settings = self.service.settings
        for name, address, make in (
            ("management", settings.management_address, management_app),
            ("metrics", settings.metrics_address, metrics_app),
        ):
            if address is not None:
                host, port = split_address(address)
                app = make(self._models, middleware(self.service, host=host))
                yield SideApp(name=name, setting=f"{name}_address", host=host, port=port, app=app)

    async def start(self) -> None:
        """Prepare what the children need, and wait until every model has a worker that has loaded it."""
        specs = [await in_daemon_thread(model.prepare) for model in self._startup]
        try:
            async with asyncio.TaskGroup() as group:
                for spec, model in zip(specs, self._startup, strict=True):
                    group.create_task(self._models.load(spec, url=model.url))
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise (SettingsError(f"{first}.") if isinstance(first, ApiError) else first) from None
        for spec, model in zip(specs, self._startup, strict=True):
            if model.is_default:
                self._models.set_default(spec.model_name, model_version(spec.load.manifest))
        self.service.phase = ServerPhase.READY

    def report_ready(self, url: str, start_ms: int, side_urls: Mapping[str, str]) -> None:
        models = self._models.all()
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
        at_stop = self.service.limiter.in_flight
        await asyncio.shield(self._models.close(deadline_s=deadline_s))
        await self.flush()
        get_logger().info("server.stopped", in_flight=at_stop)
