"""A model server around an engine: its settings and notices, its backend, and what is logged about them."""

import asyncio
import atexit
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import ModelInfo
from headrace.core.metrics import Metrics
from headrace.core.progress import Progress, no_progress
from headrace.core.sampling_defaults import describe_defaults
from headrace.core.telemetry import get_logger, setup_logging
from headrace.core.threads import keep_from_collector
from headrace.inference.backends.choice import BackendChoice
from headrace.inference.engine.backend import Backend
from headrace.inference.engine.core.observer import EngineObserver
from headrace.serving.http.otlp import tracing
from headrace.serving.server.app import app_of
from headrace.serving.server.engine_config import load_engine
from headrace.serving.server.lifecycle import ModelServer, in_daemon_thread, serve
from headrace.serving.server.service import FetchAdapter, Service
from headrace.serving.server.trusted_code import find_trusted, needs_isolation, run_isolated
from headrace.serving.settings.container_names import Notice, notices_for
from headrace.serving.settings.server_settings import ServerSettings
from headrace_handler import syscall_filter
from headrace_handler.sandbox import PARTS

if TYPE_CHECKING:
    from headrace.inference.engine.core.choice import Choice
    from headrace.inference.engine.core.step_plan import StepPlan
    from headrace.serving.server.formatters import Formatters


class MetricsObserver(EngineObserver):
    """Feeds histograms; only the engine's thread feeds these."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def step_finished(self, plan: "StepPlan", seconds: float) -> None:  # noqa: ARG002 - only the duration is a metric
        self._metrics.step_s.observe(seconds)

    def choice_finished(self, choice: "Choice") -> None:
        if choice.queue_s is not None:
            self._metrics.queue_s.observe(choice.queue_s)


_NO_CHATS = (
    "A base model: it continues text and refuses chats. Send text to /v1/completions or /generate, "
    "serve an instruct model, or give a template with --chat-template."
)
TRACED_SERVICE = "headrace-server"
"""Name of model servers in traces, unless `OTEL_SERVICE_NAME` gives one."""

OnChoice = Callable[[BackendChoice], None]
"""Called with the chosen backend before it is loaded, on the thread that loads it."""

LoadBackend = Callable[[ServerSettings, Progress, Metrics, OnChoice], Backend]
"""Loads a backend, which is started afterwards; blocks. It may feed the metrics from a thread of its own."""

OnNotices = Callable[[Sequence[Notice]], None]
"""Called once the backend is chosen, with the notices that apply to it; on the thread that loads it."""

OnReady = Callable[[str, ModelInfo, EngineStats], None]
"""Called once, after the first token, with the URL, the model and the engine's size."""


