"""
The lifecycle of a process that serves a platform: start all parts, serve, shut down.

The first SIGTERM, SIGINT or SIGHUP (a closed terminal) shuts it down gracefully: after SIGTERM it keeps serving for
`shutdown_delay_s` with `/health` at 503; then it takes no new requests, those in flight may finish within
`shutdown_grace_s`, and the workers stop (unless they are kept for the next platform). A second signal stops it at once,
as kill -9 does: workers keep running, and the next platform adopts them.

Exit codes: 0 stopped by a signal, 1 failed, 2 an error that the caller can fix, 128 + n killed by a second signal n.
"""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.allocator import return_memory
from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.log_files import KEPT_LOG_BYTES, MAX_LOG_BYTES, trim_log
from headrace.core.telemetry import get_logger
from headrace.core.threads import keep_from_collector
from headrace.core.tracing import Tracer
from headrace.platform.cluster.launcher import Launcher
from headrace.platform.cluster.machine import OwnMachine
from headrace.platform.cluster.ray_launcher import CopiedLogs
from headrace.platform.control.loops.upkeep import Upkeep
from headrace.platform.control.model.worker import WORKER
from headrace.platform.host.app import PlatformApp
from headrace.platform.host.assembly import Parts, Site, assemble
from headrace.platform.host.folders import DataFolder
from headrace.platform.host.listener import Listener
from headrace.platform.host.sharing import Sharing, advertised_url
from headrace.platform.host.supervisor import STOP_WITHOUT_DELAY
from headrace.platform.state.blobs import Blobs
from headrace.platform.state.records import Conflict
from headrace.platform.state.store import Store
from headrace.platform.storage.object_storage import ObjectStorage
from headrace.serving.http.otlp import tracing
from headrace.serving.http.server import HttpServer, http_limits, http_server
from headrace.serving.settings.platform_settings import PlatformSettings
from headrace.serving.settings.shutdown import resolve_shutdown_delay
from headrace.serving.wire.aws import services

_STORAGE_PATIENCE_S = 3.0
_WORKER_GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for workers, whose requests have ended by then."""
_TWICE_S = 0.5
"""Signals within this time count as one: `timeout`, shells and supervisors signal the process and its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    url: str
    folder: DataFolder
    settings: PlatformSettings
    storage: ObjectStorage


OnReady = Callable[[Started], None]


@dataclass(slots=True, kw_only=True)
class PlatformLifecycle:
    settings: PlatformSettings
    store: Store
    blobs: Blobs
    sharing: Sharing
    listener: Listener
    storage: ObjectStorage
    on_ready: OnReady | None
    on_serving: Callable[[], None]
    env: Mapping[str, str]
    _has_successor: bool = False
    """True if other members go on with the platform after this process has left."""
    _is_displaced: bool = False
    """True if the platform has another home, where no member uses the workers of this one."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _signalled_s: float = 0.0
    _delay_s: float = 0.0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP_WITHOUT_DELAY):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under `nohup`
                loop.add_signal_handler(number, self._on_signal, number)
        settings, folder, url = self.settings, self.sharing.folder, self.listener.address.url
        url = advertised_url(settings.advertise, url)
        async with AsyncExitStack() as stack:  # which ends the parts in reverse order
            tracer = stack.enter_context(tracing(settings.otlp_traces_endpoint, self.env, service="headrace-platform"))
            _begin(stack, return_memory(), "free memory")
            stack.push_async_callback(lambda: self.storage.stop(keep=self._keeps_workers))
            await self.storage.start()
            parts = assemble(self._site(tracer))
            stack.push_async_callback(self._close, parts)
            tasks = await self._begin_parts(stack, parts)
            # From here on requests are answered.
            keep_from_collector()
            _begin(stack, warm_up(), "warm-up")
            server = http_server(parts.app, limits=http_limits(settings), tls=self.listener.tls)
            serving = asyncio.create_task(server.serve(sockets=list(self.listener.sockets)), name="http")
            stack.push_async_callback(self._end_serving, server, serving)
            get_logger().info("platform.ready", url=url, data_dir=str(folder.root), storage=self.storage.state)
            self.on_serving()
            tasks.append(_begin(stack, parts.disk.watch(self.storage.restart), "free space"))
            if self.on_ready is not None:
                with suppress(HeadraceError, TimeoutError):  # so that the start message shows its state
                    async with asyncio.timeout(_STORAGE_PATIENCE_S):
                        await self.storage.ready()
                self.on_ready(Started(url=url, folder=folder, settings=settings, storage=self.storage))
            await self._until_stopped(parts.app, *tasks, serving)
            parts.members.membership.resign()
        get_logger().info("platform.stopped")
        return 0

    def _site(self, tracer: Tracer) -> Site:
        return Site(
            settings=self.settings,
            sharing=self.sharing,
            store=self.store,
            blobs=self.blobs,
            storage=self.storage,
            address=self.listener.address,
            env=self.env,
            tracer=tracer,
        )

    async def _begin_parts(self, stack: AsyncExitStack, parts: Parts) -> "list[asyncio.Task[None]]":
        """Start the parts behind the port; return the tasks whose failure stops the platform."""
        members = parts.members
        await parts.invocations.gateway.start()
        logs = (self.sharing.folder.log, self.sharing.home.storage_log)
        tasks = [_begin(stack, parts.invocations.series.run(), "metrics"), _begin(stack, bound_logs(logs), "logs")]
        if members.links is not None:
            stack.push_async_callback(members.links.close)
            await members.links.siblings.start()
        if members.peers is not None:
            tasks.append(_begin(stack, members.peers.run(), "reports between members"))
        if self.settings.is_spread:
            home = self.sharing.home
            launcher = parts.workers.cluster.own or CopiedLogs(home.workers)
            upkeep = Upkeep(store=self.store, launcher=launcher, workers=home.workers, prefixes=home.prefixes)
            tasks.append(_begin(stack, upkeep.run(), "upkeep"))
        if parts.stores.chores:
            _begin(stack, parts.stores.run_chores(), "copies")
        stack.push_async_callback(self._leave, parts)
        return [*tasks, _begin(stack, members.membership.run(parts.leading.run), "membership")]

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
        self.sharing.folder.announce_stop()
        settings = self.settings
        if number == signal.SIGTERM:
            self._delay_s = resolve_shutdown_delay(
                settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s, host=settings.host
            )
        if number == signal.SIGHUP:
            _redirect_output()
        get_logger().info("platform.stopping", signal=signal.Signals(number).name, delay_s=self._delay_s)

    async def _end_serving(self, server: HttpServer, serving: "asyncio.Task[None]") -> None:
        """Let requests in flight finish; uvicorn aborts them after the grace period."""
        server.stop(grace_s=self.settings.shutdown_grace_s - self._delay_s)
        with suppress(asyncio.CancelledError):
            await serving

    async def _leave(self, parts: Parts) -> None:
        """Leave the members; the last one at its home stops the workers, unless they are kept for the next platform."""
        self._has_successor = await parts.members.membership.leave()
        self._is_displaced = parts.members.membership.is_displaced
        if not self._keeps_workers:
            store = None if self._is_displaced else self.store
            cluster = parts.workers.cluster
            num_workers = await end_workers(store, cluster.own or cluster.launcher, grace_s=_WORKER_GRACE_S)
            get_logger().info("workers.ended", workers=num_workers)

    @property
    def _keeps_workers(self) -> bool:
        return (self.settings.keep_workers or self._has_successor) and not self._is_displaced

    async def _close(self, parts: Parts) -> None:
        invocations, cluster = parts.invocations, parts.workers.cluster
        await asyncio.to_thread(invocations.waker.close)
        await invocations.gateway.close()
        await parts.s3.close()
        if invocations.objects is not None:
            await invocations.objects.close()
        await cluster.launcher.close()
        if not self._keeps_workers:
            await asyncio.to_thread(cluster.end)
        await asyncio.to_thread(invocations.series.close)


def _redirect_output() -> None:
    """Redirect output to /dev/null: writing to a closed terminal would raise during the shutdown."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 -- only for its descriptor
        for stream in (1, 2):
            if stat.S_ISCHR(os.fstat(stream).st_mode):  # `isatty` is false for a closed terminal
                os.dup2(nowhere.fileno(), stream)


