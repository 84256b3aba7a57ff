"""
The lifecycle of a platform: lock its folder, bind, open the store, start all parts, serve, shut down.

The first SIGTERM, SIGINT or SIGHUP (a closed terminal) shuts it down gracefully: after SIGTERM it keeps serving for
`shutdown_delay_s` with `/health` at 503; then it takes no new requests, those in flight may finish within
`shutdown_grace_s`, and the workers stop (unless they are kept for the next platform). A second signal stops it at once,
as kill -9 does: workers keep running, and the next platform adopts them.

Exit codes: 0 stopped by a signal, 1 failed, 2 an error that the caller can fix, 128 + n killed by a second signal n.
"""

import asyncio
import os
import signal
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from headrace.core.errors import HeadraceError, UserError
from headrace.core.telemetry import get_logger, setup_logging
from headrace.http.listener import bind, url_of
from headrace.http.server import HttpServer, http_limits, http_server
from headrace.http.tls import server_context, trusts_itself
from headrace.platform.app import PlatformApp
from headrace.platform.assembly import Parts, assemble, require_keys
from headrace.platform.folders import Address, DataFolder
from headrace.platform.lease import LeaseKeeper
from headrace.platform.object_storage import ObjectStorage, make_storage
from headrace.platform.worker_end import end_workers
from headrace.settings.platform_settings import PlatformSettings, data_folder
from headrace.settings.server_settings import resolve_shutdown_delay
from headrace.state.database_lease import DatabaseLease, acquire_database_lease
from headrace.state.sql import SqlStore, open_store

