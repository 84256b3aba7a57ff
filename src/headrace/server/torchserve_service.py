"""State shared by the routes of a server for TorchServe's models."""

from collections.abc import Sequence

from headrace.core.spans import NO_TRACER, Tracer
from headrace.handlers.pool import HandlerPool, PoolPhase
from headrace.handlers.spec import ContractName
from headrace.handlers.torchserve_models import Registered, TorchServeModels
from headrace.server.handlers.service import CodeService
from headrace.settings.server_settings import ServerSettings


class TorchServeService(CodeService):
    """The state of a server for TorchServe's models."""

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

        Raises:
            Unavailable: models are still being loaded, or the server is shutting down.
            ApiError: there is no such model or version.
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
