"""
A network in torch: what a `ModelSpec` describes, for the tokens of a step.

With several ranks each holds a network of its own shape (`parallel.local_spec`), and sums what they add to the
residual stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from headrace.inference.models.spec import ModelSpec
from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import StepTensors
from headrace.inference.runner.torch.fused import rotate, rotate_and_store
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape
from headrace.inference.runner.torch.layers import (
    Adapted,
    Experts,
    LayerNormOfHeads,
    Mlp,
    Norm,
    RmsNormOfAllHeads,
    rotation,
    softcap,
)
from headrace.inference.runner.torch.parallel import Collectives
from headrace.inference.runner.torch.weights import RankWeights

_OUTSIDE: Final = -torch.inf
"""The logit of a token that pads the vocabulary to a multiple of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of a forward pass."""

    step: StepTensors
    token_types: Tensor | None = None
    adapted: Sequence[Adapted] = ()


class Network:
    """The weights of a network, or of a rank's part, and its forward pass."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: RankWeights,
        collectives: Collectives,
        *,
        device: torch.device,
        context_tokens: int,
    ) -> None:
        """Build this rank's network; some rotary embeddings depend on the longest context."""
        self.spec = spec
        self._collectives = collectives
        self._vocabulary = collectives.shard.vocabulary(spec.vocab_size)
        self._embed = weights.table("embed")
        self._positions = weights.table("positions") if spec.learned_positions else None
        self._token_types = weights.table("token_types") if spec.token_types else None
        self._embed_norm = _norm(spec, weights, "embed_norm")
        rotations = [rotation(rope, spec.head_dim, context_tokens, device) for rope in spec.ropes]
        self._layers = [Layer(spec, index, weights, collectives, rotations) for index in range(spec.num_layers)]
        self._final_norm = _norm(spec, weights, "final_norm")
        self._lm_head = weights.head("embed" if spec.tie_embeddings else "lm_head")

    @property
    def kv_shapes(self) -> list[KvShape]:
        shape = KvShape(self.spec.num_kv_heads, self.spec.head_dim, self.spec.head_dim)
        return [shape] * self.spec.num_layers

    def hidden(self, batch: Batch, cache: KvCache) -> Tensor:
        """Return the hidden states after the final norm (T, hidden)."""
        x, added = self._embedded(batch), None
        for layer in self._layers:
            x, added = layer.forward(x, added, batch, cache)
        return _normed_sum(self._final_norm, x, added)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states (R, hidden) in float32."""
        logits = self._lm_head(hidden)
        if self._collectives.shard.size > 1:
            share = -(-self.spec.vocab_size // self._collectives.shard.size)
            logits = F.pad(logits, (0, share - logits.shape[1]), value=_OUTSIDE)
            logits = self._collectives.gather(logits)[:, : self.spec.vocab_size]
        return softcap(logits, self.spec.logit_softcap)

    def _embedded(self, batch: Batch) -> Tensor:
        x = self._looked_up(batch.step.token_ids)
        if self.spec.embedding_scale != 1:
            x = (x.float() * self.spec.embedding_scale).to(x.dtype)
        if self._positions is not None:
            x = x + F.embedding(batch.step.positions, self._positions)
        if self._token_types is not None:
            x = x + (self._token_types[0] if batch.token_types is None else self._token_types[batch.token_types])
        return x if self._embed_norm is None else self._embed_norm(x)

    def _looked_up(self, token_ids: Tensor) -> Tensor:
        if self._collectives.shard.size == 1:
            return F.embedding(token_ids, self._embed)
        first, last = self._vocabulary.start, self._vocabulary.stop - 1
        is_here = (token_ids >= first) & (token_ids <= last)
        rows = F.embedding((token_ids.clamp(first, max(first, last)) - first), self._embed)
        return self._collectives.sum(rows * is_here[:, None])


class Layer:
    """A transformer layer: attention and an MLP, each with its norms."""

    def __init__(
        self,
        spec: ModelSpec,
        index: int,
        weights: RankWeights,
        collectives: Collectives,
        rotations: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        prefix = f"layers.{index}."
        self._spec = spec
        self._index = index
        self._sum = collectives.sum
        self._window = spec.window(index)
        rope = spec.rope_of_layer[index] if spec.rope_of_layer else 0
        self._rotation = None if rope < 0 else rotations[rope]
        self._qkv = weights.linear(*(f"{prefix}{part}" for part in "qkv"))
        self._o = weights.linear(f"{prefix}o")
        self._sinks = weights.vector(f"{prefix}sinks")
        self._q_norm = _norm_of_heads(spec, weights, f"{prefix}q_norm", collectives)
        self._k_norm = _norm_of_heads(spec, weights, f"{prefix}k_norm", collectives)
        self._attn_norm = _norm(spec, weights, f"{prefix}attn_norm")
        self._post_attn_norm = _norm(spec, weights, f"{prefix}post_attn_norm")
        self._mlp_norm = _norm(spec, weights, f"{prefix}mlp_norm")
        self._post_mlp_norm = _norm(spec, weights, f"{prefix}post_mlp_norm")
        self._mlp = _mlp(spec, index, weights)

    def forward(self, x: Tensor, added: Tensor | None, batch: Batch, cache: KvCache) -> tuple[Tensor, Tensor | None]:
        """
        Return the residual stream (T, hidden) and the tensor still to be added to it, after attention and MLP.

        `added` is that tensor of the previous layer: the next norm adds it in the same pass over memory.
        """
        x, inputs = _normed_sum(self._attn_norm, x, added)
        attended = self._attention(inputs, batch, cache)
        if self._spec.parallel:
            inputs = inputs if self._spec.parallel == "one" else _apply(self._mlp_norm, x)
            return x, self._sum(attended + self._mlp(inputs, batch.adapted))
        attended = self._sum(attended)
        if self._spec.norms == "stream":
            x = _apply(self._post_attn_norm, x + attended)
            return _apply(self._post_mlp_norm, x + self._sum(self._mlp(x, batch.adapted))), None
        x, inputs = _normed_sum(self._mlp_norm, x, _apply(self._post_attn_norm, attended))
        return x, _apply(self._post_mlp_norm, self._sum(self._mlp(inputs, batch.adapted)))

    def _attention(self, x: Tensor, batch: Batch, cache: KvCache) -> Tensor:
        """Return the attention's output; with several ranks a part of the sum."""
        spec = self._spec
        heads = self._qkv(x, batch.adapted).view(len(x), -1, spec.head_dim)
        query, key, value = heads.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        is_normed_last = spec.qk_norm == "rotated"
        if not is_normed_last:
            query, key = _apply(self._q_norm, query), _apply(self._k_norm, key)
        if spec.qkv_clip:
            query, key, value = (part.clamp(-spec.qkv_clip, spec.qkv_clip) for part in (query, key, value))
        key_cache, value_cache = cache.layer(self._index)
        if self._rotation is None or is_normed_last:
            if self._rotation is not None:
                query, key = (rotate(heads, *self._rotation, batch.step) for heads in (query, key))
            if is_normed_last:
                query, key = _apply(self._q_norm, query), _apply(self._k_norm, key)
            cache.store(key, value, self._index, batch.step.slots)
        else:
            query = rotate_and_store(query, key, value, *self._rotation, batch.step, key_cache, value_cache)
        attended = attend(
            query,
            key_cache,
            value_cache,
            batch.step,
            scale=spec.scale(self._index),
            window=self._window or None,
            softcap=spec.attention_softcap or None,
            sinks=self._sinks,
            is_causal=spec.is_causal,
        )
        return self._o(attended.reshape(len(x), -1), batch.adapted)


