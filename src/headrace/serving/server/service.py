"""State shared by the routes of a server around an engine; `Service.backend` raises `Unavailable` until it loads."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.engine_stats import EngineStats
from headrace.core.generation import ModelInfo
from headrace.core.metrics import Metrics
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.inference.engine.backend import Backend
from headrace.serving.server.base_service import BaseService, ServerPhase
from headrace.serving.server.engine_config import request_limits
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.dialect import RequestContext
from headrace.serving.wire.openai.stored_responses import ResponseMemory, ResponseStore

if TYPE_CHECKING:
    from headrace.serving.server.batch_routes import ServerBatches
    from headrace.serving.server.formatters import Formatters

KEEP_ALIVE_S = 15.0
"""A stream that was silent for this long gets the dialect's keep-alive bytes, as in TGI."""

FetchAdapter = Callable[[str, Mapping[str, object] | None], Path]
"""Fetches an adapter, by its location and what the platform grants of it; returns its folder. Blocks."""

_CHAT_NAMES = ("tgi", "lmi")
"""Names of the only model in the documentation of TGI and LMI."""


class Service(BaseService):
    def __init__(
        self,
        settings: ServerSettings,
        backend: Backend | None = None,
        *,
        fetch_adapter: FetchAdapter | None = None,
        formatters: "Formatters | None" = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """
        Create the state with a started backend, or without one until `attach`.

        `fetch_adapter` fetches adapters for the platform that runs this server: it loads and unloads them through
        `/adapters`, and is the only client of those routes. `formatters` have started before the server is ready.
        """
        super().__init__(settings, is_ready=backend is not None, tracer=tracer)
        self.fetch_adapter = fetch_adapter
        self.formatters = formatters
        self.responses: ResponseStore | None = None
        """None on a platform, where the next request may reach another worker, or if the settings store none."""
        if fetch_adapter is None and settings.stored_responses_bytes:
            self.responses = ResponseMemory(
                max_bytes=settings.stored_responses_bytes, max_age_s=settings.stored_responses_age_s
            )
        self.batches: ServerBatches | None = None
        """Set by the application's routes; None on a platform, whose gateway has them, or if they are off."""
        self.limits = request_limits(settings)
        self.metrics = Metrics(
            stats=self.stats,
            info=self.info,
            in_flight=lambda: self.limiter.in_flight,
            adapters=lambda: self.adapter_names,
        )
        self.keep_alive_s = KEEP_ALIVE_S
        self._backend = backend

    def attach(self, backend: Backend) -> None:
        self._backend = backend
        self.phase = ServerPhase.READY

    @property
    def backend(self) -> Backend:
        """The backend; raises `Unavailable` while the model is still loading, or the server is shutting down."""
        self.check_open()
        assert self._backend is not None, "attached before the phase is READY"
        return self._backend

    @property
    def is_healthy(self) -> bool:
        """False once the backend cannot generate any more, or the formatters are given up."""
        parts = (self._backend, self.formatters)
        return all(part.is_healthy for part in parts if part is not None)

    def info(self) -> ModelInfo | None:
        """Return facts about the model; None while it loads."""
        return None if self._backend is None else self._backend.info

    @property
    def model_names(self) -> frozenset[str]:
        """Names of the base model; where adapters have names too, requests may use no others."""
        return frozenset({self.backend.info.name, self.settings.model, *_CHAT_NAMES})

    @property
    def adapter_names(self) -> frozenset[str]:
        return frozenset(adapter.name for adapter in self._backend.adapters) if self._backend else frozenset()

    @property
    def is_managed(self) -> bool:
        """True on a platform, which has already chosen model and adapter: its clients know them by other names."""
        return self.fetch_adapter is not None

    def stats(self) -> EngineStats:
        return EngineStats() if self._backend is None else self._backend.stats()

    def context(self, request_id: str) -> RequestContext:
        """Return the facts about server and request by which a dialect parses a body."""
        return RequestContext(
            request_id=request_id,
            created_s=int(time.time()),
            model=self.backend.info,
            limits=self.limits,
            default_max_new_tokens=self.settings.default_max_new_tokens,
            accepted_models=self.model_names if self.settings.enable_lora and not self.is_managed else None,
            adapters=self.adapter_names,
        )
