"""The worker of a multi-model endpoint: a model host whose models are workers below its own folder."""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import uvloop

from headrace.core.allocator import limit_arenas, read_resident_bytes
from headrace.core.errors import InvalidRequest
from headrace.core.host_memory import available_memory_bytes
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import Limits, WorkerSpec
from headrace.platform.cluster.model_host.app import ModelHostApp
from headrace.platform.cluster.model_host.entries import HostedModel
from headrace.platform.cluster.model_host.protocol import Registration
from headrace.platform.cluster.model_host.workers import HostedWorkers
from headrace.platform.cluster.worker_files import Assignment, WorkerFiles
from headrace.serving.artifacts.fetcher import source_of
from headrace.serving.http.server import http_limits, http_server
from headrace.serving.http.tls import bind, server_context, url_of
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings

_LOAD_TIMEOUT_S: Final = 360.0
"""Time to load a model that has been fetched. Source: SageMaker developer guide, "Invoke a Multi-Model Endpoint"."""
FREE_SHARE: Final = 0.9
"""Share of the free memory that models may take if no instance type or setting limits them."""
_PLANNED_SHARE: Final = 4
"""A language model plans with this part of the limit, or with twice the size of its files if that is more."""
_MULTI_MODEL: Final = "SAGEMAKER_MULTI_MODEL"
"""Tells a container that it serves many models; here, each model has a server of its own."""
_GRACE_S: Final = 20.0


def serve_models(assignment: Assignment, files: WorkerFiles, env: Mapping[str, str]) -> int:
    """Serve the models of a multi-model endpoint until a signal stops it; return the exit code."""
    limit_arenas()
    settings, _ = load_settings({"model": assignment.spec.name}, env)
    with (
        bind(assignment.host, assignment.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        served = _Served(assignment, files.folder / "models", memory_limit(assignment.spec, settings), env)
        tls = server_context(files.certificate if assignment.pin else None, None)
        server = http_server(served.app(), limits=http_limits(settings), tls=tls)

        async def run() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, lambda: server.stop(grace_s=_GRACE_S))
            get_logger().info("models.listening", url=url_of(listener, is_tls=tls is not None))
            await server.serve(sockets=[listener])
            await served.close()

        runner.run(run())
    return 0


def memory_limit(spec: WorkerSpec, settings: ServerSettings) -> int:
    """Return the memory for all models together: the least of a setting, the instance's share, and what is free."""
    free_bytes = round(available_memory_bytes() * FREE_SHARE)
    return min(free_bytes, settings.max_memory_bytes or free_bytes, spec.memory_bytes or free_bytes)


def hosted_model(spec: WorkerSpec, registration: Registration, limit_bytes: int) -> HostedModel:
    """Return a registered model, with the worker that serves it. Raises `InvalidRequest`: it may not be loaded."""
    assert spec.models is not None, "it is the worker of a multi-model endpoint"
    url = registration.url
    if not url.startswith(spec.models.prefix) or ".." in PurePosixPath(url).parts:
        raise InvalidRequest(f"The model {url!r} is not below {spec.models.prefix}.", param="url")
    num_bytes = sum(stored.num_bytes for grant in registration.grants for stored in grant.objects)
    if not num_bytes and "://" not in url:
        num_bytes = size_of(Path(url))
    worker = replace(
        spec,
        models=None,
        environment={name: value for name, value in spec.environment.items() if name != _MULTI_MODEL},
        artifacts=(source_of(url), *spec.artifacts),
        grants=(*spec.grants, *registration.grants),
        memory_bytes=planned_bytes(limit_bytes, num_bytes),
        limits=Limits(),
        resources=None,
        group="",
    )
    return HostedModel(
        name=registration.model_name,
        url=url,
        spec=worker,
        num_bytes=num_bytes,
        ttl_s=None if spec.models.is_caching else 0.0,
    )


def planned_bytes(limit_bytes: int, num_bytes: int) -> int:
    """Return the memory with which a language model plans its KV cache, by the size of its files."""
    return min(limit_bytes, max(limit_bytes // _PLANNED_SHARE, 2 * num_bytes))


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


class _Served:
    """A host with its application; its log and its metrics are those of all models."""

    def __init__(self, assignment: Assignment, folder: Path, limit_bytes: int, env: Mapping[str, str]) -> None:
        self._assignment = assignment
        self._limit_bytes = limit_bytes
        self._workers = HostedWorkers(
            folder,
            cache_folder=Path(assignment.cache_folder),
            environment=env,
            token=assignment.token,
            limit_bytes=limit_bytes,
            load_timeout_s=assignment.spec.artifact_timeout_s + _LOAD_TIMEOUT_S,
        )

    def app(self) -> ModelHostApp:
        spec = self._assignment.spec
        return ModelHostApp(
            host=self._workers.host,
            client=self._workers.client,
            hosted=lambda registration: hosted_model(spec, registration, self._limit_bytes),
            metrics=self._metrics,
            token=self._assignment.token,
        )

    async def close(self) -> None:
        await self._workers.close()

    async def _metrics(self) -> bytes:
        """Return the pages of all models as one; the platform's reading of it also brings their logs."""
        from prometheus_client.core import GaugeMetricFamily
        from prometheus_client.parser import text_string_to_metric_families

        from headrace.serving.http.prometheus import merge_families, metrics_page

        await self._workers.copy_logs()
        pages = await self._workers.pages()
        own = [
            GaugeMetricFamily("headrace_loaded_models", "Models in memory.", len(pages)),
            GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", read_resident_bytes() or 0),
        ]
        others = (family for page in pages.values() for family in text_string_to_metric_families(page))
        return metrics_page(merge_families([*own, *others]))
