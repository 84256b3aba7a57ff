"""
The network in plain numpy and float32: the reference for every other runner, and far too slow to serve.

Letters in shapes: `T` tokens of the step, `C` tokens of one sequence in the step, `P` positions that it can see,
`H` query heads, `K` KV heads, `G` query heads for each KV head, `D` head size, `V` vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from headrace.inference.models.adapter import Adapter, LowRank
from headrace.inference.models.decoding import decode
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.rope import Float64, inverse_frequencies
from headrace.inference.models.spec import ModelSpec, RopeSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.checks import check_step, token_slots
from headrace.inference.runner.reference_activations import ACTIVATIONS, GATES, clamped_swiglu, xielu
from headrace.inference.runner.reference_mla import expand_values, latent_heads, query_factors
from headrace.inference.runner.reference_moe import Scoring, as_computed, mix_experts
from headrace.inference.runner.reference_norms import layer_norm, normed, rms_norm
from headrace.inference.runner.reference_state import StateSlots, join_parts
from headrace.inference.runner.sampling import sample_rows
from headrace.inference.runner.step import Float32, Int32, RunnerInfo, RunnerLimits, StateStep, StepInput, StepOutput

Adapted = Sequence[tuple[npt.NDArray[np.intp], Mapping[str, LowRank]]]
"""Tokens of a step, and the additions to the matrices for them."""


class ReferenceRunner:
    """
    The reference `Runner` that tests compare others with.

    NOTE: BLAS may sum in a different order for a different batch, so it is batch-invariant only up to rounding.
    """

    is_healthy = True

    def __init__(
        self, spec: ModelSpec, weights: WeightSource, limits: RunnerLimits, *, rescore: Scoring = as_computed
    ) -> None:
        self.spec = spec
        self.vocab_size, self.is_causal = spec.vocab_size, spec.is_causal
        self.limits = limits
        self._adapters: dict[int, Adapter] = {}
        self._weights = {name: decode(weights.load(name)) for name in weights.names()}
        self._layers: list[Layer] = []
        for index in range(spec.num_layers):
            source = self._layers[spec.kv_source(index)] if 0 <= spec.kv_source(index) < index else None
            self._layers.append(Layer(spec, index, self._weights, limits, rescore, source))
        self._lm_head = self._weights["embed" if spec.tie_embeddings else "lm_head"]
        self.info = RunnerInfo(
            dtype="f32",
            kv_dtype="f32",
            device="cpu (numpy)",
            weights_bytes=sum(weight.nbytes for weight in self._weights.values()),
            kv_cache_bytes=sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers if layer.owns_kv),
            workspace_bytes=0,
            state_bytes=sum(layer.states.nbytes for layer in self._layers if layer.states is not None),
        )

    def execute(self, step: StepInput) -> StepOutput:
        hidden = self._hidden(step)
        return replace(sample_rows(self._logits(hidden, step), step), hidden=hidden[step.hidden_rows])

    def logits(self, step: StepInput) -> Float32:
        """Run one step up to its logits (R, V)."""
        return self._logits(self._hidden(step), step)

    def _hidden(self, step: StepInput) -> Float32:
        """Run one step up to the hidden states after the final norm (T, hidden)."""
        check_step(step, self.limits, vocab_size=self.vocab_size, token_types=self.spec.token_types)
        sequences = _sequences(step, self.limits)
        positions = np.concatenate([np.arange(len(slots) - size, len(slots)) for slots, size in sequences])
        token_types = 0 if step.token_types is None else step.token_types
        x = embedded(self.spec, self._weights, step.token_ids, positions, token_types)
        inputs = layer_inputs(self.spec, self._weights, step.token_ids, x)
        adapted = self._adapted_tokens(step)
        for layer, own in zip(self._layers, inputs, strict=True):
            x = layer.forward(x, positions, sequences, adapted, step.states, own)
        return x if self.spec.norms == "stream" else normed(self.spec, x, self._weights, "final_norm")

    def _logits(self, hidden: Float32, step: StepInput) -> Float32:
        logits = hidden[step.rows] @ self._lm_head.T
        if self.spec.head_bias:
            logits = logits + self._weights["lm_head_bias"]
        return softcap(logits, self.spec.logit_softcap)

    def load_adapter(self, slot: int, adapter: Adapter) -> None:
        self._adapters[slot] = adapter

    def _adapted_tokens(self, step: StepInput) -> Adapted:
        if step.adapters is None:
            return []
        slots = np.repeat(step.adapters, np.diff(step.query_starts))
        return [
            (np.flatnonzero(slots == slot), self._adapters[slot].matrices) for slot in np.unique(slots) if slot >= 0
        ]

    def close(self) -> None:
        """Do nothing: the arrays are freed with the object."""


def embedded(
    spec: ModelSpec, weights: dict[str, Float32], token_ids: Int32, positions: Int32, token_types: Int32 | int = 0
) -> Float32:
    """Return the input of the first layer (T, hidden)."""
    x: Float32 = weights["embed"][token_ids] * np.float32(spec.embedding_scale)
    if spec.learned_positions:
        x = x + weights["positions"][positions]
    if spec.token_types:
        x = x + weights["token_types"][token_types]
    return normed(spec, x, weights, "embed_norm") if spec.embedding_norm else x


def layer_inputs(
    spec: ModelSpec, weights: dict[str, Float32], token_ids: Int32, x: Float32
) -> list[Float32] | list[None]:
    """Return the input (T, size) that each layer has beside the stream, whose first value is `x` (T, hidden)."""
    if not spec.layer_input_size:
        return [None] * spec.num_layers
    rows = weights["layer_embed"][token_ids]
    return [layer_input(spec, weights, rows, x, index) for index in range(spec.num_layers)]


def layer_input(spec: ModelSpec, weights: dict[str, Float32], rows: Float32, x: Float32, index: int) -> Float32:
    """Return the input (T, size) of one layer, given the `rows` of the tokens in the table of all layers' inputs."""
    part = slice(index * spec.layer_input_size, (index + 1) * spec.layer_input_size)
    projected = x @ weights["layer_proj"][part].T * np.float32(spec.hidden_size**-0.5)
    projected = rms_norm(projected, weights["layer_proj_norm"], spec.norm_eps)
    return projected + rows[:, part] * np.float32((spec.layer_input_size / 2) ** 0.5)