_STORAGE_PATIENCE_S = 3.0
_WORKER_GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for workers, whose requests have ended by then."""
_TWICE_S = 0.5
"""Signals within this time count as one: `timeout`, shells and supervisors signal the process and its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Facts about a started platform, for the start message."""

    url: str
    folder: DataFolder
    settings: PlatformSettings
    storage: ObjectStorage


OnReady = Callable[[Started], None]


def run_platform(
    settings: PlatformSettings, *, on_ready: OnReady | None = None, env: Mapping[str, str] = os.environ
) -> int:
    """
    Run a platform until a signal stops it; return the exit code. An error has been written to stderr.

    Args:
        settings: the platform's settings.
        on_ready: called when the platform accepts requests.
        env: the environment of this process.
    """
    setup_logging(format=settings.log_format, level=settings.log_level)
    folder = DataFolder(data_folder(settings, env))
    try:
        with ExitStack() as stack:
            folder.make()
            stack.enter_context(folder.locked())
            where = settings.database or folder.database
            store = open_store(where)
            stack.callback(store.close)
            lease = acquire_database_lease(where)
            stack.callback(lease.release)
            require_keys(settings, store)
            tls = server_context(settings.tls_cert, settings.tls_key)
            listener = _Listener(stack.enter_context(bind(settings.host, settings.port)), tls, settings.tls_cert)
            storage = make_storage(settings.s3_endpoint, folder.objects, settings.region, env)
            stack.enter_context(folder.announced(listener.address))
            lifecycle = _PlatformLifecycle(settings, folder, store, lease, listener, storage, on_ready, env)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(lifecycle.run())
    except HeadraceError as error:
        print(f"Error: {error.message}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 1


class _Listener:
    """The bound socket, its TLS, and the address by which programs on this machine reach it."""

    def __init__(self, bound: socket.socket, tls: ssl.SSLContext | None, certificate: Path | None) -> None:
        self.socket = bound
        self.tls = tls
        is_own_root = tls is not None and certificate is not None and trusts_itself(certificate, tls)
        self.address = Address(
            url=url_of(bound, is_tls=tls is not None),
            ca_bundle=str(certificate.absolute()) if certificate is not None and is_own_root else None,
        )


class _PlatformLifecycle:
    """A run of a platform, from its first signal handler to its exit code."""

    def __init__(
        self,
        settings: PlatformSettings,
        folder: DataFolder,
        store: SqlStore,
        lease: DatabaseLease,
        listener: _Listener,
        storage: ObjectStorage,
        on_ready: OnReady | None,
        env: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._store = store
        self._lease = LeaseKeeper(lease)
        self._listener = listener
        self._storage = storage
        self._on_ready = on_ready
        self._env = env
        self._stop = asyncio.Event()
        self._signalled_s = 0.0
        self._delay_s = 0.0

    async def run(self) -> int:
        """Start all parts, serve until a signal, and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under `nohup`
                loop.add_signal_handler(number, self._on_signal, number)
        address = self._listener.address
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_storage)
            await self._storage.start()
            tasks = [_begin(stack, self._lease.keep(), "database lease")]
            parts = assemble(self._settings, self._folder, self._store, self._storage, address=address, env=self._env)
            stack.push_async_callback(self._close, parts)
            await parts.gateway.start()
            tasks.append(_begin(stack, parts.series.run(), "metrics"))
            tasks.append(_begin(stack, parts.sampler.run(), "in-flight sampler"))
            tasks.append(_begin(stack, parts.scraper.run(), "worker metrics"))
            tasks.append(_begin(stack, parts.capacities.run(), "capacities"))
            stack.push_async_callback(self._end_workers, parts)
            tasks.append(_begin(stack, parts.reconciler.run(), "reconciler"))
            tasks.append(_begin(stack, parts.autoscaler.run(), "autoscaler"))
            server = http_server(parts.app, limits=http_limits(self._settings), tls=self._listener.tls)
            serving = asyncio.create_task(server.serve(sockets=[self._listener.socket]), name="http")
            stack.push_async_callback(self._end_serving, server, serving)
            get_logger().info(
                "platform.ready", url=address.url, data_dir=str(self._folder.root), storage=self._storage.state
            )
            if self._on_ready is not None:
                await self._wait_for_storage()
                started = Started(url=address.url, folder=self._folder, settings=self._settings, storage=self._storage)
                self._on_ready(started)
            await self._until_stopped(parts.app, *tasks, serving)
        get_logger().info("platform.stopped")
        return 0

    async def _wait_for_storage(self) -> None:
        """Wait briefly for the embedded S3 server, so that the start message shows its state."""
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_STORAGE_PATIENCE_S):
                await self._storage.ready()

    async def _until_stopped(self, app: PlatformApp, *tasks: "asyncio.Task[None]") -> None:
        """Wait for a signal and the shutdown delay; a part that fails stops the platform with its error."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if done == {stopping} and self._delay_s:
                app.is_terminating = True
                done, _ = await asyncio.wait(tasks, timeout=self._delay_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                await task
        finally:
            stopping.cancel()

    def _on_signal(self, number: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._stop.is_set() and now_s - self._signalled_s < _TWICE_S:
            return
        if self._stop.is_set() and number != signal.SIGHUP:  # sent twice: by the shell and by the kernel
            get_logger().warning("platform.killed", signal=signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(128 + number)
        self._stop.set()
        self._signalled_s = now_s
        settings = self._settings
        if number == signal.SIGTERM:
            self._delay_s = resolve_shutdown_delay(
                settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s, host=settings.host
            )
        if number == signal.SIGHUP:
            _redirect_output()
        get_logger().info("platform.stopping", signal=signal.Signals(number).name, delay_s=self._delay_s)

    async def _end_serving(self, server: HttpServer, serving: "asyncio.Task[None]") -> None:
        """Let requests in flight finish; uvicorn aborts them after the grace period."""
        server.stop(grace_s=self._settings.shutdown_grace_s - self._delay_s)
        with suppress(asyncio.CancelledError):
            await serving

    async def _end_workers(self, parts: Parts) -> None:
        if not self._settings.keep_workers:
            records = None if self._lease.is_lost else self._store
            num_workers = await end_workers(records, parts.cluster.launcher, grace_s=_WORKER_GRACE_S)
            get_logger().info("workers.ended", workers=num_workers)

    async def _close(self, parts: Parts) -> None:
        parts.waker.close()
        await parts.gateway.close()
        await parts.s3.close()
        if parts.objects is not None:
            await parts.objects.close()
        await parts.cluster.launcher.close()
        if not self._settings.keep_workers:
            await asyncio.to_thread(parts.cluster.end)
        await asyncio.to_thread(parts.series.close)

    async def _end_storage(self) -> None:
        await self._storage.stop(keep=self._settings.keep_workers)


def _redirect_output() -> None:
    """Redirect output to /dev/null: writing to a closed terminal would raise during the shutdown."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 -- only for its descriptor
        for stream in (1, 2):
            if stat.S_ISCHR(os.fstat(stream).st_mode):  # `isatty` is false for a closed terminal
                os.dup2(nowhere.fileno(), stream)


def _begin(stack: AsyncExitStack, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
    """Start a task that the stack cancels when the platform stops, in reverse order."""
    task = asyncio.create_task(work, name=name)
    stack.push_async_callback(_end_task, task)
    return task


async def _end_task(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
