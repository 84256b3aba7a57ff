"""
Smooth one layer: its joints, and the tensors that absorb their scales. The layer computes the same function.

    attn_norm -> q, k, v      mlp_norm -> gate, up      rows of up -> down      rows of v -> o

The last joint has one scale for all query heads that read the same values. Norms after the two halves of a layer
(Gemma), norms of q and k, and the bias of o come after the matrices and are left unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.calibration import TracedLayer
from headrace.inference.runner.smoothing import Joint, search_joint
from headrace.inference.runner.step import Float32

Rounding = Callable[[Float32], Float32]
"""The rounding that storing applies to the values of a norm or a bias."""


@dataclass(frozen=True, slots=True)
class SmoothedLayer:
    """The smoothed weights by part, in float32, and the scales chosen for each joint."""

    weights: dict[str, Float32]
    joints: dict[str, Joint]


def smooth_layer(
    spec: ModelSpec, layer: TracedLayer, *, alphas: Sequence[float], norm_rounding: Rounding, bias_rounding: Rounding
) -> SmoothedLayer:
    """
    Choose the scales of a layer and fold them into its weights.

    Scales are adjusted so that norms and the bias of v are stored exactly: their rounding error is absorbed by the
    scales of the matrix.
    """
    weights = dict(layer.weights)
    joints = {
        "qkv": _choose(layer, ("q", "k", "v"), alphas),
        "o": _choose(layer, ("o",), alphas, tie=lambda values: _tie_heads(spec, values)),
        "gate_up": _choose(layer, ("gate", "up"), alphas),
        "down": _choose(layer, ("down",), alphas),
    }
    _through_norm(weights, "attn_norm", ("q", "k", "v"), joints["qkv"].scales, norm_rounding)
    _through_norm(weights, "mlp_norm", ("gate", "up"), joints["gate_up"].scales, norm_rounding)
    _through_rows(weights, "up", joints["down"].scales)
    weights["down"] = weights["down"] * joints["down"].scales
    _through_values(spec, weights, joints["o"].scales, bias_rounding)
    return SmoothedLayer(weights, joints)


def _choose(
    layer: TracedLayer,
    names: tuple[str, ...],
    alphas: Sequence[float],
    tie: Callable[[Float32], Float32] = np.positive,
) -> Joint:
    inputs = layer.inputs[names[0]]
    matrices = [layer.weights[name] for name in names]
    return search_joint(inputs.tokens, inputs.maxima, matrices, alphas=alphas, tie=tie)


def _through_norm(
    weights: dict[str, Float32], norm: str, names: tuple[str, ...], scales: Float32, rounding: Rounding
) -> None:
    weights[norm], exact = divided(weights[norm].reshape(-1), scales, rounding)
    for name in names:
        weights[name] = weights[name] * exact


def _through_rows(weights: dict[str, Float32], name: str, scales: Float32) -> None:
    weights[name] = weights[name] / scales[:, None]


def _through_values(spec: ModelSpec, weights: dict[str, Float32], scales: Float32, rounding: Rounding) -> None:
    by_head = scales.reshape(spec.num_kv_heads, spec.group_size, spec.head_dim)
    own = by_head[:, 0].reshape(-1)
    if "v_bias" in weights:
        weights["v_bias"], own = divided(weights["v_bias"].reshape(-1), own, rounding)
    shared = np.broadcast_to(own.reshape(spec.num_kv_heads, 1, spec.head_dim), by_head.shape)
    _through_rows(weights, "v", own)
    weights["o"] = weights["o"] * shared.reshape(-1)


def divided(vector: Float32, scales: Float32, rounding: Rounding) -> tuple[Float32, Float32]:
    """Return `vector / scales` (K,) as it is stored, and the nearby scales (K,) that make the division exact."""
    kept = rounding(vector / scales)
    is_lost = (kept == 0) & (vector != 0)
    kept = np.where(is_lost, rounding(vector), kept)
    is_dead = (vector == 0) | (kept == 0)
    exact = np.where(is_dead, scales, vector / np.where(is_dead, np.float32(1), kept))
    return kept.astype(np.float32), exact.astype(np.float32)


def _tie_heads(spec: ModelSpec, values: Float32) -> Float32:
    """Give all query heads of a group, which read the same values, the maximum of the group (H * D,)."""
    by_head = values.reshape(spec.num_kv_heads, spec.group_size, spec.head_dim)
    largest = by_head.max(axis=1, keepdims=True)
    return np.ascontiguousarray(np.broadcast_to(largest, by_head.shape)).reshape(-1)
