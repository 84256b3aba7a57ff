"""
LoRA adapters: low-rank additions to the matrices of a network, by canonical name (see `spec`).

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

ADAPTED_PARTS: Final = frozenset({"q", "k", "v", "attn_gate", "o", "gate", "up", "down"})
"""The matrices of a layer that an adapter may change; those of experts are not among them."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The addition to one matrix: `y += expand @ (shrink @ x)`; `expand` includes the adapter's scale."""

    shrink: Float32
    """(rank, inputs), LoRA's A."""
    expand: Float32
    """(outputs, rank), LoRA's B, its rows in the order of the canonical weight."""

    @property
    def rank(self) -> int:
        return len(self.shrink)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The content of an adapter, independent of its file format and of its name."""

    identity: str
    """A hash of all numbers: equal for equal content only."""
    matrices: Mapping[str, LowRank]
    """By canonical name of the matrix."""

    @property
    def rank(self) -> int:
        return max(matrix.rank for matrix in self.matrices.values())


def is_adaptable(name: str) -> bool:
    """Return whether adapters may change the canonical weight `name`."""
    layer, _, part = name.rpartition(".")
    return layer.startswith("layers.") and "." not in layer.removeprefix("layers.") and part in ADAPTED_PARTS
