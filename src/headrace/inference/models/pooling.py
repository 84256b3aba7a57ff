"""Pooling of hidden states into embeddings or scores, and the layers after it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.generation import PoolingMethod

Float32 = npt.NDArray[np.float32]


def gelu(x: Float32) -> Float32:
    scaled = (x * math.sqrt(0.5)).tolist()
    activated: Float32 = 0.5 * x * (1 + np.array([math.erf(value) for value in scaled], np.float32))
    return activated


ACTIVATIONS: Final[Mapping[str, Callable[[Float32], Float32]]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 0.5 * np.tanh(0.5 * x) + 0.5,
    "gelu": gelu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A linear layer with an activation, applied to the pooled vector in single precision."""

    weight: Float32
    """(outputs, inputs)"""
    bias: Float32 | None = None
    activation: str = "identity"

    def apply(self, x: Float32) -> Float32:
        y = self.weight @ x
        return ACTIVATIONS[self.activation](y if self.bias is None else y + self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLayer:
    """A layer norm of the pooled vector, in single precision."""

    weight: Float32
    """(outputs,)"""
    bias: Float32 | None = None
    eps: float = 1e-5

    def apply(self, x: Float32) -> Float32:
        centred = x - x.mean()
        y: Float32 = centred / np.sqrt((centred * centred).mean() + np.float32(self.eps)) * self.weight
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """The pooling of a model. With `labels` its outputs are scores of a classifier or reranker."""

    method: PoolingMethod = "last"
    layers: tuple[DenseLayer | NormLayer, ...] = ()
    normalizes: bool = True
    """Embeddings are L2-normalised unless a request says otherwise."""
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    """See `PoolingInfo`."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name (`query`, `document`), which precede a text."""
    default_prompt: str = ""
    """The prompt of requests that name none."""
    max_tokens: int = 0
    """Longest input that the model was trained with; 0: that of the network."""
    has_token_types: bool = False
    """The network distinguishes the two texts of a pair by the types of their tokens."""
    pair_template: str = ""
    """The text of a pair for a reranker that is a decoder, with `{query}` and `{document}`; empty: two segments."""

    def size(self, hidden_size: int) -> int:
        return len(self.layers[-1].weight) if self.layers else hidden_size

    def project(self, vector: Float32) -> Float32:
        for layer in self.layers:
            vector = layer.apply(vector)
        return vector
