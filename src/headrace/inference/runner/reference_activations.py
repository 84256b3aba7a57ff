"""The activations of MLPs and gates in plain numpy and float32, for the reference network."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.inference.models.spec import Activation
from headrace.inference.runner.step import Float32


def silu(x: Float32) -> Float32:
    """Apply SiLU (Elfwing et al. 2017), written with tanh because it does not overflow."""
    activated: Float32 = x * (0.5 * np.tanh(0.5 * x) + 0.5)
    return activated


def sigmoid(x: Float32) -> Float32:
    """Apply the logistic function, written with tanh because it does not overflow."""
    activated: Float32 = np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)
    return activated


def softplus(x: Float32) -> Float32:
    activated: Float32 = np.logaddexp(np.float32(0), x)
    return activated


def gelu_tanh(x: Float32) -> Float32:
    """Apply the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    activated: Float32 = 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
    return activated


def gelu_erf(x: Float32) -> Float32:
    """Apply GELU with erf from the standard library, one number at a time."""
    scaled = (x.ravel() * math.sqrt(0.5)).tolist()
    activated: Float32 = 0.5 * x * (1 + np.fromiter(map(math.erf, scaled), np.float32, x.size).reshape(x.shape))
    return activated


def relu(x: Float32) -> Float32:
    return np.maximum(x, np.float32(0))


def relu2(x: Float32) -> Float32:
    """Square positive numbers and replace negative ones by 0 (So et al. 2021)."""
    return relu(x) ** 2


def clamped_swiglu(gate: Float32, up: Float32, limit: float) -> Float32:
    """Apply the gated activation of gpt-oss, whose gate is only bounded above."""
    gate, up = gate.clip(None, limit), up.clip(-limit, limit)
    activated: Float32 = (up + 1) * gate * (0.5 * np.tanh(0.5 * np.float32(1.702) * gate) + 0.5)
    return activated


def xielu(x: Float32, positive: Float32, negative: Float32, linear: Float32) -> Float32:
    """Apply xIELU (Huang & Schlag 2024) with numbers of the layer."""
    below = (negative + linear) * (np.expm1(np.minimum(x, np.float32(0))) - x)
    activated: Float32 = np.where(x > 0, positive * x * x, below) + linear * x
    return activated


ACTIVATIONS: Final[Mapping[Activation, Callable[[Float32], Float32]]] = MappingProxyType(
    {"silu": silu, "gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "relu": relu, "relu2": relu2}
)

GATES: Final[Mapping[str, Callable[[Float32], Float32]]] = MappingProxyType({"sigmoid": sigmoid, "softplus": softplus})
"""The activations of gates of attention."""
