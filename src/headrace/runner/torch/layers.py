"""
The parts of a network: matrices with their biases and adapters, norms, rotary embeddings, MLPs, experts.

Norms, rotary embeddings and routers compute in float32, whatever the format of the weights. Letters in shapes: `T`
tokens of the step, `H` heads, `D` head size, `E` experts, `k` experts of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from headrace.models.rope import inverse_frequencies
from headrace.models.spec import Activation, ModelSpec, MoeSpec, RopeSpec
from headrace.runner.torch.fused import add_rms_norm, rms_norm, silu_mul
from headrace.runner.torch.matmul import Weight, linear

INVARIANT_ROWS: Final = 64
"""
Rows of each matrix product of a batch-invariant runner.

Libraries choose a kernel by the number of rows, and so the order of the sums. Products of one shape have one order.
A GPU multiplies 64 rows in the time in which it reads the weights, so decoding hardly slows down; prompts do.
"""

LowRankTensors = tuple[Tensor, Tensor]
"""LoRA's A (rank, inputs) and B (outputs, rank)."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Tokens of a step that have the same adapter."""

    tokens: Tensor
    """(t,) int64."""
    matrices: Mapping[str, LowRankTensors]
    """By canonical name of the matrix."""


class Linear:
    """A matrix, or several with the same input on top of each other, with biases and adapters."""

    def __init__(
        self, weight: Weight, bias: Tensor | None, parts: Mapping[str, slice], *, is_invariant: bool = False
    ) -> None:
        self.weight = weight
        self.bias = bias
        self._parts = parts
        self._is_invariant = is_invariant

    def __call__(self, x: Tensor, adapted: Sequence[Adapted] = ()) -> Tensor:
        """Return (T, outputs) of (T, inputs)."""
        out = self._product(x, self.weight, self.bias)
        for item in adapted:
            for name, rows in self._parts.items():
                if (matrix := item.matrices.get(name)) is not None:
                    shrink, expand = matrix
                    out[item.tokens, rows] += self._product(self._product(x[item.tokens], shrink), expand)
        return out

    def _product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        product = partial(linear, weight=weight, bias=bias)
        return in_turns(product, x) if self._is_invariant else product(x)


class Head:
    """The LM head. Its logits are float32: rounded to 16 bits the best ones often tie, and the wrong one wins."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, is_invariant: bool = False) -> None:
        self._weight = weight if weight.is_cuda else weight.float()  # a CPU adds up in the type of its inputs
        self._bias = bias
        self._is_invariant = is_invariant

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits (R, V) of hidden states (R, hidden)."""
        logits = in_turns(self._product, hidden) if self._is_invariant else self._product(hidden)
        return logits if self._bias is None else logits + self._bias

    def _product(self, hidden: Tensor) -> Tensor:
        if self._weight.dtype is torch.float32:
            return F.linear(hidden.float(), self._weight)
        return torch.mm(hidden, self._weight.T, out_dtype=torch.float32)


def in_turns(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the product of all rows (T, inputs), always computed for the same number of rows at a time."""
    padded = F.pad(x, (0, 0, 0, -len(x) % INVARIANT_ROWS))
    return torch.cat([product(rows) for rows in padded.split(INVARIANT_ROWS)])[: len(x)]


class Norm:
    """An RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, kind: str, eps: float) -> None:
        self._weight = weight
        self._bias = bias
        self._is_rms = kind == "rms"
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of (..., size)."""
        if self._is_rms:
            return rms_norm(x, self._weight, self._eps)
        return F.layer_norm(x.float(), self._weight.shape, self._weight, self._bias, self._eps).to(x.dtype)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return `x + residual`, and the norm of it."""
        if self._is_rms:
            return add_rms_norm(x, residual, self._weight, self._eps)
        total = x + residual
        return total, self(total)


