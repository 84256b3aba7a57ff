"""
The parts of a network: matrices with their biases and adapters, norms, rotary embeddings, MLPs, experts.

Norms, rotary embeddings and routers compute in float32, whatever the format of the weights. Letters in shapes: `T`
tokens of the step, `H` heads, `D` head size, `E` experts, `k` experts of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.rope import inverse_frequencies
from headrace.inference.models.spec import Activation, ModelSpec, RopeSpec
from headrace.inference.runner.torch.fused import add_rms_norm, rms_norm, silu_mul
from headrace.inference.runner.torch.matmul import Weight, grouped_linear, linear

LowRankTensors = tuple[Tensor, Tensor]
"""LoRA's A (rank, inputs) and B (outputs, rank)."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Tokens of a step that have the same adapter."""

    tokens: Tensor
    """(t,) int64."""
    matrices: Mapping[str, LowRankTensors]
    """By canonical name of the matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A matrix, or several with the same input on top of each other, with biases and adapters."""

    weight: Weight
    bias: Tensor | None
    parts: Mapping[str, slice]
    """The outputs of each matrix, by its canonical name."""
    is_invariant: bool = False

    def __call__(self, x: Tensor, adapted: Sequence[Adapted] = ()) -> Tensor:
        out = self._product(x, self.weight, self.bias)
        for item in adapted:
            for name, rows in self.parts.items():
                if (matrix := item.matrices.get(name)) is not None:
                    shrink, expand = matrix
                    out[item.tokens, rows] += self._product(self._product(x[item.tokens], shrink), expand)
        return out

    def _product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias, is_invariant=self.is_invariant)


