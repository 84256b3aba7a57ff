"""The reference of experts, against sums written out for each token."""

import numpy as np
import pytest

from headrace.inference.models.spec import MoeSpec
from headrace.inference.runner.reference_moe import choose_best, factors_of, mix_experts

SCORES = np.array([[0.5, 2.0, -1.0, 2.0], [3.0, 1.0, 0.0, 2.0]], np.float32)
CHOSEN = np.array([[1, 3], [0, 3]], np.int32)


def softmax(scores):
    exponentials = np.exp(np.subtract(scores, max(scores)))
    return exponentials / exponentials.sum()


def test_the_best_experts_come_first_and_of_equals_the_lower_one():
    chosen = choose_best(MoeSpec(num_experts=4, top_k=3, expert_size=8), SCORES)
    assert chosen.tolist() == [[1, 3, 0], [0, 3, 1]]


def test_factors_are_the_softmax_of_all_scores():
    factors = factors_of(MoeSpec(num_experts=4, top_k=2, expert_size=8), SCORES, CHOSEN)
    np.testing.assert_allclose(factors[1], softmax(SCORES[1])[[0, 3]], rtol=1e-6)


def test_renormalized_factors_are_the_softmax_of_the_chosen_scores():
    factors = factors_of(MoeSpec(num_experts=4, top_k=2, expert_size=8, renormalize=True), SCORES, CHOSEN)
    np.testing.assert_allclose(factors[1], softmax(SCORES[1][[0, 3]]), rtol=1e-6)


def test_with_a_tolerance_each_factor_is_a_softmax_of_the_scores_near_the_chosen_one():
    scores = np.array([[2.0, 1.97, 1.0, 0.99, -3.0], [-1.0, -1.01, -4.0, -1.5, -1.02]], np.float32)
    moe = MoeSpec(num_experts=5, top_k=2, expert_size=8, tolerance=0.02)
    factors = factors_of(moe, scores, choose_best(moe, scores))
    expected = [[softmax([2.0, 1.97])[0], 1.0], [softmax([-1.0, -1.01, -1.02])[0], softmax([-1.01, -1.02])[0]]]
    np.testing.assert_allclose(factors, expected, rtol=1e-5)


@pytest.mark.parametrize("has_shared_router", [False, True])
def test_the_output_is_the_weighted_sum_of_the_chosen_experts_and_the_shared_one(has_shared_router):
    moe = MoeSpec(num_experts=4, top_k=2, expert_size=8, shared_size=8, has_shared_router=has_shared_router)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 6)).astype(np.float32)
    weights = {"router": rng.standard_normal((4, 6)), "shared_router": rng.standard_normal((1, 6))}
    factor_of = {f"experts.{expert}.": expert + 2.0 for expert in range(4)} | {"shared_": 7.0}
    mixed = mix_experts(moe, weights, x, lambda rows, prefix: rows * factor_of[prefix], lambda scores: scores)
    for token, row in enumerate(x):
        shares = softmax(weights["router"] @ row)
        best = np.argsort(-shares)[:2]
        gate = 1 / (1 + np.exp(-weights["shared_router"][0] @ row)) if has_shared_router else 1.0
        expected = row * (sum(shares[expert] * (expert + 2.0) for expert in best) + 7.0 * gate)
        np.testing.assert_allclose(mixed[token], expected, rtol=1e-5)