def _apply(norm: Callable[[Tensor], Tensor] | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


def _normed_sum(norm: Norm | None, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    if added is None:
        return x, _apply(norm, x)
    if norm is None:
        total = x + added
        return total, total
    return norm.of_sum(added, x)


def _norm(spec: ModelSpec, weights: RankWeights, name: str) -> Norm | None:
    weight = weights.vector(name)
    if weight is None:
        return None
    return Norm(
        weight, weights.vector(f"{name}_bias"), is_rms=spec.norm == "rms", eps=spec.eps_of(name.rpartition(".")[2])
    )


def _norm_of_heads(
    spec: ModelSpec, weights: RankWeights, name: str, collectives: Collectives
) -> Callable[[Tensor], Tensor] | None:
    weight = weights.vector(name)
    if weight is None:
        return None
    if spec.qk_norm in {"head", "rotated"}:
        return Norm(weight, None, is_rms=True, eps=spec.norm_eps)
    if spec.qk_norm == "layer":
        return LayerNormOfHeads(weight.view(-1, spec.head_dim), spec.norm_eps)
    size = collectives.shard.size
    mean_over_ranks = None if size == 1 else lambda mean: collectives.sum(mean) / size
    return RmsNormOfAllHeads(weight, spec.norm_eps, mean_over_ranks)


def _mlp(spec: ModelSpec, index: int, weights: RankWeights) -> Mlp | Experts:
    prefix = f"layers.{index}."
    moe = spec.experts(index)
    if moe is None:
        return _dense(spec, weights, prefix)
    latent = (weights.linear(f"{prefix}latent_down"), weights.linear(f"{prefix}latent_up")) if moe.latent_size else None
    return Experts(
        spec,
        moe,
        weights.router(f"{prefix}router"),
        weights.experts(f"{prefix}experts.", moe.num_experts, *_inner_parts(spec)),
        weights.experts(f"{prefix}experts.", moe.num_experts, "down"),
        _dense(spec, weights, f"{prefix}shared_") if moe.shared_size else None,
        weights.router(f"{prefix}shared_router") if moe.has_shared_router else None,
        weights.vector(f"{prefix}choice_bias") if moe.choice_bias else None,
        latent,
    )


def _dense(spec: ModelSpec, weights: RankWeights, prefix: str) -> Mlp:
    gate_up = weights.linear(*(f"{prefix}{part}" for part in _inner_parts(spec)))
    return Mlp(spec, gate_up, weights.linear(f"{prefix}down"))


def _inner_parts(spec: ModelSpec) -> tuple[str, ...]:
    return ("gate", "up") if spec.mlp == "gated" else ("up",)
