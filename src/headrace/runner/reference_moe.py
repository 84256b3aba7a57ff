"""
Mixture of experts in plain numpy and float32, for the reference network.

Letters in shapes: `T` tokens, `E` experts, `k` experts of a token.
"""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.models.spec import MoeSpec
from headrace.runner.step import Float32, Int32

Gated = Callable[[Float32, str], Float32]
"""A gated MLP: its input and the prefix of its weights."""


def mix_experts(moe: MoeSpec, weights: Mapping[str, Float32], x: Float32, gated: Gated) -> Float32:
    """Return the output (T, hidden) of the experts of a layer, whose weights are given by part."""
    chosen, factors = route(moe, x @ weights["router"].T)
    mixed = np.zeros_like(x)
    for expert in np.unique(chosen):
        tokens, slots = np.nonzero(chosen == expert)
        mixed[tokens] += factors[tokens, slots][:, None] * gated(x[tokens], f"experts.{expert}.")
    if not moe.shared_size:
        return mixed
    shared = gated(x, "shared_")
    return mixed + (_sigmoid(x @ weights["shared_router"].T) * shared if moe.has_shared_router else shared)


def route(moe: MoeSpec, scores: Float32) -> tuple[Int32, Float32]:
    """Return the experts (T, k) that scores (T, E) choose, the best first, and their factors (T, k)."""
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : moe.top_k].astype(np.int32)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    factors = np.take_along_axis(exponentials, chosen, axis=1)
    total = factors if moe.renormalize else exponentials
    return chosen, factors / total.sum(axis=1, keepdims=True)


def _sigmoid(x: Float32) -> Float32:
    """Apply the logistic function, written with tanh because it does not overflow."""
    activated: Float32 = 0.5 * np.tanh(0.5 * x) + 0.5
    return activated
