"""State shared by the routes of a server for models' own code: the children of its models."""

from abc import abstractmethod
from collections.abc import Sequence

from headrace.core.tracing import NO_TRACER, Tracer
from headrace.serving.handlers.pool import HandlerPool, PoolPhase
from headrace.serving.handlers.spec import ContractName, HandlerSpec
from headrace.serving.handlers.torchserve_models import Registered, TorchServeModels
from headrace.serving.server.base_service import BaseService, ServerPhase
from headrace.serving.settings.server_settings import ServerSettings


class CodeService(BaseService):
    reads_json = False
    contract: ContractName
    model_name: str
    """Name of the only model, for DJL's health check."""

    @property
    @abstractmethod
    def pools(self) -> Sequence[HandlerPool]:
        """The children of each model."""

    @property
    @abstractmethod
    def pool(self) -> HandlerPool:
        """The children of the model that requests without a model's name are for. Raises `Unavailable`."""


class HandlerService(CodeService):
    def __init__(
        self,
        settings: ServerSettings,
        spec: HandlerSpec,
        pool: HandlerPool | None = None,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Create the state with a started pool, or without one until `attach`."""
        super().__init__(settings, is_ready=pool is not None, tracer=tracer)
        self.spec = spec
        self.contract = spec.contract
        self.model_name = spec.model_name
        self._pool = pool

    def attach(self, pool: HandlerPool) -> None:
        self._pool = pool
        self.spec = pool.spec
        self.phase = ServerPhase.READY

    @property
    def pools(self) -> Sequence[HandlerPool]:
        return [self._pool] if self._pool is not None else []

    @property
    def pool(self) -> HandlerPool:
        self.check_open()
        assert self._pool is not None, "attached before the phase is READY"
        return self._pool

    @property
    def is_healthy(self) -> bool:
        return self._pool is None or self._pool.phase is not PoolPhase.FAILED


class TorchServeService(CodeService):
    contract: ContractName = "torchserve"
    model_name = ""

    def __init__(
        self, settings: ServerSettings, models: TorchServeModels, *, is_ready: bool = False, tracer: Tracer = NO_TRACER
    ) -> None:
        super().__init__(settings, is_ready=is_ready, tracer=tracer)
        self.models = models

    def find(self, name: str | None, version: str | None) -> Registered:
        """
        Return the model that a request is for.

        Raises `Unavailable`, or `ApiError` if there is no such model or version.
        """
        self.check_open()
        return self.models.find(name, version)

    @property
    def pools(self) -> Sequence[HandlerPool]:
        return [model.pool for model in self.models.all()]

    @property
    def pool(self) -> HandlerPool:
        return self.find(None, None).pool

    @property
    def is_healthy(self) -> bool:
        """False once the default version of a model has been given up."""
        return all(model.pool.phase is not PoolPhase.FAILED for model in self.models.defaults())
