"""`headrace serve --models`: the server in front of many models, each of which is a worker that ends with it."""

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from headrace.core.errors import SettingsError
from headrace.core.host_memory import available_memory_bytes
from headrace.core.telemetry import get_logger, setup_logging
from headrace.inference.models.sources import home_folder
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.cluster.many_models.app import many_models_app
from headrace.platform.cluster.many_models.catalogue import Catalogue, HubAccess
from headrace.platform.cluster.many_models.presets import OF_SERVER, ModelPreset
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.serve import FREE_SHARE, planned_bytes, size_of
from headrace.platform.cluster.model_host.workers import HostedWorkers
from headrace.platform.cluster.spare import SPARE_BYTES
from headrace.serving.http.otlp import tracing
from headrace.serving.server.base_service import ServerPhase
from headrace.serving.server.lifecycle import ModelServer, serve
from headrace.serving.settings.code_settings import ISOLATION_VARIABLES
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings, setting_names
from headrace.serving.settings.values import ENV_PREFIX, env_name, text_of

_LOAD_TIMEOUT_S: Final = 3600.0
"""Time to load a model; one of the Hub is downloaded within it."""
_PLANNED_MORE_BYTES: Final = 256 << 20
"""A small model takes several times its file: the process 50 MiB, the KV cache of 8,192 tokens 180 MiB (SmolLM2)."""
_LEAST_FOR_SPARE: Final = 10
"""Memory of all models, in sizes of a process that waits for the next one, from which on there is such a process."""
_SERVICE: Final = "headrace-models"
"""Name of the server in traces, unless `OTEL_SERVICE_NAME` gives one."""
_CREDENTIALS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN")
"""Passed on to the servers of models, which download them."""