class Layer:
    """One layer with its own KV cache, of which `keys` and `values` are (slots, K, D), or its own state slots."""

    def __init__(
        self,
        spec: ModelSpec,
        index: int,
        weights: dict[str, Float32],
        limits: RunnerLimits,
        rescore: Scoring = as_computed,
        source: "Layer | None" = None,
    ) -> None:
        """Build a layer; it attends to the keys and values of `source` if that is given."""
        prefix = f"layers.{index}."
        self._spec = spec
        self._rescore = partial(rescore, index)
        self._weights = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        self._weights = join_parts(spec, index, self._weights)
        self._moe = spec.experts(index)
        self._prefix = prefix
        self._adapted: Adapted = []
        self._window = spec.window(index)
        rope = spec.rope(index)
        self._index, self.owns_kv = index, spec.owns_kv(index)
        self._shape = shape = spec.attention(index)
        self._parts = spec.attention_parts(index)
        turned = spec.rope_head_dim(index)
        self._rotation = None if rope is None else Rotation(rope, turned, limits.max_context_tokens)
        self.states = StateSlots.of_layer(spec, index, self._weights, limits) if spec.state_shape(index) else None
        self._has_mixer, self._has_mlp = spec.mixer(index) != "none", spec.has_mlp(index)
        slots = limits.num_blocks * limits.block_tokens if self.owns_kv else 0
        self.keys = np.zeros((slots, shape.num_kv_heads, shape.head_dim), np.float32)
        self.values = self.keys.copy() if spec.mla is None else np.zeros((slots, 1, spec.mla.kv_rank), np.float32)
        if source is not None:
            self.keys, self.values = source.keys, source.values

    def forward(
        self,
        x: Float32,
        positions: Int32,
        sequences: list[tuple[Int32, int]],
        adapted: Adapted = (),
        states: StateStep | None = None,
        own_input: Float32 | None = None,
    ) -> Float32:
        """
        Return `x` (T, hidden) after attention and MLP; `positions` (T,) are those of the tokens in their sequences.

        `sequences` are the slots of each sequence's tokens up to the end of this step, and the number of new ones.
        """
        self._adapted = adapted
        if not self._has_mixer:
            return self._add_mlp(x)
        attended = self._mixed(self._norm_before(x, "attn_norm"), positions, sequences, states)
        if not self._has_mlp:
            return x + self._norm_after(attended, "post_attn_norm")
        if self._spec.parallel:
            return x + attended + self._mlp(self._norm(x, "attn_norm" if self._spec.parallel == "one" else "mlp_norm"))
        if self._spec.norms == "stream":
            x = self._norm(x + attended, "post_attn_norm")
            return self._norm(x + self._mlp(x), "post_mlp_norm")
        return self._finish(self._add_mlp(x + self._norm_after(attended, "post_attn_norm")), own_input)

    def _mixed(
        self, x: Float32, positions: Int32, sequences: list[tuple[Int32, int]], states: StateStep | None
    ) -> Float32:
        """Return the output of the mixer for `x` after its norm, plus that of attention beside it."""
        if self.states is None:
            return self._attention(x, positions, sequences)
        assert states is not None
        mixed = self._state_mixer(self.states, x, sequences, states)
        return mixed + self._attention(x, positions, sequences) if self._spec.attention_beside else mixed

    def _add_mlp(self, x: Float32) -> Float32:
        is_normed = self._moe is None or not self._moe.own_norms
        return x + self._norm_after(self._mlp(self._norm_before(x, "mlp_norm") if is_normed else x), "post_mlp_norm")

    def _finish(self, x: Float32, own_input: Float32 | None) -> Float32:
        """Add what the layer makes of its own input (T, size), and apply its scale."""
        if own_input is not None:
            gate = ACTIVATIONS[self._spec.activation](self._linear(x, "input_gate"))
            x = x + self._norm(self._linear(gate * own_input, "input_out"), "input_norm")
        return x * self._weights["layer_scale"] if self._spec.layer_scales else x

    def _norm_before(self, x: Float32, name: str) -> Float32:
        return self._norm(x, name) if name in self._weights else x

    def _norm_after(self, x: Float32, name: str) -> Float32:
        return self._norm(x, name) if name in self._weights else x

    def _attention(self, x: Float32, positions: Int32, sequences: list[tuple[Int32, int]]) -> Float32:
        queries, *own = self._latents(x, positions, self._spec.mla) if self._spec.mla else self._heads(x, positions)
        if self._spec.query_growth:
            queries = queries * query_factors(self._spec, positions)[:, None, None]
        if own:
            new_slots = np.concatenate([slots[len(slots) - size :] for slots, size in sequences])
            self.keys[new_slots], self.values[new_slots] = own
        starts = np.cumsum([size for _, size in sequences])[:-1]
        chunks = zip(np.split(queries, starts), sequences, strict=True)
        attended = np.concatenate([self._attend(chunk, slots) for chunk, (slots, _) in chunks])
        if self._spec.mla is not None:
            attended = expand_values(self._spec.mla, attended, self._weights["v_b"])
        return self._linear(self._gate_heads(attended, x), "o")

    def _latents(self, x: Float32, positions: Int32, mla: MlaSpec) -> tuple[Float32, Float32, Float32]:
        """Return absorbed queries (T, H, D), keys (T, 1, D) and values (T, 1, kv_rank) of new tokens."""
        turn = partial(self._rotation.turn, positions=positions) if self._rotation is not None else np.positive

        def norm(latent: Float32, name: str) -> Float32:
            return rms_norm(latent, self._weights[name], mla.norm_eps)

        return latent_heads(mla, x, self._weights["k_b"], linear=self._linear, norm=norm, turn=turn)

    def _gate_heads(self, attended: Float32, x: Float32) -> Float32:
        """Multiply the output of attention (T, H * D) by the gates that the layer computes of its input."""
        if self._spec.attention_gate is None:
            return attended
        gates = GATES[self._spec.gate_activation](self._linear(x, "attn_gate"))
        gated: Float32 = attended.reshape(len(x), gates.shape[1], -1) * gates[:, :, None]
        return gated.reshape(attended.shape)

    def _state_mixer(
        self, slots: StateSlots, x: Float32, sequences: list[tuple[Int32, int]], states: StateStep
    ) -> Float32:
        starts = np.cumsum([0, *(size for _, size in sequences)], dtype=np.int32)
        gates = self._linear(x, "mix_small") if "mix_small" in self._weights else np.zeros((len(x), 0), np.float32)
        output = "mix_out" if self._spec.attention_beside else "o"
        return self._linear(slots.run(self._linear(x, "mix_in"), gates, starts, states), output)

    def _heads(self, x: Float32, positions: Int32) -> Sequence[Float32]:
        """Return the queries (T, H, D), and the keys and values (T, K, D) if the layer computes its own."""
        heads = {name: self._linear(x, name).reshape(len(x), -1, self._shape.head_dim) for name in self._parts}
        if self._shape.keys_as_values and "k" in heads:
            heads["v"] = heads["k"]
        turning = [name for name in heads if name != "v"]
        clip, is_normed_last = self._spec.qkv_clip or np.inf, self._spec.qk_norm == "rotated"
        if self._spec.value_norm and "v" in heads:
            heads["v"] = rms_norm(heads["v"], np.ones(1, np.float32), self._spec.norm_eps)
        if self._spec.qk_norm and not is_normed_last:
            heads |= {name: self._norm_heads(heads[name], f"{name}_norm") for name in turning}
        heads = {name: part.clip(-clip, clip) for name, part in heads.items()}
        if self._rotation is not None:
            heads |= {name: self._rotation.turn(heads[name], positions) for name in turning}
        if is_normed_last:
            heads |= {name: self._norm_heads(heads[name], f"{name}_norm") for name in turning}
        return list(heads.values())

    def _attend(self, queries: Float32, slots: Int32) -> Float32:
        """Attend with the queries (C, H, D) of the last C positions of one sequence; return (C, H * D)."""
        spec, shape = self._spec, self._shape
        num_queries, num_positions = len(queries), len(slots)
        grouped = queries.reshape(num_queries, shape.num_kv_heads, shape.group_size, shape.head_dim)
        scale = np.float32(spec.scale(self._index))
        scores = np.einsum("ckgd,pkd->kgcp", grouped, self.keys[slots], optimize=True) * scale
        scores = softcap(scores, spec.attention_softcap) + _visibility(
            num_queries, num_positions, self._window, is_causal=spec.is_causal
        )
        if spec.distance_slopes:
            slopes = np.array(spec.distance_slopes, np.float32).reshape(shape.num_kv_heads, shape.group_size, 1, 1)
            positions = np.arange(num_positions, dtype=np.float32)
            scores = scores + slopes * (positions - positions[num_positions - num_queries :, None])
        weights = softmax(scores, self._weights.get("sinks"))
        attended = np.einsum("kgcp,pkd->ckgd", weights, self.values[slots], optimize=True)
        joined: Float32 = attended.reshape(num_queries, -1)
        return joined

    def _mlp(self, x: Float32) -> Float32:
        if self._moe is None:
            return self._gated(x, "")
        return mix_experts(self._moe, self._weights, x, self._gated, self._rescore, self._norm)

    def _gated(self, x: Float32, prefix: str) -> Float32:
        spec, up = self._spec, self._linear(x, f"{prefix}up")
        if spec.activation == "clamped_swiglu":
            inner = clamped_swiglu(self._linear(x, f"{prefix}gate"), up, spec.swiglu_limit)
        elif spec.mlp == "gated":
            inner = ACTIVATIONS[spec.activation](self._linear(x, f"{prefix}gate")) * up
        elif spec.activation == "xielu":
            curve = (self._weights[f"xielu_{part}"] for part in ("positive", "negative", "linear"))
            inner = xielu(up, *curve)
        else:
            inner = ACTIVATIONS[spec.activation](up)
        return self._linear(inner, f"{prefix}down")

    def _linear(self, x: Float32, name: str) -> Float32:
        out: Float32 = x @ self._weights[name].T
        for tokens, matrices in self._adapted:
            if (matrix := matrices.get(f"{self._prefix}{name}")) is not None:
                out[tokens] += x[tokens] @ matrix.shrink.T @ matrix.expand.T
        bias = self._weights.get(f"{name}_bias")
        return out if bias is None else out + bias

    def _norm(self, x: Float32, name: str) -> Float32:
        return normed(self._spec, x, self._weights, name)

    def _norm_heads(self, heads: Float32, name: str) -> Float32:
        """Norm (T, heads, D) over each head, or over all heads at once."""
        spec, weight = self._spec, self._weights[name]
        if spec.qk_norm in {"head", "rotated"}:
            return rms_norm(heads, weight, spec.norm_eps)
        if spec.qk_norm == "layer":
            return layer_norm(heads, weight.reshape(heads.shape[1:]), None, spec.norm_eps)
        return rms_norm(heads.reshape(len(heads), -1), weight, spec.norm_eps).reshape(heads.shape)


