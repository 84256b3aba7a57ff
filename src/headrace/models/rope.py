"""Inverse frequencies of the rotary embeddings that a `RopeSpec` describes."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.models.spec import RopeSpec

Float64 = npt.NDArray[np.float64]


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Float64:
    """
    Return the radians per position of each rotary pair, (head_dim / 2,).

    `dynamic` must have been resolved (see `resolve_dynamic`).
    Source: transformers `modeling_rope_utils.py`.
    """
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return frequencies / llama3_divisors(rope, frequencies)
    assert rope.kind == "default", "dynamic rope scaling must be resolved for a context length"
    return frequencies


def llama3_divisors(rope: RopeSpec, frequencies: Float64) -> Float64:
    """Return Llama 3's divisor of each frequency: 1 for high ones, `factor` for low ones, a ramp between."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    smooth = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return 1.0 / (smooth + (1.0 - smooth) / rope.factor)


def resolve_dynamic(rope: RopeSpec, head_dim: int, context_tokens: int) -> RopeSpec:
    """
    Resolve dynamic NTK scaling for one context length, so that an answer does not depend on the request's length.

    Contexts up to the original length are not scaled. Source: transformers `_compute_dynamic_ntk_parameters`.
    """
    if rope.kind != "dynamic":
        return rope
    stretch = max(1.0, context_tokens / rope.original_max_positions)
    growth = rope.factor * stretch - (rope.factor - 1)
    return replace(rope, kind="default", theta=rope.theta * growth ** (head_dim / (head_dim - 2)), factor=1.0)