OnReady = Callable[[str, ServerSettings, Sequence[ModelPreset]], None]
"""Called once, when requests are taken, with the URL, the settings and the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """The settings that the servers of all models get from the flags and the environment of the one in front."""

    options: Mapping[str, str]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, settings: ServerSettings, overrides: Mapping[str, object], env: Mapping[str, str]) -> "SharedSettings":
        kept = [name for name in setting_names() if name not in OF_SERVER and name != "max_memory_bytes"]
        flags = {name: text_of(overrides[name]) for name in kept if overrides.get(name) not in (None, ())}
        names = {*map(env_name, kept)} - ISOLATION_VARIABLES  # which workers get from this process, not as a model's
        own = {name: env[name] for name in sorted(names) if env.get(name, "").strip()}
        more = {name: env[name] for name in _CREDENTIALS if name in env}
        if settings.models_hub == "cache":
            more["HF_HUB_OFFLINE"] = "1"
        base = {"container": "false", "handler": "native", "log_format": "json"}
        return cls(options={**base, **flags}, environment=own | more)


def run_many_models(overrides: Mapping[str, object], env: Mapping[str, str], *, on_ready: OnReady | None = None) -> int:
    """
    Serve many models until a signal stops the server; return the exit code.

    Raises:
        SettingsError: a setting or the file of models is not as expected.
    """
    settings, _ = load_settings(overrides, env)
    if settings.served_model_name is not None:
        text = "served_model_name is for one model; expected `aliases` of a model in the file of `models`."
        raise SettingsError(text, name="served_model_name")
    setup_logging(format=settings.log_format, level=settings.log_level)
    shared = SharedSettings.of(settings, overrides, env)
    source = Path(settings.models or "").expanduser()
    if not source.exists():
        raise SettingsError(
            f"models is {str(source)!r}, which does not exist; expected a folder or a file.", name="models"
        )
    catalogue = Catalogue(source, hub=cast("HubAccess", settings.models_hub), env=env)
    limit_bytes = settings.max_memory_bytes or round(available_memory_bytes() * FREE_SHARE)
    keeps_spare = limit_bytes >= _LEAST_FOR_SPARE * SPARE_BYTES
    if keeps_spare:
        limit_bytes -= SPARE_BYTES
    for preset in catalogue.presets:
        check_settings(preset, shared)
    if settings.model and catalogue.find(settings.model) is None:
        raise SettingsError(f"model is {settings.model!r}; expected the name of one of the models.", name="model")
    with (
        tempfile.TemporaryDirectory(prefix="headrace-models-", ignore_cleanup_errors=True) as folder,
        tracing(settings.otlp_traces_endpoint, env, service=_SERVICE) as tracer,
    ):
        workers = HostedWorkers(
            Path(folder),
            cache_folder=(settings.cache_dir or home_folder(env)) / "artifacts",
            environment=env,
            token=secrets.token_urlsafe(32),
            limit_bytes=limit_bytes,
            load_timeout_s=_LOAD_TIMEOUT_S,
            max_models=settings.models_max,
            is_forgetting=False,
        )

        def make_hosted(preset: ModelPreset) -> HostedModel:
            return hosted_preset(preset, shared, limit_bytes=limit_bytes, ttl_s=settings.model_ttl_s)

        service = ManyModels(settings, catalogue, workers, make_hosted, tracer=tracer)
        return serve(_ManyModelsServer(service, limit_bytes, on_ready, keeps_spare=keeps_spare))


def check_settings(preset: ModelPreset, shared: SharedSettings) -> None:
    """Raise `SettingsError` if the server of a model would refuse its settings."""
    try:
        load_settings({**shared.options, **preset.settings, "model": preset.model}, {})
    except SettingsError as error:
        raise SettingsError(f"The model {preset.name!r}: {error.message}", name="models") from error


def hosted_preset(preset: ModelPreset, shared: SharedSettings, *, limit_bytes: int, ttl_s: float | None) -> HostedModel:
    """Return the model with the worker that serves it."""
    num_bytes = size_of(preset.path) if preset.path is not None else 0
    options = {**shared.options, **preset.settings, "model": preset.model, "served_model_name": preset.name}
    environment = {
        name: value
        for name, value in shared.environment.items()
        if name.removeprefix(ENV_PREFIX).lower() not in preset.settings
    }
    spec = WorkerSpec(
        name="",
        environment=environment,
        options=options,
        memory_bytes=min(limit_bytes, planned_bytes(limit_bytes, num_bytes) + _PLANNED_MORE_BYTES),
    )
    return HostedModel(
        name=preset.name,
        url=preset.model,
        spec=spec,
        num_bytes=num_bytes,
        is_pinned=preset.is_pinned,
        ttl_s=ttl_s if preset.ttl_s is None else preset.ttl_s,
    )


class _ManyModelsServer(ModelServer):
    def __init__(self, service: ManyModels, limit_bytes: int, on_ready: OnReady | None, *, keeps_spare: bool) -> None:
        super().__init__(service, many_models_app(service))
        self._models = service
        self._limit_bytes = limit_bytes
        self._on_ready = on_ready
        self._keeps_spare = keeps_spare

    async def start(self) -> None:
        self._models.phase = ServerPhase.READY
        if self._keeps_spare:
            await self._models.workers.keep_spare()
        self._models.start()

    def report_ready(self, url: str, start_ms: int, _side_urls: Mapping[str, str]) -> None:
        presets = self._models.catalogue.presets
        get_logger().info(
            "server.ready",
            url=url,
            models=len(presets),
            default_model=self._models.default_name,
            limit_mib=self._limit_bytes >> 20,
            start_ms=start_ms,
        )
        if self._on_ready is not None:
            self._on_ready(url, self._models.settings, presets)

    async def finish(self, deadline_s: float) -> None:
        """Let requests in flight finish until the deadline, and stop the models."""
        at_stop = self._models.limiter.in_flight
        try:
            await asyncio.wait_for(self._models.limiter.wait_idle(), deadline_s)
        except TimeoutError:
            aborted = self._models.limiter.in_flight
        else:
            aborted = 0
        await self._models.stop()
        get_logger().info("server.stopped", finished=at_stop - aborted, aborted=aborted)
