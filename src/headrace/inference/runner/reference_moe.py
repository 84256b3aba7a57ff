"""
Mixture of experts in plain numpy and float32, for the reference network.

Letters in shapes: `T` tokens, `E` experts, `k` experts of a token.
"""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.inference.models.spec import MoeSpec
from headrace.inference.runner.step import Float32, Int32

Gated = Callable[[Float32, str], Float32]
"""A gated MLP: its input and the prefix of its weights."""
Scoring = Callable[[int, Float32], Float32]
"""The scores (T, E) that the router of a layer uses, given those that it computed."""


def mix_experts(
    moe: MoeSpec,
    weights: Mapping[str, Float32],
    x: Float32,
    gated: Gated,
    rescore: Callable[[Float32], Float32],
) -> Float32:
    """Return the output (T, hidden) of the experts of a layer, whose weights are given by part."""
    scores = x @ weights["router"].T
    if moe.router_bias:
        scores = scores + weights["router_bias"]
    scores = rescore(scores)
    chosen = choose_best(moe, scores)
    factors = factors_of(moe, scores, chosen)
    mixed = np.zeros_like(x)
    for expert in np.unique(chosen):
        tokens, slots = np.nonzero(chosen == expert)
        mixed[tokens] += factors[tokens, slots][:, None] * gated(x[tokens], f"experts.{expert}.")
    if not moe.shared_size:
        return mixed
    shared = gated(x, "shared_")
    if moe.has_shared_router:  # the logistic function, written with tanh because it does not overflow
        shared = (0.5 * np.tanh(0.5 * (x @ weights["shared_router"].T)) + 0.5) * shared
    return mixed + shared


def as_computed(_layer: int, scores: Float32) -> Float32:
    return scores


def choose_best(moe: MoeSpec, scores: Float32) -> Int32:
    """Return the experts with the best scores; of equal scores the lower index wins."""
    return np.argsort(-scores, axis=1, kind="stable")[:, : moe.top_k].astype(np.int32)


def factors_of(moe: MoeSpec, scores: Float32, chosen: Int32) -> Float32:
    """Return the factors (T, k) of the chosen experts (T, k)."""
    if moe.tolerance:
        return _sparsemixer(moe.tolerance, scores, chosen)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Float32 = np.take_along_axis(exponentials, chosen, axis=1)
    total: Float32 = (shares if moe.renormalize else exponentials).sum(axis=1, keepdims=True)
    factors: Float32 = shares / total
    return factors


def _sparsemixer(tolerance: float, scores: Float32, chosen: Int32) -> Float32:
    """Return factors that are each the softmax of the scores near the chosen one, without those chosen before."""
    left = scores.copy()
    factors = np.empty(chosen.shape, np.float32)
    for slot, experts in enumerate(chosen.T):
        top = np.take_along_axis(left, experts[:, None], axis=1)
        near = np.isfinite(left) & ~((top - scores) / np.maximum(np.abs(scores), top) > tolerance)
        factors[:, slot] = 1 / np.where(near, np.exp(left - top), 0).sum(axis=1)
        np.put_along_axis(left, experts[:, None], -np.inf, axis=1)
    return factors
