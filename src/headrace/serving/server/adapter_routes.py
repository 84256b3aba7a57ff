"""Routes that list, load and unload adapters: vLLM's, LMI's and those of SageMaker's container contract."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.core.client_text import shortened
from headrace.core.errors import Forbidden, InvalidRequest, NotFound
from headrace.core.generation import AdapterInfo
from headrace.core.telemetry import get_logger
from headrace.inference.engine.backend import Backend
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.adapters import (
    AdapterChange,
    parse_register,
    parse_vllm,
    render_adapter,
    render_adapters,
    render_change,
)
from headrace.serving.wire.framing import JSON_CONTENT_TYPE

_CODE_FILE = "model.py"


def adapter_routes(service: Service) -> list[Route]:
    """Return all routes for adapters; LMI's exist with and without the model's name."""
    routes = _AdapterRoutes(service)
    lmi = [
        route
        for prefix in ("", "/models/{model}")
        for route in (
            Route(f"{prefix}/adapters", routes.list_all, methods=["GET"]),
            Route(f"{prefix}/adapters", routes.register, methods=["POST"]),
            Route(f"{prefix}/adapters/{{name}}", routes.describe, methods=["GET"]),
            Route(f"{prefix}/adapters/{{name}}/update", routes.update, methods=["POST"]),
            Route(f"{prefix}/adapters/{{name}}", routes.unregister, methods=["DELETE"]),
        )
    ]
    return [
        Route("/v1/load_lora_adapter", routes.load, methods=["POST"]),
        Route("/v1/unload_lora_adapter", routes.unload, methods=["POST"]),
        *lmi,
    ]


def checked_folder(source: str, allowed: Sequence[Path]) -> Path:
    """
    Return the folder of an adapter that was named over HTTP, with links resolved.

    Raises `Forbidden` if it is not below an allowed folder; the error does not reveal whether it exists.
    """
    folder = Path(source.removeprefix("file://")).resolve()
    if any(folder.is_relative_to(root) for root in allowed):
        return folder
    names = ", ".join(str(root) for root in allowed) or "none"
    raise Forbidden(
        f"Adapters may not be loaded from {shortened(source)}; expected a folder below one of: {names}. "
        "Set adapter_folders to allow others."
    )


def allowed_folders(settings: ServerSettings) -> tuple[Path, ...]:
    """Return the folders below which adapters may be loaded over HTTP."""
    if settings.adapter_folders:
        return tuple(Path(folder).expanduser().resolve() for folder in settings.adapter_folders)
    model = Path(settings.model)
    return ((model / "adapters").resolve(),) if model.is_dir() else ()


class _AdapterRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def load(self, request: Request) -> Response:
        async with self._parsed(request, lambda body: parse_vllm(body, loads=True)) as change:
            await self._load(change)
            return PlainTextResponse(f"Success: LoRA adapter '{change.name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        async with self._parsed(request, lambda body: parse_vllm(body, loads=False)) as change:
            await self._changeable().unload_adapter(change.name)
            return PlainTextResponse(f"Success: LoRA adapter '{change.name}' removed successfully.")

    async def list_all(self, _request: Request) -> Response:
        return Response(render_adapters(self._service.backend.adapters), media_type=JSON_CONTENT_TYPE)

    async def describe(self, request: Request) -> Response:
        return Response(render_adapter(self._loaded(request.path_params["name"])), media_type=JSON_CONTENT_TYPE)

    async def register(self, request: Request) -> Response:
        """Load an adapter; the platform may repeat it, and gives the location of artifacts instead of a folder."""
        fetch = self._service.fetch_adapter
        async with self._parsed(request, lambda body: parse_register(body, request.query_params)) as change:
            if fetch is None:
                await self._load(change)
            else:
                backend = self._changeable_by_platform()
                folder = await asyncio.to_thread(fetch, change.source, change.grant)
                await _load_into(backend, change.name, folder, replaces=True)
            return Response(render_change(change.name, "registered"), media_type=JSON_CONTENT_TYPE)

    async def update(self, request: Request) -> Response:
        """Load other content under the name of a loaded adapter."""
        name = request.path_params["name"]
        query = {"name": name, **request.query_params}
        async with self._parsed(request, lambda body: parse_register(body, query)) as change:
            if change.name != name:
                raise InvalidRequest(f"`name` is {shortened(change.name)}; expected {shortened(name)}.", param="name")
            self._loaded(name)
            await self._load(AdapterChange(name=name, source=change.source, replaces=True))
            return Response(render_change(name, "updated"), media_type=JSON_CONTENT_TYPE)

    async def unregister(self, request: Request) -> Response:
        name = request.path_params["name"]
        backend = self._changeable() if self._service.fetch_adapter is None else self._changeable_by_platform()
        await backend.unload_adapter(name)
        return Response(render_change(name, "unregistered"), media_type=JSON_CONTENT_TYPE)

    @asynccontextmanager
    async def _parsed(self, request: Request, parse: Callable[[bytes], AdapterChange]) -> AsyncIterator[AdapterChange]:
        async with self._service.admit(request.scope, request.receive) as body:
            yield await self._service.parse_body(body, parse)

    def _loaded(self, name: str) -> AdapterInfo:
        for adapter in self._service.backend.adapters:
            if adapter.name == name:
                return adapter
        raise NotFound(f"The adapter `{shortened(name)}` is not loaded.")

    async def _load(self, change: AdapterChange) -> None:
        backend = self._changeable()
        if change.name in self._service.model_names:
            raise InvalidRequest(f"The name {shortened(change.name)} is the model's own.", param="name")
        folder = checked_folder(change.source, allowed_folders(self._service.settings))
        await _load_into(backend, change.name, folder, replaces=change.replaces)

    def _changeable_by_platform(self) -> Backend:
        if not self._service.settings.enable_lora:
            raise Forbidden(
                "The model server has no slots for adapters. Set OPTION_ENABLE_LORA=true in the Environment of the "
                "base component's model, and OPTION_MAX_LORAS and OPTION_MAX_LORA_RANK as needed."
            )
        return self._service.backend

    def _changeable(self) -> Backend:
        settings = self._service.settings
        if not (settings.enable_lora and settings.allow_runtime_lora_updating):
            raise Forbidden(
                "Adapters cannot be loaded or unloaded over HTTP here. Start the server with --enable-lora and "
                "--allow-runtime-lora-updating."
            )
        return self._service.backend


async def _load_into(backend: Backend, name: str, folder: Path, *, replaces: bool) -> None:
    if (folder / _CODE_FILE).is_file():  # an adapter's own formatters (DJL)
        why = f"{_CODE_FILE} of an adapter has no effect: only formatters of the model itself are run."
        get_logger().warning("adapter.code_ignored", adapter=name, message=why)
    await backend.load_adapter(name, folder, replaces=replaces)
