"""
Files and batches on a model server: a private folder for its model, which one server uses at a time.

The requests of a batch are answered by the routes of this server, as those of its clients are.
"""

import asyncio
import fcntl
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.routing import Route, Router

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.telemetry import get_logger
from headrace.inference.models.sources import home_folder
from headrace.serving.batches.api import ROUTES, BatchApi
from headrace.serving.batches.calls import call_app
from headrace.serving.batches.service import Batches
from headrace.serving.batches.store import BatchStore
from headrace.serving.http.asgi import Receive, Scope, Send
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def batch_routes(service: Service, inference: Sequence[Route]) -> list[Route]:
    """Return the routes of files and batches, whose requests the `inference` routes answer; none if they are off."""
    settings = service.settings
    if service.is_managed or not settings.batch_bytes:
        return []
    store = BatchStore(Files(folder_of(settings)), max_bytes=settings.batch_bytes)
    batches = Batches(
        store=store,
        send=partial(call_app, Router(routes=inference)),
        max_line_bytes=settings.max_body_bytes,
        metrics=service.metrics.batches,
    )
    service.batches = ServerBatches(batches, window=lambda: _window(service))
    endpoint = BatchEndpoint(service.batches, BatchApi(batches, max_body_bytes=settings.max_body_bytes))
    return [Route(path, endpoint, methods=methods) for path, methods in ROUTES.items()]


def folder_of(settings: ServerSettings) -> Path:
    """Return the folder of a server's batches: another model must not answer the rest of a batch."""
    if settings.batch_folder is not None:
        return settings.batch_folder
    path = Path(settings.model).expanduser()
    model = str(path.resolve()) if path.exists() else settings.model
    name = f"{_UNSAFE.sub('-', path.name)[:60]}-{sha256(model.encode()).hexdigest()[:12]}"
    return home_folder(os.environ) / "batches" / name


def _window(service: Service) -> int:
    """Return how many requests fill the engine's batch; half of the places for requests stay free for clients."""
    return max(1, min(service.backend.info.max_num_seqs, service.settings.max_concurrent_requests // 2))


class ServerBatches:
    """The batches of a server, which run once its folder exists and is locked."""

    def __init__(self, batches: Batches, *, window: Callable[[], int]) -> None:
        self._batches = batches
        self._window = window
        self._root = batches.store.root
        self._descriptor: int | None = None
        self._is_used = asyncio.Event()
        self._locking = asyncio.Lock()

    async def run(self) -> None:
        """Run batches until cancelled: those of earlier servers at once, else from the first upload on."""
        if await asyncio.to_thread(self._root.is_dir):
            try:
                await self.use()
            except Unavailable as error:
                get_logger().warning("batch.folder_in_use", message=error.message)
        await self._is_used.wait()
        window = self._window()
        try:
            await self._batches.run(window=window, total_window=window)
        finally:
            self._unlock()

    async def use(self) -> None:
        """Take the folder; raise `Unavailable` if another server has it, or it cannot be written."""
        async with self._locking:
            if self._descriptor is None:
                self._descriptor = await asyncio.to_thread(self._lock)
                self._is_used.set()

    def _lock(self) -> int:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"The folder of batches {self._root} cannot be written: {error.strerror}. Set batch_folder."
            raise Unavailable(message) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            message = f"Another server uses the folder of batches {self._root}. Use that one, or set batch_folder."
            raise Unavailable(message) from error
        return descriptor

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class BatchEndpoint:
    """The endpoint of all routes: a request that writes takes the folder first."""

    def __init__(self, batches: ServerBatches, api: BatchApi) -> None:
        self._batches = batches
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await self._batches.use()
        await self._api(scope, receive, send)
