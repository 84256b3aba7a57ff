"""
LoRA adapters on a network of transformers: a hook on each linear layer adds the product of each token's adapter.

The weights stay as they are, so tokens of different adapters, and of none, share a step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from headrace.core.errors import EngineFailed
from headrace.inference.models.adapter import Adapter
from headrace.inference.runner.step import Float32, Int32

Factors = tuple[torch.Tensor, torch.Tensor]
"""A (rank, inputs) and B (outputs, rank), which includes the scale."""


class AdapterHooks:
    """The slots for adapters of one network, and the slot of each token of the call in progress."""

    def __init__(self, model: Any, num_slots: int) -> None:
        self._device = next(model.parameters()).device
        self._slots: dict[int, Mapping[str, Factors]] = {}
        self._tokens: list[tuple[int, torch.Tensor]] = []
        """Slot → indices of its tokens."""
        self._num_tokens = 0
        self._called: set[str] = set()
        self._linears = _linears(model) if num_slots else {}
        for name, (module, _) in self._linears.items():
            module.register_forward_hook(self._hook(name))

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """
        Outputs and inputs of each linear layer that adapters can change, by its name.

        Layers that have not been called are left out: code that reads their weights itself runs no hook.
        """
        return {name: shape for name, (_, shape) in self._linears.items() if name in self._called}

    def slot_bytes(self, rank: int) -> int:
        """Return the bytes of an adapter of `rank` that changes every linear layer."""
        values = sum(outputs + inputs for _, (outputs, inputs) in self._linears.values())
        return values * rank * torch.float32.itemsize

    def fill(self, slot: int, adapter: Adapter) -> None:
        """Fill a slot; may be called on another thread than that of the steps."""
        self._slots[slot] = {
            name: (self._tensor(matrix.shrink), self._tensor(matrix.expand))
            for name, matrix in adapter.matrices.items()
        }

    def select(self, slots: Int32) -> None:
        """Give each token of the next call its slot, -1 for none."""
        self._num_tokens = len(slots)
        self._tokens = []
        for slot in np.unique(slots[slots >= 0]).tolist():
            if slot not in self._slots:
                raise EngineFailed(f"The step is invalid: slot {slot} has no adapter.")
            (tokens,) = np.nonzero(slots == slot)
            self._tokens.append((slot, torch.as_tensor(tokens, device=self._device)))

    def clear(self) -> None:
        self._tokens = []

    def _tensor(self, values: Float32) -> torch.Tensor:
        return torch.as_tensor(np.array(values, np.float32), device=self._device)

    def _hook(self, name: str) -> Callable[..., None]:
        def add_products(_module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            self._called.add(name)
            for slot, tokens in self._tokens:
                factors = self._slots[slot].get(name)
                if factors is not None:
                    self._add_product(output, args[0], tokens, factors)

        return add_products

    def _add_product(self, output: torch.Tensor, inputs: torch.Tensor, tokens: torch.Tensor, factors: Factors) -> None:
        rows_in, rows_out = inputs.reshape(-1, inputs.shape[-1]), output.view(-1, output.shape[-1])
        if len(rows_in) != self._num_tokens:
            raise EngineFailed("An adapted layer does not run on the tokens of the step.")
        shrink, expand = factors
        product = (rows_in[tokens].float() @ shrink.T) @ expand.T
        rows_out.index_add_(0, tokens, product.to(output.dtype))


def _linears(model: Any) -> dict[str, tuple[torch.nn.Module, tuple[int, int]]]:
    """
    Return the linear layers of the network's layers by name, each with its outputs and inputs, quantized ones too.

    The LM head runs on a part of the tokens, and so do experts: they cannot be adapted.
    """
    head = model.get_output_embeddings()
    return {
        name: (module, shape)
        for name, module in model.named_modules()
        if module is not head and "experts" not in name.split(".") and (shape := _shape(module)) is not None
    }


def _shape(module: torch.nn.Module) -> tuple[int, int] | None:
    if isinstance(module, Conv1D):
        return module.weight.shape[1], module.weight.shape[0]
    outputs, inputs = (getattr(module, name, None) for name in ("out_features", "in_features"))
    return (outputs, inputs) if isinstance(outputs, int) and isinstance(inputs, int) else None
