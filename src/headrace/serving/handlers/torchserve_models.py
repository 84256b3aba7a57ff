"""The models that TorchServe's APIs serve: by name and version, each with a pool of children. On the event loop."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import HeadraceError
from headrace.serving.handlers.pool import HandlerPool, PoolPhase
from headrace.serving.handlers.spec import HandlerSpec
from headrace.serving.handlers.torchserve import model_version
from headrace.serving.handlers.torchserve_config import ManagementOptions
from headrace.serving.handlers.worker import Worker
from headrace.serving.wire.torchserve.management import (
    ApiError,
    Registration,
    bad_request,
    method_not_allowed,
    model_not_found,
    version_not_found,
)

_POLL_S: Final = 0.05
MAX_MODELS: Final = 100
"""Versions of models that may be registered at once."""
MAX_WORKERS: Final = 64

FindModel = Callable[[Registration], Awaitable[HandlerSpec]]
"""Finds the model of a registration, unpacks and describes it; its HeadraceError is the client's error."""


@dataclass(slots=True, eq=False)
class Registered:
    """A version of a model."""

    name: str
    version: str
    url: str
    spec: HandlerSpec
    pool: HandlerPool
    is_at_startup: bool = False

    def describe(self) -> dict[str, Any]:
        """
        Return the description of the version, with TorchServe's defaults for what Headrace does not have.

        Source: pytorch/serve `http/messages/DescribeModelResponse.java`.
        """
        spec, pool, config = self.spec, self.pool, self.spec.load.model_config
        return {
            "modelName": self.name,
            "modelVersion": self.version,
            "modelUrl": self.url,
            "runtime": "python",
            "minWorkers": pool.min_workers,
            "maxWorkers": pool.max_workers,
            "batchSize": spec.batch_size,
            "maxBatchDelay": int(spec.max_batch_delay_ms),
            "responseTimeout": int(spec.call_timeout_s or 0),
            "startupTimeout": int(spec.load_timeout_s),
            "maxRetryTimeoutInSec": int(spec.restart.max_retry_s or 0),
            "clientTimeoutInMills": 0,
            "parallelType": "",
            "parallelLevel": 0,
            "deviceType": str(config.get("deviceType", "cpu")),
            "continuousBatching": bool(config.get("continuousBatching")),
            "useJobTicket": False,
            "useVenv": False,
            "stateful": bool(config.get("sequenceBatching")),
            "sequenceMaxIdleMSec": 0,
            "sequenceTimeoutMSec": 0,
            "maxNumSequence": 0,
            "maxSequenceJobQueueSize": 0,
            "loadedAtStartup": self.is_at_startup,
            "workers": [_describe_worker(worker, has_gpu=spec.load.device is not None) for worker in pool.workers],
            "jobQueueStatus": {
                "remainingCapacity": max(spec.queue_size - pool.num_queued, 0),
                "pendingRequests": pool.num_queued,
            },
        }


def _describe_worker(worker: Worker, *, has_gpu: bool) -> dict[str, Any]:
    pid = worker.child.pid if worker.child is not None else 0
    return {
        "id": str(worker.worker_id),
        "startTime": datetime.fromtimestamp(worker.started_s, UTC).isoformat(timespec="milliseconds"),
        "status": "READY" if worker.is_ready else "UNLOADING",
        "memoryUsage": _memory_bytes(pid) if pid else 0,
        "pid": pid,
        "gpu": has_gpu,
        "gpuUsage": "N/A",
    }


