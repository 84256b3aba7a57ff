"""
SmoothQuant: migrate activation outliers into the weights that the activations are multiplied with.

A *joint* is a place where a vector of scales can be divided out of the producer of the activations (a norm, the rows of
v or of up) and multiplied into the columns of the matrices that read them, without changing the result. The strength is
found by search: each candidate is rounded as the W8A8 kernels round, and the one with the smallest error wins.
Pure functions on arrays. Letters in shapes: `T` tokens, `K` inputs, `N` outputs.

    attn_norm -> q, k, v      mlp_norm -> gate, up      rows of up -> down      rows of v -> o

The last joint has one scale for all query heads that read the same values. Norms after the two halves of a layer
(Gemma), norms of q and k, and the bias of o come after the matrices and are left unchanged.

Papers: Xiao et al. 2022 (SmoothQuant), Lin et al. 2023 (AWQ, for the search and for the joints v-o and up-down).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.calibration import TracedLayer
from headrace.inference.runner.step import Float32

Int8 = npt.NDArray[np.int8]
Rounding = Callable[[Float32], Float32]
"""The rounding that storing applies to the values of a norm or a bias."""

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Migration strengths that the search tries, besides no smoothing at all."""
GROUP = 64
"""Activations that share a scale in the W8A8 kernels."""
_LARGEST = 127
_SMALLEST_SCALE = np.float32(2**-126)


def strengths(alpha: float | None) -> tuple[float, ...]:
    """Return the strengths to search: `ALPHAS` for None, none for 0 (no smoothing), else just `alpha`."""
    if alpha is None:
        return ALPHAS
    return (alpha,) if alpha else ()


@dataclass(frozen=True, slots=True)
class Joint:
    """The scales chosen for one joint."""

    scales: Float32
    """(K,) divided out of the activations and multiplied into the columns."""
    alpha: float
    """0 where all scales are 1."""
    error: float
    """Squared error of the outputs relative to the outputs of the same token, averaged over tokens and matrices."""
    error_before: float
    """The same error with all scales 1."""


def search_joint(
    inputs: Float32,
    maxima: Float32,
    matrices: Sequence[Float32],
    *,
    alphas: Sequence[float],
    tie: Callable[[Float32], Float32] = np.positive,
) -> Joint:
    """
    Find the scales of the joint before `matrices` (N, K), by candidates on its `inputs` (T, K).

    `maxima` (K,) are the largest magnitudes over all the calibration text; `tie` replaces the entries of a vector (K,)
    that must share a scale by their maximum. No smoothing wins if none of the strengths `alphas` is better.
    """
    outputs = [inputs @ matrix.T for matrix in matrices]
    column_maxima = tie(np.max([np.abs(matrix).max(axis=0) for matrix in matrices], axis=0))
    ones = np.ones_like(maxima)
    before = rounding_error(inputs, matrices, outputs, ones)
    best = Joint(ones, 0.0, before, before)
    for alpha in alphas:
        scales = smoothing_scales(tie(maxima), column_maxima, alpha)
        error = rounding_error(inputs, matrices, outputs, scales)
        if error < best.error:
            best = Joint(scales, alpha, error, before)
    return best


def smoothing_scales(activations: Float32, weights: Float32, alpha: float) -> Float32:
    """
    Return scales (K,) with geometric mean 1 from the maxima (K,) of activations and of weights.

    Channels that are always zero keep scale 1.
    """
    alive = (activations > 0) & (weights > 0)
    logs = np.zeros(len(activations), np.float64)
    logs[alive] = alpha * np.log(activations[alive]) - (1 - alpha) * np.log(weights[alive])
    if alive.any():
        logs[alive] -= logs[alive].mean()
    scales: Float32 = np.exp(logs).astype(np.float32)
    return scales


def rounding_error(inputs: Float32, matrices: Sequence[Float32], outputs: Sequence[Float32], scales: Float32) -> float:
    """Return the error of the outputs (see `Joint.error`) when both sides are rounded to 8 bits."""
    rounded = round_activations(inputs / scales)
    total = 0.0
    for matrix, output in zip(matrices, outputs, strict=True):
        difference = rounded @ round_weights(matrix * scales).T - output
        powers = np.maximum(np.einsum("tn,tn->t", output, output), _SMALLEST_SCALE)
        total += float(np.mean(np.einsum("tn,tn->t", difference, difference) / powers))
    return total / len(matrices)


def round_activations(values: Float32) -> Float32:
    """Round to what the kernels can represent: 8 bits with a scale for every `GROUP` of a token."""
    num_tokens, width = values.shape
    padded = np.pad(values, ((0, 0), (0, -width % GROUP))).reshape(num_tokens, -1, GROUP)
    scales = np.abs(padded).max(axis=-1, keepdims=True) / _LARGEST
    rounded = np.rint(padded / np.maximum(scales, _SMALLEST_SCALE)) * scales
    cut: Float32 = rounded.reshape(num_tokens, -1)[:, :width]
    return cut


def round_weights(matrix: Float32) -> Float32:
    """Round to what `quantize_rows` can represent."""
    values, scales = quantize_rows(matrix)
    return values * scales[:, None]


def quantize_rows(matrix: Float32) -> tuple[Int8, Float32]:
    """
    Quantize to 8 bits with a scale for every row: values (N, K) in -127..127, scales (N,).

    Scales are rounded up to bfloat16, so that programs that keep them as fp32 or as bfloat16 read the same numbers.
    """
    scales = np.maximum(np.abs(matrix).max(axis=1) / np.float32(_LARGEST), _SMALLEST_SCALE)
    scales = ((scales.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


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
    weights["up"] = weights["up"] / joints["down"].scales[:, None]
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


def _through_values(spec: ModelSpec, weights: dict[str, Float32], scales: Float32, rounding: Rounding) -> None:
    by_head = scales.reshape(spec.num_kv_heads, spec.group_size, spec.head_dim)
    own = by_head[:, 0].reshape(-1)
    if "v_bias" in weights:
        weights["v_bias"], own = divided(weights["v_bias"].reshape(-1), own, rounding)
    shared = np.broadcast_to(own.reshape(spec.num_kv_heads, 1, spec.head_dim), by_head.shape)
    weights["v"] = weights["v"] / own[:, None]
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