class LayerNormOfHeads:
    """A LayerNorm over each head, with weights of its own (Command R+)."""

    def __init__(self, weight: Tensor, head_dim: int, eps: float) -> None:
        self._weight = weight.view(-1, head_dim)
        self._eps = eps

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the norm of (T, H, D)."""
        normed = F.layer_norm(heads.float(), heads.shape[-1:], None, None, self._eps) * self._weight
        return normed.to(heads.dtype)


class RmsNormOfAllHeads:
    """An RMSNorm over all heads at once, also over those of other ranks (OLMo 2)."""

    def __init__(self, weight: Tensor, eps: float, mean_over_ranks: Callable[[Tensor], Tensor]) -> None:
        self._weight = weight
        self._eps = eps
        self._mean_over_ranks = mean_over_ranks

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the norm of (T, H, D)."""
        flat = heads.flatten(1).float()
        mean = self._mean_over_ranks(flat.square().mean(dim=-1, keepdim=True))
        return (flat * torch.rsqrt(mean + self._eps) * self._weight).to(heads.dtype).view(heads.shape)


def rotation(rope: RopeSpec, head_dim: int, context_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (positions, D / 2) of a rotary embedding in a context."""
    frequencies = torch.from_numpy(inverse_frequencies(rope, head_dim, context_tokens))
    scales = torch.where(frequencies == 0, 1.0, rope.attention_factor)
    angles = torch.arange(context_tokens, dtype=torch.float64)[:, None] * frequencies
    return (scales * angles.cos()).float().to(device), (scales * angles.sin()).float().to(device)


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return `cap * tanh(x / cap)`, or `x` if the cap is 0."""
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


class Mlp:
    """A gated or plain MLP that every token passes through."""

    def __init__(self, spec: ModelSpec, gate_up: Linear, down: Linear) -> None:
        self._spec = spec
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: Tensor, adapted: Sequence[Adapted] = ()) -> Tensor:
        """Return (T, hidden); with several ranks a part of the sum."""
        return self._down(gated(self._spec, self._gate_up(x, adapted)), adapted)


class Experts:
    """
    A mixture of experts.

    The tokens of each expert are computed together, so the host must read how many there are.
    """

    def __init__(
        self, moe: MoeSpec, router: Linear, experts: Sequence[Mlp], shared: Mlp | None, shared_router: Linear | None
    ) -> None:
        self._moe = moe
        self._router = router
        self._experts = experts
        self._shared = shared
        self._shared_router = shared_router

    def __call__(self, x: Tensor, _adapted: Sequence[Adapted] = ()) -> Tensor:
        """Return (T, hidden); with several ranks a part of the sum."""
        scores = self._router(x.float())
        chosen = choose_best(self._moe, scores)
        factors = factors_of(self._moe, scores, chosen)
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        by_expert = torch.argsort(chosen.flatten(), stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._moe.num_experts).tolist()
        for expert, places in zip(self._experts, by_expert.split(counts), strict=True):
            if len(places):
                tokens = places // self._moe.top_k
                mixed[tokens] += factors.flatten()[places, None] * expert(x[tokens]).float()
        if self._shared is not None:
            shared = self._shared(x).float()
            mixed += shared if self._shared_router is None else torch.sigmoid(self._shared_router(x.float())) * shared
        return mixed.to(x.dtype)


def choose_best(moe: MoeSpec, scores: Tensor) -> Tensor:
    """Return the experts (T, k) with the best scores (T, E); of equal scores the lower index wins."""
    return torch.argsort(scores, dim=1, descending=True, stable=True)[:, : moe.top_k]


def factors_of(moe: MoeSpec, scores: Tensor, chosen: Tensor) -> Tensor:
    """Return the factors (T, k) of the chosen experts."""
    if moe.tolerance:
        return _sparsemixer(moe.tolerance, scores, chosen)
    if moe.renormalize:
        return torch.softmax(scores.gather(1, chosen), dim=1)
    return torch.softmax(scores, dim=1).gather(1, chosen)


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