class TorchServeModels:
    """A registry of models and their versions, of which one is the default that requests without a version get."""

    def __init__(self, find_model: FindModel, options: ManagementOptions | None = None) -> None:
        """Create an empty registry; `find_model` finds the models that clients register."""
        self._find_model = find_model
        self._options = options or ManagementOptions()
        self._is_closed = False
        self._models: dict[str, dict[str, Registered]] = {}
        self._defaults: dict[str, str] = {}
        self._other_names: dict[str, str] = {}

    async def load(self, spec: HandlerSpec, *, url: str) -> None:
        """
        Load a model at startup; the first version of a name is its default.

        Raises:
            LoadError: its workers could not load it.
            ApiError: this version is served already.
        """
        model = self._insert(spec, url=url, is_at_startup=True)
        name = str((spec.load.manifest.get("model") or {}).get("modelName") or model.name)
        self._other_names.setdefault(name, model.name)
        await model.pool.start()

    def find(self, name: str | None, version: str | None = None) -> Registered:
        """
        Return a model; without a name the only one that was loaded at startup.

        Raises:
            ApiError: there is no such model or version.
        """
        if name is None:
            initial = {model.name for model in self.all() if model.is_at_startup}
            if len(initial) != 1:
                raise bad_request("Parameter model_name is required.")
            name = initial.pop()
        known = name if name in self._models else self._other_names.get(name, name)
        versions = self._models.get(known)
        if not versions:
            raise model_not_found(name)
        found = versions.get(version or self._defaults[known])
        if found is None:
            raise version_not_found(name, version or self._defaults[known])
        return found

    def versions(self, name: str) -> list[Registered]:
        return list(self._models[self.find(name).name].values())

    def all(self) -> list[Registered]:
        return [model for versions in self._models.values() for model in versions.values()]

    def defaults(self) -> list[Registered]:
        return [self.find(name) for name in self._models]

    def urls(self) -> dict[str, str]:
        """Return the location that each model's default version was registered from."""
        return {model.name: model.url for model in self.defaults()}

    async def register(self, registration: Registration) -> tuple[Registered, bool]:
        """
        Add a model and start its workers.

        Returns:
            The model, and whether its workers have loaded it.

        Raises:
            ApiError: the model cannot be found or loaded, or this version is registered already.
        """
        self._check_changes()
        if sum(map(len, self._models.values())) >= MAX_MODELS:
            raise bad_request(f"There are {MAX_MODELS} models; expected at most that many. Unregister one first.")
        try:
            spec = await self._find_model(registration)
        except HeadraceError as error:
            raise ApiError(400, "ModelException", error.message) from error
        least = self._initial_workers(registration, spec)
        spec = replace(spec, max_workers=max(least, spec.max_workers) if least else spec.max_workers)
        try:
            model = self._insert(spec, url=registration.url)
        except ApiError:
            spec.release()
            raise
        # Without workers first: scaling starts them, and its result is the answer.
        model.pool.min_workers, model.pool.max_workers = 0, 0
        await model.pool.start()
        if not least:
            return model, True
        try:
            return model, await self._scale(
                model, least, spec.max_workers, wait=registration.is_synchronous, named_version=model.version
            )
        except ApiError:
            await self._remove(model)
            raise

    async def scale(
        self, model: Registered, min_workers: int, max_workers: int, *, wait: bool, named_version: str | None = None
    ) -> bool:
        """
        Change the number of workers; `named_version` is the version as the client names it.

        Returns:
            Whether they have loaded the model.

        Raises:
            ApiError: the numbers are invalid, or the workers could not load it.
        """
        if max_workers < min_workers:
            raise bad_request("max_worker cannot be less than min_worker.")
        if max_workers > MAX_WORKERS:
            raise bad_request(f"max_worker is {max_workers}; expected at most {MAX_WORKERS}.")
        return await self._scale(model, min_workers, max_workers, wait=wait, named_version=named_version)

    def set_default(self, name: str, version: str) -> None:
        """
        Make a version the default for requests without a version.

        Raises:
            ApiError: there is no such model or version.
        """
        known = self.find(name).name
        if version not in self._models[known]:
            raise ApiError(
                404, "ModelVersionNotFoundException", f"Model version {version} does not exist for model {name}"
            )
        self._defaults[known] = version

    async def unregister(self, name: str, version: str | None) -> None:
        """
        Remove a version once its requests have finished.

        Raises:
            ApiError: there is no such model, or it is the default and other versions remain.
        """
        self._check_changes()
        model = self.find(name, version)
        if model.version == self._defaults[model.name] and len(self._models[model.name]) > 1:
            raise ApiError(403, "InvalidModelVersionException", f"Cannot remove default version for model {name}")
        await self._remove(model)

    async def close(self, *, deadline_s: float) -> None:
        """Accept no more models, and close all pools."""
        self._is_closed = True
        await asyncio.gather(*(model.pool.close(deadline_s=deadline_s) for model in self.all()))

    def _check_changes(self) -> None:
        if not self._options.accepts_changes:
            raise method_not_allowed()

    def _insert(self, spec: HandlerSpec, *, url: str, is_at_startup: bool = False) -> Registered:
        name, version = spec.model_name, model_version(spec.load.manifest)
        if self._is_closed:
            raise ApiError(503, "ServiceUnavailableException", "The server is shutting down.")
        versions = self._models.setdefault(name, {})
        if version in versions:
            text = f"Model version {version} is already registered for model {name}"
            raise ApiError(409, "ConflictStatusException", text)
        model = Registered(name, version, url, spec, HandlerPool(spec), is_at_startup=is_at_startup)
        for other in versions.values():  # versions of one model report the same metrics
            model.pool.code_metrics = other.pool.code_metrics
        versions[version] = model
        self._defaults.setdefault(name, version)
        return model

    async def _remove(self, model: Registered) -> None:
        versions = self._models.get(model.name, {})
        if versions.get(model.version) is model:  # else a request has removed it meanwhile
            del versions[model.version]
            if not versions:
                del self._models[model.name], self._defaults[model.name]
            elif self._defaults[model.name] == model.version:  # it failed to load, and another one was added meanwhile
                self._defaults[model.name] = next(reversed(versions))
        await model.pool.close(deadline_s=self._options.drain_s)
        model.spec.release()

    async def _scale(self, model: Registered, least: int, most: int, *, wait: bool, named_version: str | None) -> bool:
        pool = model.pool
        restarts = pool.counts.restarts
        pool.scale(least, most)
        if not wait:
            return False

        def is_waiting() -> bool:
            is_starting = pool.phase is PoolPhase.SERVING and pool.counts.restarts == restarts
            return is_starting and pool.num_ready < least

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(model.spec.load_timeout_s):
                while is_waiting():  # noqa: ASYNC110 -- loads take seconds, and no event reports their end
                    await asyncio.sleep(_POLL_S)
        if pool.num_ready < least:
            version = named_version or "null"
            text = f"Failed to start workers for model {model.name} version: {version}"
            raise ApiError(500, "InternalServerException", text)
        return True

    def _initial_workers(self, registration: Registration, spec: HandlerSpec) -> int:
        """Return the workers to start: those of model-config.yaml, else those that the client asks for."""
        config = spec.load.model_config
        if config.get("minWorkers") and config.get("maxWorkers"):
            return spec.min_workers
        asked = registration.initial_workers
        return min(self._options.default_workers if asked is None else asked, MAX_WORKERS)


def _memory_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