def load_measured_engine(
    settings: ServerSettings, progress: Progress, metrics: Metrics, on_choice: OnChoice
) -> Backend:
    """Load the engine for the model that the settings name, feeding the metrics."""
    return load_engine(settings, progress, observer=MetricsObserver(metrics), on_choice=on_choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """The server to run in this process: its settings, what it loads, and what it reports to."""

    settings: ServerSettings
    notices: Sequence[Notice] = ()
    progress: Progress = no_progress
    load: LoadBackend = load_measured_engine
    on_ready: OnReady | None = None
    on_notices: OnNotices | None = None
    fetch_adapter: FetchAdapter | None = None
    formatters: "Formatters | None" = None
    listener: socket.socket | None = None
    """None: one at the address of the settings."""


def run_server(
    settings: ServerSettings,
    *,
    notices: Iterable[Notice] = (),
    progress: Progress = no_progress,
    load: LoadBackend = load_measured_engine,
    on_ready: OnReady | None = None,
    on_notices: OnNotices | None = None,
    fetch_adapter: FetchAdapter | None = None,
    formatters: "Formatters | None" = None,
) -> int:
    """
    Serve until a signal stops the server; return the exit code. The error of a failure has been written to stderr.

    Notices about the settings are logged first, those that depend on the backend once it is chosen. `load` runs in a
    thread of its own. `fetch_adapter` and `formatters`: see `Service`. If code of the checkpoint may run, the server
    runs in another process, in a sandbox; an error before its start is raised.
    """
    run = ServerRun(
        settings=settings,
        notices=list(notices),
        progress=progress,
        load=load,
        on_ready=on_ready,
        on_notices=on_notices,
        fetch_adapter=fetch_adapter,
        formatters=formatters,
    )
    if not needs_isolation(settings):
        return serve_here(run)
    backend = find_trusted(settings, progress)
    if backend is None:
        return serve_here(replace(run, settings=replace(settings, trust_remote_code=False)))
    if on_notices is not None:
        on_notices(settled_notices(run.notices, backend.choice))
    return run_isolated(
        settings,
        backend,
        notices=run.notices,
        progress=progress,
        on_ready=on_ready,
        formatters=None if formatters is None else formatters.prepare(),
        fetches_adapters=fetch_adapter is not None,
    )


def serve_here(run: ServerRun) -> int:
    """Serve in this process until a signal stops the server; return the exit code."""
    settings = run.settings
    log_start(settings, (notice for notice in run.notices if not notice.backends))

    def on_choice(choice: BackendChoice) -> None:
        # No program is started from here on that could need more: files of strangers are read next.
        is_filtered = "system-call filter" in os.environ.get(PARTS, "") or (
            _is_filterable(choice)
            and settings.sandbox != "off"
            and syscall_filter.restrict(has_network=True, all_threads=True, may_isolate=run.formatters is not None)
        )
        get_logger().info(
            "backend.chosen",
            backend=choice.name,
            device=choice.device,
            reason=choice.reason,
            system_call_filter=is_filtered,
        )
        settled = settled_notices(run.notices, choice)
        log_notices(settled)
        if run.on_notices is not None:
            run.on_notices(settled)

    with tracing(settings.otlp_traces_endpoint, os.environ, service=TRACED_SERVICE) as tracer:
        service = Service(settings, fetch_adapter=run.fetch_adapter, formatters=run.formatters, tracer=tracer)
        return serve(_EngineServer(service, run.load, run.progress, run.on_ready, on_choice), run.listener)


def _is_filterable(choice: BackendChoice) -> bool:
    """Return whether a backend works under the filter; libraries of GPUs share memory by calls that it forbids."""
    return choice.name == "native" or (choice.name in ("torch", "transformers") and choice.device == "cpu")


def settled_notices(notices: Iterable[Notice], choice: BackendChoice) -> list[Notice]:
    """Return the notices that apply to the chosen backend, those about the choice itself first."""
    replaced = [Notice("rolling_batch", "ignored", message) for message in choice.notices]
    replaced += [Notice(name, "ignored", message) for name, message in choice.adjustments.items()]
    return [*replaced, *notices_for(notices, choice.name)]


def log_start(settings: ServerSettings, notices: Iterable[Notice]) -> None:
    setup_logging(format=settings.log_format, level=settings.log_level)
    log_notices(notices)


def log_notices(notices: Iterable[Notice]) -> None:
    for notice in notices:
        log = get_logger().info if notice.kind == "applied" else get_logger().warning
        log(f"setting.{notice.kind}", name=notice.name, message=notice.message)


class _EngineServer(ModelServer):
    def __init__(
        self,
        service: Service,
        load: LoadBackend,
        progress: Progress,
        on_ready: OnReady | None,
        on_choice: OnChoice,
    ) -> None:
        super().__init__(service, app_of(service))
        self._service = service
        self._load = load
        self._progress = progress
        self._on_ready = on_ready
        self._on_choice = on_choice
        self._backend: Backend | None = None
        self._batches: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load a backend in a thread and start it; the formatters first, as they fail sooner."""
        if self._service.formatters is not None:
            await self._service.formatters.start()
        try:
            backend = await in_daemon_thread(
                lambda: self._load(self._service.settings, self._progress, self._service.metrics, self._on_choice)
            )
            await backend.start()
        except asyncio.CancelledError:
            # The loading thread may be in native code, which does not survive the end of the interpreter.
            atexit.register(_exit_at_once)
            raise
        self._backend = backend
        if backend.info.backend != "native":
            gc.collect()  # other libraries may leave weights in cycles, which would be kept
        keep_from_collector()
        self._service.attach(backend)
        if self._service.batches is not None:
            self._batches = asyncio.create_task(self._service.batches.run(), name="batches")

    def report_ready(self, url: str, start_ms: int, _side_urls: Mapping[str, str]) -> None:
        backend = self._service.backend
        info = backend.info
        get_logger().info(
            "server.ready",
            url=url,
            model=info.name,
            backend=info.backend,
            backend_reason=info.backend_reason,
            dtype=info.dtype,
            kv_dtype=info.kv_dtype,
            format_reason=info.format_reason,
            device=info.device,
            max_model_len=info.max_model_len,
            rope=info.rope,
            sampling=describe_defaults(info.sampling_defaults),
            has_chat_template=info.has_chat_template,
            start_ms=start_ms,
        )
        if info.is_base:
            get_logger().warning("model.no_chat_template", message=_NO_CHATS)
        if self._on_ready is not None:
            self._on_ready(url, info, backend.stats())

    async def finish(self, deadline_s: float) -> None:
        """Let requests in flight finish until the deadline, but those of batches, which run again; log how many did."""
        if self._batches is not None:
            self._batches.cancel()
            await asyncio.gather(self._batches, return_exceptions=True)
        if self._backend is not None:
            at_stop, by_finish = self._service.limiter.in_flight, self._service.metrics.by_finish
            aborted_before = by_finish.get("abort", 0)
            await self._backend.close(deadline_s=deadline_s)
            await self.flush()
            aborted = by_finish.get("abort", 0) - aborted_before
            log = get_logger().warning if aborted else get_logger().info
            log("server.stopped", finished=at_stop - aborted, aborted=aborted)
        if self._service.formatters is not None:
            await self._service.formatters.close()


def _exit_at_once() -> None:
    """Exit after the other exit handlers, without finalizing the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
