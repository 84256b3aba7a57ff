"""State shared by the routes of a server with many models: the catalogue, the host, and what was learned of models."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, InvalidRequest, ModelFailed, ModelNotFound, ModelNotReady, SettingsError
from headrace.core.telemetry import get_logger
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.platform.cluster.many_models.catalogue import Catalogue
from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.forwarding import ModelForwarder
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.model_host.workers import HostedWorkers
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.server.base_service import BaseService
from headrace.serving.settings.server_settings import ServerSettings

_RESCAN_S: Final = 2.0
"""Age at which the folder is read again for a name that is not known."""
_KEEP_ALIVE_S: Final = 15.0
"""Longest silence of a stream of events while its model is loaded."""
_WATCH_S: Final = 1.0
"""Seconds between two looks at the logs of models and at new ones."""
_MAX_PAGE_BYTES: Final = 1 << 20
_PAGE_TIMEOUT_S: Final = 5.0
_PAGES: Final = (
    ClientRequest(method="GET", path="/v1/models"),
    ClientRequest(method="GET", path="/api/tags"),
    ClientRequest(method="GET", path="/info"),
    ClientRequest(method="POST", path="/api/show", body=b'{"model":"any"}'),
)
"""Pages about a model that are kept, because a list of models must not load all of them."""

MakeHosted = Callable[[ModelPreset], HostedModel]


@dataclass(slots=True, eq=False)
class _Known:
    """The pages about a model, as its process with this name gave them."""

    process: str
    pages: dict[str, bytes]


class ManyModels(BaseService):
    """The service of a server with many models, each of which has a server of its own behind it."""

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
        workers: HostedWorkers,
        make_hosted: MakeHosted,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        super().__init__(settings, is_ready=False, tracer=tracer)
        self.catalogue = catalogue
        self.workers = workers
        self.host = workers.host
        self.forwarder = ModelForwarder(host=workers.host, client=workers.client)
        self.num_requests: Counter[tuple[str, int]] = Counter()
        """Requests by model and status."""
        self.started_s = time.time()
        self.keep_alive_s = _KEEP_ALIVE_S
        self._make_hosted = make_hosted
        self._known: dict[str, _Known] = {}
        self._scanned_s = time.monotonic()
        self._scanning = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_healthy(self) -> bool:
        return True

    @property
    def default_name(self) -> str:
        """The model of requests that name none; empty if they must."""
        presets = self.catalogue.presets
        return self.settings.model or (presets[0].name if len(presets) == 1 else "")

    async def find(self, name: str | None) -> ModelPreset:
        """
        Return the model that a request names, or the default one, and make it known to the host.

        Raises `InvalidRequest` without a name and a default, `ModelNotFound` for a name that is not in the catalogue.
        """
        name = name or self.default_name
        if not name:
            raise InvalidRequest(
                "`model` is missing. This server has several models, which GET /v1/models lists.", param="model"
            )
        preset = self.catalogue.find(name)
        if preset is None and time.monotonic() - self._scanned_s >= _RESCAN_S:
            await self.refresh()
            preset = self.catalogue.find(name)
        if preset is None:
            raise ModelNotFound(
                f"The model `{shortened(name)}` does not exist. GET /v1/models lists the models of this server."
            )
        self.host.register(self._make_hosted(preset))
        return preset

    async def refresh(self) -> None:
        """Read the folder or file of models again; a fault in it is logged, and the models stay as they are."""
        async with self._scanning:
            try:
                await asyncio.to_thread(self.catalogue.refresh)
            except SettingsError as error:
                get_logger().warning("models.not_read", message=error.message)
            self._scanned_s = time.monotonic()

    async def load(self, preset: ModelPreset) -> None:
        """Load a model if necessary. Raises `HeadraceError`."""
        try:
            async with self.host.lease(preset.name):
                pass
        except ModelUnavailable as error:
            raise error_of(error, preset.name) from error

    def begin_load(self, preset: ModelPreset) -> None:
        """Load a model in the background; the list of models has the error of a failure."""

        async def load() -> None:
            with contextlib.suppress(HeadraceError):
                await self.load(preset)

        self._spawn(load())

    def page(self, name: str, path: str) -> bytes | None:
        """Return a page about a model, as its server gave it when it was loaded last; None if it never was."""
        known = self._known.get(name)
        return None if known is None else known.pages.get(path)

    def start(self) -> None:
        """Load the pinned models, and begin to watch all."""
        for preset in self.catalogue.presets:
            if preset.is_pinned:
                self.host.register(self._make_hosted(preset))
                self.begin_load(preset)
        self._spawn(self._watch())

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.workers.copy_logs()
        await self.workers.close()

    async def learn(self) -> None:
        """Read the pages of models that were loaded since the last call."""
        for model, process in self.host.loaded:
            known = self._known.get(model.name)
            if process.handle is not None and (known is None or known.process != process.name):
                pages = {page.path: await self._read(process.handle.url, page) for page in _PAGES}
                found = {path: content for path, content in pages.items() if content is not None}
                self._known[model.name] = _Known(process.name, found)

    async def _watch(self) -> None:
        while True:
            await self.workers.copy_logs()
            await self.learn()
            await asyncio.sleep(_WATCH_S)

    async def _read(self, url: str, page: ClientRequest) -> bytes | None:
        try:
            async with asyncio.timeout(_PAGE_TIMEOUT_S):
                return await self.workers.read(url, page, max_bytes=_MAX_PAGE_BYTES)
        except (NoResponse, ResponseBroken, ResponseTooLarge, TimeoutError):
            return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def error_of(error: ModelUnavailable, name: str) -> HeadraceError:
    """Return the error that clients get for a model that cannot answer."""
    if error.reason == "not-ready":
        return ModelNotReady(error.message)
    return ModelFailed(f"The model `{name}` cannot answer: {error.message}")
