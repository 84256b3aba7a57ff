"""The reference of experts, against sums written out for each token."""

import numpy as np
import pytest

from headrace.inference.models.experts import MoeSpec
from headrace.inference.runner.reference_moe import choose_experts, mix_experts

LOGITS = np.array([[0.5, 2.0, -1.0, 2.0], [3.0, 1.0, 0.0, 2.0]], np.float32)


def softmax(scores):
    exponentials = np.exp(np.subtract(scores, max(scores)))
    return exponentials / exponentials.sum()


def moe_of(**values):
    return MoeSpec(**({"num_experts": 4, "top_k": 2, "expert_size": 8} | values))


def test_the_best_experts_come_first_and_of_equals_the_lower_one():
    chosen, _ = choose_experts(moe_of(top_k=3), LOGITS)
    assert chosen.tolist() == [[1, 3, 0], [0, 3, 1]]


def test_factors_are_the_softmax_of_all_logits():
    _, factors = choose_experts(moe_of(factor_scale=2.5), LOGITS)
    np.testing.assert_allclose(factors[1], 2.5 * softmax(LOGITS[1])[[0, 3]], rtol=1e-6)


def test_renormalized_factors_are_the_softmax_of_the_chosen_logits():
    _, factors = choose_experts(moe_of(renormalize=True), LOGITS)
    np.testing.assert_allclose(factors[1], softmax(LOGITS[1][[0, 3]]), rtol=1e-6)


def test_with_a_tolerance_each_factor_is_a_softmax_of_the_scores_near_the_chosen_one():
    logits = np.array([[2.0, 1.97, 1.0, 0.99, -3.0], [-1.0, -1.01, -4.0, -1.5, -1.02]], np.float32)
    _, factors = choose_experts(moe_of(num_experts=5, tolerance=0.02), logits)
    expected = [[softmax([2.0, 1.97])[0], 1.0], [softmax([-1.0, -1.01, -1.02])[0], softmax([-1.01, -1.02])[0]]]
    np.testing.assert_allclose(factors, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("scoring", "score"),
    [
        ("softmax", softmax),
        ("sigmoid", lambda logits: 1 / (1 + np.exp(-logits.astype(float)))),
        ("sqrt_softplus", lambda logits: np.log1p(np.exp(logits.astype(float))) ** 0.5),
    ],
)
@pytest.mark.parametrize("renormalize", [False, True])
def test_a_bias_counts_for_the_choice_and_not_for_the_factor(scoring, score, renormalize):
    logits = np.array([[-20.0, 2.0, 1.0, -1.0], [0.5, 0.4, 0.3, -0.5]], np.float32)
    bias = np.array([5.0, 0.0, 0.0, 4.0], np.float32)
    moe = moe_of(scoring=scoring, choice_bias=True, renormalize=renormalize, sum_floor=1e-6, factor_scale=1.5)
    chosen, factors = choose_experts(moe, logits, bias)
    assert chosen.tolist() == [[0, 3], [0, 3]]
    for row, actual in zip(logits, factors, strict=True):
        expected = score(row)[[0, 3]]
        expected = expected / (expected.sum() + 1e-6) if renormalize else expected
        np.testing.assert_allclose(actual, 1.5 * expected, rtol=1e-5)


@pytest.mark.parametrize(("group_score", "kept"), [("best_two", [0, 2]), ("best", [1, 2])])
def test_experts_of_other_than_the_best_groups_are_not_chosen(group_score, kept):
    logits = np.array([[1.0, 0.9, 2.0, -3.0, 3.0, 1.0]], np.float32)
    moe = moe_of(num_experts=6, top_k=4, scoring="sigmoid", num_groups=3, top_groups=2, group_score=group_score)
    chosen, _ = choose_experts(moe, logits)
    assert sorted({expert // 2 for expert in chosen[0].tolist()}) == kept


def test_a_softcap_changes_factors_and_keeps_the_order():
    logits = np.array([[5.0, 40.0, -7.0, 30.0]], np.float32)
    chosen, factors = choose_experts(moe_of(logit_softcap=10.0), logits)
    assert chosen.tolist() == [[1, 3]]
    np.testing.assert_allclose(factors[0], softmax(10 * np.tanh(logits[0] / 10))[[1, 3]], rtol=1e-5)


@pytest.mark.parametrize("has_shared_router", [False, True])
def test_the_output_is_the_weighted_sum_of_the_chosen_experts_and_the_shared_one(has_shared_router):
    moe = MoeSpec(num_experts=4, top_k=2, expert_size=8, shared_size=8, has_shared_router=has_shared_router)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 6)).astype(np.float32)
    weights = {"router": rng.standard_normal((4, 6)), "shared_router": rng.standard_normal((1, 6))}
    factor_of = {f"experts.{expert}.": expert + 2.0 for expert in range(4)} | {"shared_": 7.0}
    mixed = mix_experts(
        moe, weights, x, lambda rows, prefix: rows * factor_of[prefix], lambda scores: scores, norm=lambda rows, _: rows
    )
    for token, row in enumerate(x):
        shares = softmax(weights["router"] @ row)
        best = np.argsort(-shares)[:2]
        gate = 1 / (1 + np.exp(-weights["shared_router"][0] @ row)) if has_shared_router else 1.0
        expected = row * (sum(shares[expert] * (expert + 2.0) for expert in best) + 7.0 * gate)
        np.testing.assert_allclose(mixed[token], expected, rtol=1e-5)
