"""The norms of a network in plain numpy."""

import numpy as np

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.step import Float32


def normed(spec: ModelSpec, x: Float32, weights: dict[str, Float32], name: str) -> Float32:
    if spec.norm == "rms":
        return rms_norm(x, weights[name], spec.eps_of(name))
    bias = weights.get(f"{name}_bias")
    return layer_norm(x, weights[name].reshape(-1), None if bias is None else bias.reshape(-1), spec.eps_of(name))


def layer_norm(x: Float32, weight: Float32, bias: Float32 | None, eps: float) -> Float32:
    """Apply the layer norm (Ba et al. 2016) over the last axis."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normed: Float32 = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(eps)) * weight
    return normed if bias is None else normed + bias


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    normed: Float32 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight.reshape(-1)
    return normed