class Head:
    """The LM head. Its logits are float32: rounded to 16 bits the best ones often tie, and the wrong one wins."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_invariant: bool = False) -> None:
        self._weight = weight if weight.is_cuda else weight.float()  # converted once, not in each step
        self._bias = bias
        self._is_invariant = is_invariant

    def __call__(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self._weight, self._bias, dtype=torch.float32, is_invariant=self._is_invariant)


@dataclass(frozen=True, slots=True)
class Routing:
    """The rows of a step's tokens by expert: a row for each token and each expert that it chose."""

    experts: Tensor
    """(T * k,) the expert of each row, in ascending order."""
    starts: Tensor
    """(E + 1,) int32, the first row of each expert, and T * k."""
    places: Tensor
    """(T * k,) the place of each row among all tokens' choices (T, k)."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLinear:
    """A matrix for each expert, with biases."""

    weight: Weight
    """(E * outputs, inputs), the matrices on top of each other."""
    bias: Tensor | None
    """(E, outputs)"""
    is_invariant: bool = False

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        product = grouped_linear(x, self.weight, routing.starts, is_invariant=self.is_invariant)
        return product if self.bias is None else product + self.bias[routing.experts]


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """An RMSNorm or LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    is_rms: bool
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_rms:
            return rms_norm(x, self.weight, self.eps)
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_rms:
            return add_rms_norm(x, residual, self.weight, self.eps)
        total = x + residual
        return total, self(total)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNormOfHeads:
    """A LayerNorm over each head, with weights of its own (Command R+)."""

    weight: Tensor
    """(H, D)"""
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        return (F.layer_norm(heads.float(), heads.shape[-1:], None, None, self.eps) * self.weight).to(heads.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class RmsNormOfAllHeads:
    """An RMSNorm over all heads at once, also over those of other ranks if there are any (OLMo 2)."""

    weight: Tensor
    eps: float
    mean_over_ranks: Callable[[Tensor], Tensor] | None

    def __call__(self, heads: Tensor) -> Tensor:
        if self.mean_over_ranks is None:
            return rms_norm(heads.flatten(1), self.weight, self.eps).view(heads.shape)
        flat = heads.flatten(1).float()
        mean = self.mean_over_ranks(flat.square().mean(dim=-1, keepdim=True))
        return (flat * torch.rsqrt(mean + self.eps) * self.weight).to(heads.dtype).view(heads.shape)


def rotation(rope: RopeSpec, head_dim: int, context_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (positions, D / 2) of a rotary embedding in a context."""
    frequencies = torch.from_numpy(inverse_frequencies(rope, head_dim, context_tokens))
    scales = torch.where(frequencies == 0, 1.0, rope.attention_factor)
    angles = torch.arange(context_tokens, dtype=torch.float64)[:, None] * frequencies
    return (scales * angles.cos()).float().to(device), (scales * angles.sin()).float().to(device)


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap) if cap else x


def gated(spec: ModelSpec, gate_up: Tensor) -> Tensor:
    """Return the input of `down` (T, inner): gates and ups are side by side, or ups alone if the MLP has no gates."""
    if spec.mlp == "plain":
        return ACTIVATIONS[spec.activation](gate_up)
    if spec.activation == "silu":
        return silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    if spec.activation == "clamped_swiglu":
        gate, up = gate.clamp(max=spec.swiglu_limit), up.clamp(-spec.swiglu_limit, spec.swiglu_limit)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)
    return ACTIVATIONS[spec.activation](gate) * up


ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "silu": F.silu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu,
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square(),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """A gated or plain MLP that every token passes through."""

    spec: ModelSpec
    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, adapted: Sequence[Adapted] = ()) -> Tensor:
        """Return (T, hidden); with several ranks a part of the sum."""
        return self.down(gated(self.spec, self.gate_up(x, adapted)), adapted)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """
    A mixture of experts whose choice stays on the device.

    The host does not wait for the choice of the experts, and all shapes follow from the number of tokens: a CUDA graph
    can replay it.
    """

    spec: ModelSpec
    moe: MoeSpec
    router: Linear
    gate_up: ExpertLinear
    down: ExpertLinear
    shared: Mlp | None
    shared_router: Linear | None
    choice_bias: Tensor | None = None
    latent: tuple[Linear, Linear] | None = None
    """The matrices before and after the routed experts."""

    def __call__(self, x: Tensor, _adapted: Sequence[Adapted] = ()) -> Tensor:
        """Return (T, hidden); with several ranks a part of the sum."""
        chosen, factors = choose_experts(self.moe, self.router(x.float()), self.choice_bias)
        routing = route(chosen, self.moe.num_experts)
        inputs = x if self.latent is None else self.latent[0](x)
        inner = gated(self.spec, self.gate_up(inputs[routing.places // self.moe.top_k], routing))
        rows = self.down(inner, routing)
        outputs = torch.empty_like(rows).index_copy_(0, routing.places, rows).view(len(x), self.moe.top_k, -1)
        mixed = torch.zeros(inputs.shape, dtype=torch.float32, device=x.device)
        for index in range(self.moe.top_k):  # in order: a sum over an axis has the order that its size suggests
            mixed = torch.addcmul(mixed, outputs[:, index].float(), factors[:, index, None])
        if self.latent is not None:
            mixed = self.latent[1](mixed.to(x.dtype)).float()
        if self.shared is not None:
            shared = self.shared(x).float()
            mixed += shared if self.shared_router is None else torch.sigmoid(self.shared_router(x.float())) * shared
        return mixed.to(x.dtype)


def route(chosen: Tensor, num_experts: int) -> Routing:
    """Sort the choices (T, k) of all tokens by expert."""
    experts, places = chosen.flatten().sort(stable=True)
    bounds = torch.arange(num_experts + 1, device=chosen.device)
    return Routing(experts, torch.searchsorted(experts, bounds, out_int32=True), places)


def choose_experts(moe: MoeSpec, logits: Tensor, choice_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the experts (T, k) of each token, the best first, and their factors (T, k); see `MoeSpec`."""
    if moe.logit_softcap:
        logits = moe.logit_softcap * torch.tanh(logits / moe.logit_softcap)
    if moe.tolerance:
        chosen = _best(logits, moe.top_k)
        return chosen, _sparsemixer(moe.tolerance, logits, chosen)
    scores = _scores(moe, logits)
    ranks = scores if choice_bias is None else scores + choice_bias
    chosen = _best(logits if moe.chooses_by_logits else _in_best_groups(moe, ranks), moe.top_k)
    factors = scores.gather(1, chosen)
    if moe.renormalize and moe.chooses_by_logits:
        factors = torch.softmax(logits.gather(1, chosen), dim=1)
    elif moe.renormalize:
        factors = factors / (factors.sum(dim=1, keepdim=True) + moe.sum_floor)
    return chosen, factors * moe.factor_scale


def _best(ranks: Tensor, count: int) -> Tensor:
    """Return the indices (T, count) of the largest values, the largest first; of equal ones the lower index wins."""
    return torch.argsort(ranks, dim=1, descending=True, stable=True)[:, :count]


def _scores(moe: MoeSpec, logits: Tensor) -> Tensor:
    if moe.scoring == "softmax":
        return torch.softmax(logits, dim=1)
    return torch.sigmoid(logits) if moe.scoring == "sigmoid" else F.softplus(logits).sqrt()


def _in_best_groups(moe: MoeSpec, ranks: Tensor) -> Tensor:
    """Return the ranks (T, E) with those outside of the best groups of a token at -inf."""
    if moe.num_groups == 1:
        return ranks
    groups = ranks.unflatten(1, (moe.num_groups, -1))
    best = groups.sort(dim=2).values[:, :, -(2 if moe.group_score == "best_two" else 1) :].sum(dim=2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _best(best, moe.top_groups), value=True)
    ranks = groups.masked_fill(~kept[:, :, None], -torch.inf)
    return ranks.flatten(1)


def _sparsemixer(tolerance: float, scores: Tensor, chosen: Tensor) -> Tensor:
    """Return factors that are each the softmax of the scores near the chosen one, without those chosen before."""
    left = scores.clone()
    factors = []
    for experts in chosen.unbind(1):
        top = left.gather(1, experts[:, None])
        near = left.isfinite() & ~((top - scores) / torch.maximum(scores.abs(), top) > tolerance)
        factors.append(1 / torch.where(near, (left - top).exp(), 0).sum(dim=1))
        left.scatter_(1, experts[:, None], -torch.inf)
    return torch.stack(factors, dim=1)