def _begin(stack: AsyncExitStack, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
    """Start a task that the stack cancels when the platform stops, in reverse order."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)
    return task


async def warm_up() -> None:
    """Load the models of the services that most platforms use, which live as long as the process."""
    for service in services.WARMED:
        await asyncio.to_thread(services.operation_names, service)
    keep_from_collector()


_POLL_S = 0.05
_KILL_RESERVE_S = 5.0
"""Seconds after SIGKILL for the kernel to remove the processes."""


async def end_workers(store: Store | None, launcher: Launcher, *, grace_s: float) -> int:
    """
    Stop all workers of a launcher and wait for them, `grace_s` between SIGTERM and SIGKILL; return their number.

    Their records are marked as being deleted, so that the next platform replaces them and does not count their end as a
    failure. On a full disk the workers are stopped without the marks. Call it after the reconciler has stopped, without
    a store if another platform has taken the records over.
    """

    def mark_deleting(store: Store, workers: Container[str] | None) -> None:
        try:
            for record in store.list(WORKER):
                if workers is not None and record.name not in workers:
                    continue
                with suppress(Conflict):
                    store.update(record, is_deleting=True)
        except Unavailable as error:
            get_logger().warning("workers.not_marked", message=error.message)

    if store is not None:
        # Other machines go on with their workers.
        own = await launcher.known() if isinstance(launcher, OwnMachine) else None
        await asyncio.to_thread(mark_deleting, store, own)
    try:
        workers = await launcher.known()
        for name, handle in workers.items():
            await launcher.stop(name, handle, grace_s=grace_s)
    except TimeoutError as error:  # an unreachable cluster must not keep the platform from stopping
        get_logger().error("workers.not_reached", message=str(error))
        return 0
    try:
        async with asyncio.timeout(grace_s + _KILL_RESERVE_S):
            while await launcher.known():  # noqa: ASYNC110 -- they need not be child processes, whose end is reported
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        get_logger().error("workers.left", workers=sorted(workers))
    return len(workers)


_PAUSE_S: Final = 30.0
"""A platform that writes 10,000 lines a second exceeds the bound by 100 MiB in this time."""


async def bound_logs(
    logs: Sequence[Path],
    *,
    max_bytes: int = MAX_LOG_BYTES,
    kept_bytes: int = KEPT_LOG_BYTES,
    pause_s: float = _PAUSE_S,
) -> None:
    """Cut the logs that have grown too large, every `pause_s`, until cancelled."""
    while True:
        for log in logs:
            try:
                await asyncio.to_thread(trim_log, log, max_bytes=max_bytes, kept_bytes=kept_bytes)
            except OSError as error:
                get_logger().warning("log.not_cut", log=str(log), reason=error.strerror)
        await asyncio.sleep(pause_s)