def softmax(scores: Float32, sinks: Float32 | None) -> Float32:
    """Return the weights of scores (K, G, C, P); the sink of each head takes part and is dropped."""
    by_head = np.float32(-np.inf) if sinks is None else sinks.reshape(*scores.shape[:2], 1, 1)
    largest = np.maximum(scores.max(axis=-1, keepdims=True), by_head)
    weights: Float32 = np.exp(scores - largest)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(by_head - largest)
    return weights


def softcap(x: Float32, cap: float) -> Float32:
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x


class Rotation:
    """A rotary position embedding, resolved for a context length."""

    def __init__(self, rope: RopeSpec, head_dim: int, context_tokens: int) -> None:
        self._frequencies: Float64 = inverse_frequencies(rope, head_dim, context_tokens)
        self._scales = np.where(self._frequencies == 0, 1.0, rope.attention_factor)

    def turn(self, heads: Float32, positions: Int32) -> Float32:
        """Rotate (T, heads, D) by positions (T,); pairs are `i` and `i + D / 2`."""
        angles = positions[:, None, None] * self._frequencies
        cos, sin = (
            (self._scales * np.cos(angles)).astype(np.float32),
            (self._scales * np.sin(angles)).astype(np.float32),
        )
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _sequences(step: StepInput, limits: RunnerLimits) -> list[tuple[Int32, int]]:
    """Return for each sequence the slots of its tokens up to the end of this step and the number of new ones."""
    sizes = np.diff(step.query_starts)
    pieces = zip(step.block_tables, step.context_lens, sizes, strict=True)
    return [(token_slots(table, int(old + new), limits.block_tokens), int(new)) for table, old, new in pieces]


def _visibility(num_queries: int, num_positions: int, window: int, *, is_causal: bool) -> Float32:
    """Return the additive attention mask (C, P): 0 where a query sees a position, else -inf."""
    query = np.arange(num_positions - num_queries, num_positions)[:, None]
    key = np.arange(num_positions)
    visible = (key <= query) if is_causal else (key < num_positions)
    if window:
        visible = visible & (np.abs(key - query) < window)
    return np.where(visible, np.float32(0), np.float32(-np.inf))
