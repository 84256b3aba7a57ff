"""
Experts: the MLPs of a layer of which a router chooses some for each token.

Canonical weights of a layer with experts, in place of gate, up and down (`spec.py`):

    layers.{i}.router                           (experts, hidden)
    layers.{i}.router_bias                      (experts,)              when `router_bias`
    layers.{i}.choice_bias                      (experts,)              when `choice_bias`
    layers.{i}.latent_down                      (latent_size, hidden)   when `latent_size`
    layers.{i}.latent_up                        (hidden, latent_size)   when `latent_size`
    layers.{i}.experts.{e}.gate | up            (expert_size, hidden or latent_size)
    layers.{i}.experts.{e}.down                 (hidden or latent_size, expert_size)
    layers.{i}.experts.{e}.gate_bias | up_bias | down_bias              when `expert_bias`
    layers.{i}.shared_gate | shared_up          (shared_size, hidden)   when `shared_size`
    layers.{i}.shared_down                      (hidden, shared_size)   when `shared_size`
    layers.{i}.shared_router                    (1, hidden)             when `has_shared_router`
    layers.{i}.shared_post_norm | expert_norm | expert_post_norm | router_norm      (hidden,)   when `own_norms`
    layers.{i}.expert_scales                    (experts,)              when `own_norms`

Experts and the shared MLP are of the kind that `ModelSpec.mlp` names: without gates they have no `gate` and
`shared_gate`.
"""

from dataclasses import dataclass
from typing import Literal

Scoring = Literal["softmax", "sigmoid", "sqrt_softplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """
    A mixture of experts: MLPs of which a router chooses `top_k` for each token.

    The router's logits become scores (`scoring`); the experts with the best scores are chosen, of equal ones the lower
    index. The output is the sum of the chosen experts, each multiplied by its factor: its score, or its share of the
    scores of those chosen (`renormalize`), times `factor_scale`.
    """

    num_experts: int
    top_k: int
    expert_size: int
    """Width of an expert."""
    layers: tuple[bool, ...] = ()
    """True for layers with experts; the others have a dense MLP. Empty: all layers have experts."""
    scoring: Scoring = "softmax"
    """The score of a logit s: its share of the softmax over all experts, `sigmoid(s)` or `sqrt(log(1 + exp(s)))`."""
    logit_softcap: float = 0.0
    """Logits s become `cap * tanh(s / cap)`; 0: they stay as they are."""
    choice_bias: bool = False
    """Experts are chosen by score plus a bias, which does not count for the factor (DeepSeek-V3)."""
    num_groups: int = 1
    """Experts form so many groups of equal size, of which a token takes the best `top_groups`."""
    top_groups: int = 1
    group_score: Literal["best", "best_two"] = "best_two"
    """A group counts with its best score for the choice, or with the sum of its best two."""
    renormalize: bool = False
    """Factors are divided by their sum (with a softmax: it is over the chosen experts instead of all)."""
    sum_floor: float = 0.0
    """Added to the sum by which factors are divided, where scores are chosen with a bias or are no softmax."""
    factor_scale: float = 1.0
    """Multiplies the factors of the chosen experts, not that of the shared MLP."""
    tolerance: float = 0.0
    """
    Each factor is a softmax of its own over the scores s that are left and near the chosen one, t: those with
    `(t - s) / max(|s|, t)` of at most this (the sparsemixer of Phi-3.5-MoE). 0: all factors are of one softmax.
    """
    router_bias: bool = False
    """The logits have biases."""
    expert_bias: bool = False
    """Gate, up and down have biases."""
    latent_size: int = 0
    """
    Size of the vectors that routed experts read and write, between a matrix before all of them and one after their sum.
    The router and the shared MLP read the hidden state. 0: so do the experts.
    """
    shared_size: int = 0
    """Width of the MLP that every token passes through in addition; 0 for none."""
    own_norms: bool = False
    """
    Experts and the shared MLP both read the residual stream, each after a norm of its own, and each output has a norm
    before they are added. The router has a norm too, and each expert a scale (Gemma 4).
    """
    has_shared_router: bool = False
    """The output of the shared MLP is multiplied by the sigmoid of a score of its own."""

    @property
    def chooses_by_logits(self) -> bool:
        """True if the best logits are the best scores: a softmax without biases or groups."""
        return self.scoring == "softmax" and not self.choice_bias and self.num_groups == 1

    @property
    def has_shared_mlp(self) -> bool:
        """True if the shared MLP has matrices of its own: its input is not that of the experts."""
        return self.shared_size > 0 and (self.latent_size > 0 or self.own_norms)

    @property
    def num_shared_experts(self) -> int:
        """
        Number of experts of `expert_size` that together are the shared MLP, the last one padded with zeros.

        Beside experts of another input (`latent_size`) the shared MLP stays one of its own.
        """
        return 0 if self.has_shared_mlp else -(-self.shared_size // self.expert_size)
