"""
Mixture of experts in plain numpy and float32, for the reference network.

Letters in shapes: `T` tokens, `E` experts, `k` experts of a token.
"""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.inference.models.experts import MoeSpec
from headrace.inference.runner.step import Float32, Int32

Gated = Callable[[Float32, str], Float32]
"""An MLP, gated or plain: its input and the prefix of its weights."""
Scoring = Callable[[int, Float32], Float32]
"""The logits (T, E) that the router of a layer uses, given those that it computed."""


def mix_experts(
    moe: MoeSpec,
    weights: Mapping[str, Float32],
    x: Float32,
    gated: Gated,
    rescore: Callable[[Float32], Float32],
    norm: Callable[[Float32, str], Float32],
) -> Float32:
    """
    Return the output (T, hidden) of the experts of a layer, whose weights are given by part.

    `x` is normed already, unless router, experts and shared MLP have a norm each.
    """
    if moe.own_norms:
        return _mix_normed(moe, weights, x, gated, rescore, norm)
    logits = x @ weights["router"].T
    if moe.router_bias:
        logits = logits + weights["router_bias"]
    logits = rescore(logits)
    chosen, factors = choose_experts(moe, logits, weights.get("choice_bias"))
    inputs = x @ weights["latent_down"].T if moe.latent_size else x
    mixed = _sum_experts(inputs, chosen, factors, gated)
    if moe.latent_size:
        mixed = mixed @ weights["latent_up"].T
    if not moe.shared_size:
        return mixed
    shared = gated(x, "shared_")
    if moe.has_shared_router:  # the logistic function, written with tanh because it does not overflow
        shared = (0.5 * np.tanh(0.5 * (x @ weights["shared_router"].T)) + 0.5) * shared
    return mixed + shared


def _mix_normed(
    moe: MoeSpec,
    weights: Mapping[str, Float32],
    x: Float32,
    gated: Gated,
    rescore: Callable[[Float32], Float32],
    norm: Callable[[Float32, str], Float32],
) -> Float32:
    logits = rescore(norm(x, "router_norm") @ weights["router"].T)
    chosen, factors = choose_experts(moe, logits)
    factors = factors * weights["expert_scales"].reshape(-1)[chosen]
    routed = norm(_sum_experts(norm(x, "expert_norm"), chosen, factors, gated), "expert_post_norm")
    return routed + norm(gated(norm(x, "mlp_norm"), "shared_"), "shared_post_norm")


def _sum_experts(inputs: Float32, chosen: Int32, factors: Float32, gated: Gated) -> Float32:
    mixed = np.zeros_like(inputs)
    for expert in np.unique(chosen):
        tokens, slots = np.nonzero(chosen == expert)
        mixed[tokens] += factors[tokens, slots][:, None] * gated(inputs[tokens], f"experts.{expert}.")
    return mixed


def as_computed(_layer: int, scores: Float32) -> Float32:
    return scores


def choose_experts(moe: MoeSpec, logits: Float32, choice_bias: Float32 | None = None) -> tuple[Int32, Float32]:
    """Return the experts (T, k) of each token, the best first, and their factors (T, k)."""
    if moe.logit_softcap:
        logits = np.float32(moe.logit_softcap) * np.tanh(logits / np.float32(moe.logit_softcap))
    if moe.tolerance:
        chosen = _best(logits, moe.top_k)
        return chosen, _sparsemixer(moe.tolerance, logits, chosen)
    scores = _scores(moe, logits)
    ranks = scores if choice_bias is None else scores + choice_bias.reshape(-1)
    chosen = _best(logits if moe.chooses_by_logits else _in_best_groups(moe, ranks), moe.top_k)
    factors: Float32 = np.take_along_axis(scores, chosen, axis=1)
    if moe.renormalize:
        factors = factors / (factors.sum(axis=1, keepdims=True) + np.float32(moe.sum_floor))
    return chosen, factors * np.float32(moe.factor_scale)


def _best(ranks: Float32, count: int) -> Int32:
    """Return the indices (T, count) of the largest values, the largest first; of equal ones the lower index wins."""
    return np.argsort(-ranks, axis=1, kind="stable")[:, :count].astype(np.int32)


def _scores(moe: MoeSpec, logits: Float32) -> Float32:
    """Return the scores (T, E); with a renormalized softmax they are relative to the best one."""
    if moe.scoring == "sigmoid":  # exact for small scores, and without overflow
        return np.exp(-np.logaddexp(np.float32(0), -logits))
    if moe.scoring == "sqrt_softplus":
        return np.sqrt(np.logaddexp(np.float32(0), logits))
    exponentials: Float32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    if moe.renormalize and moe.chooses_by_logits:
        return exponentials
    total: Float32 = exponentials.sum(axis=1, keepdims=True)
    return exponentials / total


def _in_best_groups(moe: MoeSpec, ranks: Float32) -> Float32:
    """Return the ranks (T, E) with those outside of the best groups of a token at -inf."""
    if moe.num_groups == 1:
        return ranks
    groups = ranks.reshape(len(ranks), moe.num_groups, -1)
    best = np.sort(groups, axis=2)[:, :, -(2 if moe.group_score == "best_two" else 1) :].sum(axis=2)
    kept = np.zeros((len(ranks), moe.num_groups, 1), bool)
    np.put_along_axis(kept, _best(best, moe.top_groups)[:, :, None], values=True, axis=1)
    return np.where(kept, groups, np.float32(-np.inf)).reshape(ranks.shape)


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
