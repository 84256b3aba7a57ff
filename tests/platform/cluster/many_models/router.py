"""A server in front of many models on a machine without processes: one scripted worker answers for all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx

from headrace.platform.cluster.many_models.app import many_models_app
from headrace.platform.cluster.many_models.catalogue import Catalogue
from headrace.platform.cluster.many_models.presets import ModelPreset
from headrace.platform.cluster.many_models.serve import SharedSettings, hosted_preset
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.serving.http.asgi import ASGIApp
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.server.base_service import ServerPhase
from headrace.serving.settings.loading import load_settings
from tests.platform.cluster.model_host.hosts import LIMIT_BYTES, HostScene

if TYPE_CHECKING:
    from headrace.platform.cluster.model_host.workers import HostedWorkers

SHARED = SharedSettings(options={"handler": "native"}, environment=dict[str, str]())


@dataclass
class FakeWorkers:
    """Stands for `HostedWorkers`."""

    host: ModelHost
    client: HttpClient = field(default_factory=HttpClient)

    async def close(self) -> None:
        await self.host.close()
        await self.client.close()

    async def copy_logs(self) -> None:
        """There are no logs."""

    async def pages(self) -> dict[str, str]:
        return {model.name: "headrace_running_sequences 1\n" for model, _ in self.host.loaded}

    async def read(self, url: str, request: ClientRequest, *, max_bytes: int) -> bytes | None:
        response = await self.client.send(url, request)
        try:
            return await response.read(max_bytes)
        finally:
            response.close()


@dataclass
class Router:
    """The application and its client."""

    service: ManyModels
    client: httpx.AsyncClient
    scene: HostScene
    app: ASGIApp

    def state(self, name: str) -> str:
        return self.service.host.status(name).value


@asynccontextmanager
async def router(scene: HostScene, source: Path, **settings: str) -> AsyncIterator[Router]:
    loaded, _ = load_settings({"models": str(source), **settings}, {})
    catalogue = Catalogue(source, hub="off", env={})

    def make_hosted(preset: ModelPreset) -> HostedModel:
        hosted = hosted_preset(preset, SHARED, limit_bytes=LIMIT_BYTES, ttl_s=loaded.model_ttl_s)
        hosted.spec.environment["NAME"] = preset.name
        return hosted

    workers = FakeWorkers(scene.host(is_forgetting=False))
    service = ManyModels(loaded, catalogue, cast("HostedWorkers", workers), make_hosted)
    service.phase = ServerPhase.READY
    app = many_models_app(service)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield Router(service, client, scene, app)
    await service.stop()
