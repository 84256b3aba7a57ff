"""
The lifecycle of a model server: bind, listen, load, serve, shut down.

It listens before it loads, so that a port in use is reported at once and `/ping` answers 503 in the meantime. The first
SIGTERM or SIGINT shuts it down gracefully, a second one at once. After SIGTERM it keeps serving for `shutdown_delay_s`
with `/ping` at 503; then the listener closes. Requests in flight may finish within `shutdown_grace_s` of the signal.

Exit codes: 0 stopped by a signal, 1 failed, 2 an error that the caller can fix, 128 + n killed by a second signal n.
"""

import asyncio
import atexit
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

import uvloop

from headrace.backends.choice import BackendChoice
from headrace.core.errors import HeadraceError, UserError
from headrace.core.generation import EngineStats, ModelInfo
from headrace.core.metrics import Metrics
from headrace.core.progress import Progress, no_progress
from headrace.core.telemetry import get_logger, setup_logging
from headrace.engine.backend import Backend
from headrace.http.listener import bind, url_of
from headrace.http.server import http_limits, http_server
from headrace.server.app import app_of
from headrace.server.engine_config import load_engine
from headrace.server.observer import MetricsObserver
from headrace.server.service import FetchAdapter, Service
from headrace.settings.container_names import Notice, notices_for
from headrace.settings.server_settings import ServerSettings, resolve_shutdown_delay

OnChoice = Callable[[BackendChoice], None]
"""Called with the chosen backend before it is loaded, on the thread that loads it."""

LoadBackend = Callable[[ServerSettings, Progress, Metrics, OnChoice], Backend]
"""Loads a backend, which is started afterwards; blocks. It may feed the metrics from a thread of its own."""

OnNotices = Callable[[Sequence[Notice]], None]
"""Called once the backend is chosen, with the notices that hold with it; on the thread that loads it."""

OnReady = Callable[[str, ModelInfo, EngineStats], None]
"""Called once, after the first token, with the URL, the model and the engine's size."""

_FLUSH_S = 2.0
"""Seconds for the last bytes of the last request to be sent."""


def load_measured_engine(
    settings: ServerSettings, progress: Progress, metrics: Metrics, on_choice: OnChoice
) -> Backend:
    """Load the engine for the model that the settings name; it feeds the metrics."""
    return load_engine(settings, progress, observer=MetricsObserver(metrics), on_choice=on_choice)


