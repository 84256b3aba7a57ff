"""A network of transformers as a `Runner`: its modeling code, our blocks and our sampling rules."""

from collections.abc import Mapping
from typing import Protocol

import torch

from headrace.core.errors import EngineFailed
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.checks import check_step
from headrace.inference.runner.step import Float32, RunnerInfo, RunnerLimits, StepInput, StepOutput
from headrace.inference.runner.torch.sampling import sample
from headrace.inference.runner.transformers.adapters import AdapterHooks


class Network(Protocol):
    """A network with its KV cache."""

    def logits(self, step: StepInput) -> torch.Tensor:
        """Run one step up to its logits (R, V)."""
        ...


class TransformersRunner:
    """A `Runner` on a network of transformers. Not thread safe: only one thread may call it."""

    is_causal = True
    is_healthy = True

    def __init__(
        self,
        network: Network,
        adapters: AdapterHooks,
        *,
        vocab_size: int,
        limits: RunnerLimits,
        info: RunnerInfo,
        num_parameters: int,
    ) -> None:
        self.vocab_size = vocab_size
        self.limits = limits
        self.info = info
        self.num_parameters = num_parameters
        self._network: Network | None = network
        self._adapters = adapters

    def execute(self, step: StepInput) -> StepOutput:
        """Run one step."""
        return sample(self._logits(step), step)

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V): for tests and comparisons."""
        values: Float32 = self._logits(step).cpu().numpy()
        return values

    @property
    def adaptable(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each module that adapters can change, by its name."""
        return self._adapters.shapes

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        """Fill a slot; see `Runner.load_adapter`."""
        self._adapters.fill(slot, adapter)

    def close(self) -> None:
        """Free weights and KV cache."""
        self._network = None

    def _logits(self, step: StepInput) -> torch.Tensor:
        if self._network is None:
            raise EngineFailed("The runner is closed.")
        check_step(step, self.limits, vocab_size=self.vocab_size)
        if len(step.hidden_rows):
            raise EngineFailed("The step is invalid: the transformers backend returns no hidden states.")
        try:
            with torch.inference_mode():
                return self._network.logits(step)[:, : self.vocab_size]
        except (RuntimeError, ValueError, IndexError) as exc:
            raise EngineFailed(f"The network failed in a step: {_first_line(exc)}") from exc
        finally:
            self._adapters.clear()


def _first_line(exc: Exception) -> str:
    return f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}"
