"""
SmoothQuant: moves what makes activations hard to round into the weights that they are multiplied with.

A *joint* is a place where a vector of scales can be divided out of what makes the activations (a norm, the rows of v or
of up) and multiplied into the columns of the matrices that read them, without a change of the result. How much is moved
is found by trying: each candidate is rounded as the W8A8 kernels round, and the one with the smallest error wins.
Pure functions on arrays. Letters in shapes: `T` tokens, `K` inputs, `N` outputs.

Papers: Xiao et al. 2022 (SmoothQuant), Lin et al. 2023 (AWQ, for the search and for the joints v-o and up-down).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.runner.step import Float32

Int8 = npt.NDArray[np.int8]

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""What the search tries, besides leaving a joint as it is."""
GROUP = 64
"""Activations that share a scale in the W8A8 kernels."""
_LARGEST = 127
_SMALLEST_SCALE = np.float32(2**-126)


def strengths(alpha: float | None) -> tuple[float, ...]:
    """The strengths to choose from: all of the search for None, one, or none for 0, which moves nothing."""
    if alpha is None:
        return ALPHAS
    return (alpha,) if alpha else ()


@dataclass(frozen=True, slots=True)
class Joint:
    """The scales chosen for one joint."""

    scales: Float32
    """(K,) divided out of the activations, multiplied into the columns."""
    alpha: float
    """0 where all scales are 1."""
    error: float
    """Of the outputs, squared, relative to the outputs of the same token: averaged over tokens and matrices."""
    error_before: float
    """The same with all scales 1."""


def search_joint(
    inputs: Float32,
    maxima: Float32,
    matrices: Sequence[Float32],
    *,
    alphas: Sequence[float],
    tie: Callable[[Float32], Float32] = np.positive,
) -> Joint:
    """
    Find the scales of a joint.

    Args:
        inputs: (T, K) activations to try on.
        maxima: (K,) the largest magnitude of each over all the calibration text.
        matrices: (N, K) each; all read these inputs.
        alphas: strengths to try; the best wins, or no smoothing if that is better than all.
        tie: makes the entries of a vector (K,) equal whose scales must be the same, by their largest.
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
    Scales (K,) from the maxima (K,) of activations and of weights; their geometric mean is 1.

    Channels that are always zero keep 1.
    """
    alive = (activations > 0) & (weights > 0)
    logs = np.zeros(len(activations), np.float64)
    logs[alive] = alpha * np.log(activations[alive]) - (1 - alpha) * np.log(weights[alive])
    if alive.any():
        logs[alive] -= logs[alive].mean()
    scales: Float32 = np.exp(logs).astype(np.float32)
    return scales


def rounding_error(inputs: Float32, matrices: Sequence[Float32], outputs: Sequence[Float32], scales: Float32) -> float:
    """How far the outputs move when both sides are rounded to 8 bits, as `Joint.error`."""
    rounded = round_activations(inputs / scales)
    total = 0.0
    for matrix, output in zip(matrices, outputs, strict=True):
        difference = rounded @ round_weights(matrix * scales).T - output
        powers = np.maximum(np.einsum("tn,tn->t", output, output), _SMALLEST_SCALE)
        total += float(np.mean(np.einsum("tn,tn->t", difference, difference) / powers))
    return total / len(matrices)


def round_activations(values: Float32) -> Float32:
    """The nearest numbers that the kernels can hold: 8 bits with a scale for every `GROUP` of a token."""
    num_tokens, width = values.shape
    padded = np.pad(values, ((0, 0), (0, -width % GROUP))).reshape(num_tokens, -1, GROUP)
    scales = np.abs(padded).max(axis=-1, keepdims=True) / _LARGEST
    rounded = np.rint(padded / np.maximum(scales, _SMALLEST_SCALE)) * scales
    cut: Float32 = rounded.reshape(num_tokens, -1)[:, :width]
    return cut


def round_weights(matrix: Float32) -> Float32:
    """The nearest numbers that `quantise_rows` can hold."""
    values, scales = quantise_rows(matrix)
    return values * scales[:, None]


def quantise_rows(matrix: Float32) -> tuple[Int8, Float32]:
    """
    8 bits with a scale for every row: values (N, K) in -127..127, scales (N,).

    Scales are rounded up to bfloat16, so that programs that keep them in either type read the same numbers.
    """
    scales = _up_to_bf16(np.maximum(np.abs(matrix).max(axis=1) / np.float32(_LARGEST), _SMALLEST_SCALE))
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def _up_to_bf16(values: Float32) -> Float32:
    """The next bfloat16 that is not smaller, of positive numbers."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