def run_server(
    settings: ServerSettings,
    *,
    notices: Iterable[Notice] = (),
    progress: Progress = no_progress,
    load: LoadBackend = load_measured_engine,
    on_ready: OnReady | None = None,
    on_notices: OnNotices | None = None,
    fetch_adapter: FetchAdapter | None = None,
) -> int:
    """
    Serve until a signal stops the server.

    Args:
        settings: of the server.
        notices: about the settings, logged first; those that depend on the backend once it is chosen.
        progress: called with the progress of loading.
        load: loads the backend, in a thread of its own.
        on_ready: called when the server is ready.
        on_notices: called when the backend is chosen.
        fetch_adapter: see `Service`.

    Returns:
        The exit code; the error of a failure has been written to stderr.
    """
    setup_logging(format=settings.log_format, level=settings.log_level)
    notices = list(notices)
    _log_notices(notice for notice in notices if not notice.backends)

    def on_choice(choice: BackendChoice) -> None:
        get_logger().info("backend.chosen", backend=choice.name, device=choice.device, reason=choice.reason)
        settled = settled_notices(notices, choice)
        _log_notices(settled)
        if on_notices is not None:
            on_notices(settled)

    try:
        with bind(settings.host, settings.port) as listener:
            lifecycle = _ServerLifecycle(
                Service(settings, fetch_adapter=fetch_adapter), listener, load, progress, on_ready, on_choice
            )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(lifecycle.run())
    except HeadraceError as error:
        print(f"Error: {error.message}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 1


def settled_notices(notices: Iterable[Notice], choice: BackendChoice) -> list[Notice]:
    """Return the notices that hold once a backend is chosen, those about the choice itself first."""
    replaced = [Notice("rolling_batch", "ignored", message) for message in choice.notices]
    replaced += [Notice(name, "ignored", message) for name, message in choice.adjustments.items()]
    return [*replaced, *notices_for(notices, choice.name)]


def _log_notices(notices: Iterable[Notice]) -> None:
    for notice in notices:
        log = get_logger().info if notice.kind == "applied" else get_logger().warning
        log(f"setting.{notice.kind}", name=notice.name, message=notice.message)


class _ServerLifecycle:
    """A run of a server, from listening to its exit code."""

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        load: LoadBackend,
        progress: Progress,
        on_ready: OnReady | None,
        on_choice: OnChoice,
    ) -> None:
        self._settings = service.settings
        self._listener = listener
        self._load = load
        self._progress = progress
        self._on_ready = on_ready
        self._on_choice = on_choice
        self._service = service
        self._stop = asyncio.Event()
        self._delay_s = 0.0
        self._stopped_s: float | None = None
        """Time of the signal, by the monotonic clock."""
        self._started_s = perf_counter()
        self._http = http_server(app_of(self._service), limits=http_limits(service.settings))

    async def run(self) -> int:
        """Listen, load and serve until a signal; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        get_logger().info("server.listening", url=url_of(self._listener), model=self._settings.model)
        backend = None
        try:
            backend = await self._start_backend()
            if backend is not None:
                await self._stop.wait()
                await self._serve_until_drained()
        finally:
            self._service.close()
            self._http.stop()
            if backend is not None:
                await self._close(backend)
            await self._close_connections(serving)
        return 0

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            get_logger().warning("server.killed", signal=signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(128 + number)
        settings = self._settings
        if number == signal.SIGTERM:
            self._delay_s = resolve_shutdown_delay(
                settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s, host=settings.host
            )
        self._stopped_s = perf_counter()
        get_logger().info(
            "server.stopping",
            signal=signal.Signals(number).name,
            in_flight=self._service.limiter.in_flight,
            delay_s=self._delay_s,
            grace_s=settings.shutdown_grace_s,
        )
        self._stop.set()

    async def _serve_until_drained(self) -> None:
        """Keep serving while load balancers learn from `/ping` that this server shuts down."""
        if self._delay_s:
            self._service.terminate()
            await asyncio.sleep(self._delay_s)

    async def _start_backend(self) -> Backend | None:
        """Load a backend in a thread and start it; return None if a signal came first."""
        loading = asyncio.create_task(self._load_and_start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            # The loading thread may be in native code, which does not survive the end of the interpreter.
            atexit.register(_exit_at_once)
            return None
        backend = loading.result()
        # Objects made while loading live as long as the server: keep the collector from visiting them.
        gc.collect()
        gc.freeze()
        self._service.attach(backend)
        info = backend.info
        get_logger().info(
            "server.ready",
            url=url_of(self._listener),
            model=info.name,
            backend=info.backend,
            backend_reason=info.backend_reason,
            dtype=info.dtype,
            kv_dtype=info.kv_dtype,
            format_reason=info.format_reason,
            device=info.device,
            max_model_len=info.max_model_len,
            rope=info.rope,
            start_ms=round((perf_counter() - self._started_s) * 1e3),
        )
        if self._on_ready is not None:
            self._on_ready(url_of(self._listener), info, backend.stats())
        return backend

    async def _load_and_start(self) -> Backend:
        backend = await _in_daemon_thread(
            lambda: self._load(self._settings, self._progress, self._service.metrics, self._on_choice)
        )
        await backend.start()
        return backend

    async def _close(self, backend: Backend) -> None:
        """Let requests in flight finish until the deadline; log how many did."""
        at_stop = self._service.limiter.in_flight
        aborted_before = self._service.metrics.by_finish.get("abort", 0)
        spent_s = 0.0 if self._stopped_s is None else perf_counter() - self._stopped_s
        await backend.close(deadline_s=max(0.0, self._settings.shutdown_grace_s - spent_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._service.limiter.wait_idle(), _FLUSH_S)
        aborted = self._service.metrics.by_finish.get("abort", 0) - aborted_before
        log = get_logger().warning if aborted else get_logger().info
        log("server.stopped", finished=at_stop - aborted, aborted=aborted)

    async def _close_connections(self, serving: "asyncio.Task[None]") -> None:
        """Wait until the last bytes are sent; drop connections that do not close."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                await asyncio.shield(serving)
        except TimeoutError:
            self._http.force_exit = True
            await serving


def _exit_at_once() -> None:
    """Exit after the other exit handlers, without finalizing the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _in_daemon_thread(work: Callable[[], Backend]) -> Backend:
    """Run `work` in a thread that does not keep the process alive: a download cannot be interrupted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Backend] = loop.create_future()

    def resolve(set_outcome: Callable[..., None], outcome: object) -> None:
        if not done.cancelled():
            set_outcome(outcome)

    def run() -> None:
        try:
            backend = work()
        except BaseException as error:  # noqa: BLE001 -- raised again in the event loop
            loop.call_soon_threadsafe(resolve, done.set_exception, error)
        else:
            loop.call_soon_threadsafe(resolve, done.set_result, backend)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await done
