"""
The specification of a network: a `ModelSpec` describes any decoder-only model that a runner can execute.

A family (one small file in `families/`) maps a `config.json` or GGUF metadata to a `ModelSpec` and its tensor names to
the canonical names below. Runners know only this file and those that it imports: they cannot tell Llama from Qwen.

Canonical weights (rows = outputs, columns = inputs; rotary halves in the "NeoX" order of Hugging Face):

    embed                       (vocab, hidden)
    positions                   (learned_positions, hidden)     when `learned_positions`
    final_norm                  (hidden,)
    lm_head                     (vocab, hidden)     absent when `tie_embeddings`
    lm_head_bias                (vocab,)            when `head_bias`
    layers.{i}.attn_norm        (hidden,)           unless `norms` is "post", or `first_attn_norm` says otherwise
    layers.{i}.q | k | v        (heads * head_dim, hidden)      only q when `kv_sources` names another layer;
                                                                no v when `keys_as_values`
    layers.{i}.q_bias | k_bias | v_bias             when `qkv_bias`
    layers.{i}.q_norm | k_norm  (head_dim,)         when `qk_norm` is "head" or "rotated"
                                (heads * head_dim,) when `qk_norm` is "full" or "layer"
    layers.{i}.attn_gate        (heads * head_dim, hidden)      when `attention_gate` is "element"
                                (heads, hidden)                 when `attention_gate` is "head"
    layers.{i}.sinks            (heads,)            when `sinks`
    layers.{i}.o                (hidden, heads * head_dim)
    layers.{i}.o_bias           (hidden,)           when `o_bias`
    layers.{i}.post_attn_norm   (hidden,)           when `norms` is "post" or "both"
    layers.{i}.mlp_norm         (hidden,)           unless `norms` is "post" or `parallel` is "one"
    layers.{i}.gate             (intermediate, hidden)          when `mlp` is "gated"
    layers.{i}.up               (intermediate, hidden)
    layers.{i}.gate_bias | up_bias | down_bias      when `mlp_bias`
    layers.{i}.down             (hidden, intermediate)
    layers.{i}.xielu_positive | xielu_negative | xielu_linear  (1,)    when `activation` is "xielu"
    layers.{i}.post_mlp_norm    (hidden,)           when `norms` is "post" or "both"

Each norm but those of q and k also has a `{norm}_bias` when `norm_bias`.

A network with `layer_input_size` takes for each layer a part of a second embedding of the token, and projects the first
one for the same purpose; a layer with `layer_scales` has a factor:

    layer_embed                 (vocab, layers * size)          read by row, never packed
    layer_proj                  (layers * size, hidden)
    layer_proj_norm             (size,)
    layers.{i}.input_gate       (size, hidden)
    layers.{i}.input_out        (hidden, size)
    layers.{i}.input_norm       (hidden,)
    layers.{i}.layer_scale      (1,)

A layer with experts (`moe`) has the weights of `experts.py` instead of gate, up and down.

A layer with another mixer than attention has the weights of `mixers.py` instead of q, k and v; its norms are called
like those of attention. A layer without mixer, or without MLP, has neither their weights nor their norms.

A layer with latent attention (`mla`) has the weights of `latent.py` instead of q, k and v.

Norm weights are final: a family whose norm is `x * (1 + w)` returns `1 + w`.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import ConvSpec, DeltaSpec, Mixer, SsdSpec, StateShape

Norms = Literal["pre", "post", "both", "stream"]
Activation = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "clamped_swiglu", "xielu"]

_EXPERT: Final = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)")


def split_name(name: str) -> tuple[str, str, int]:
    """Split a canonical name into its layer ("" without one), its part (`expert_gate` in any expert) and its expert."""
    match = _EXPERT.fullmatch(name)
    if match is not None:
        return match[1], f"expert_{match[3]}", int(match[2])
    layer, _, part = name.rpartition(".")
    return layer, part, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """
    Rotary position embedding: the parameters of its inverse frequencies.

    `kind` and its values follow `rope_scaling` of Hugging Face configs. `dynamic` (NTK) and `longrope` are resolved
    for the context length that the server is started with, so that they do not depend on the request.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    rotary_dim: int = 0
    """Rotated dimensions of a head; 0 means all of them."""
    attention_factor: float = 1.0
    """Factor of the cosines and sines of rotary pairs (yarn, longrope)."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Yarn rounds the bounds of its ramp to whole pairs."""
    short_factors: tuple[float, ...] = ()
    """Divisor of each frequency in contexts of up to `original_max_positions` (longrope)."""
    long_factors: tuple[float, ...] = ()
    """Divisor of each frequency in longer contexts (longrope)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer with grouped-query attention. The defaults are those of Llama."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    """Longest context that the checkpoint supports (after rope scaling)."""
    context_limit: str = ""
    """The reason why contexts end at `max_positions`, where the network was made for longer ones."""
    attention_shapes: tuple[AttentionShape, ...] = ()
    """The heads of each layer. Empty: all layers have `num_heads`, `num_kv_heads` and `head_dim`."""
    intermediate_sizes: tuple[int, ...] = ()
    """Width of the MLP of each layer. Empty: `intermediate_size` in all layers."""
    kv_sources: tuple[int, ...] = ()
    """
    The layer whose keys and values each layer attends to: its own index, or that of an earlier layer with KV heads of
    the same shape; then it has no k and v (Gemma 4). Empty: all have their own.
    """
    norm_eps: float
    post_norm_eps: float = 0.0
    """The epsilon of the norms after attention and MLP; 0: that of the others (Muse Glimmer has a smaller one)."""
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    """Norms add a bias (LayerNorm)."""
    norms: Norms = "pre"
    """
    Norms before attention and MLP, after them (before the residual is added; OLMo 2), or both (Gemma 2). `stream`:
    after the residual is added, of the sum that goes on; there is no final norm (BERT).
    """
    state_norms: Literal["pre"] | None = None
    """Norms of layers with a state, where they differ from those of other layers (OLMo Hybrid); None: as in these."""
    embedding_norm: bool = False
    """A norm of the embeddings, before the first layer."""
    first_attn_norm: bool = True
    """The first layer has a norm before attention. False: that of the embeddings takes its place (ModernBERT)."""
    token_types: int = 0
    """Rows of the table of token types that is added to the embeddings (BERT); 0: there is none."""
    parallel: Literal["one", "two"] | None = None
    """The MLP does not see the output of attention, and both have one norm (GPT-J) or one each (GPT-NeoX)."""
    mlp: Literal["gated", "plain"] = "gated"
    """`down(activation(gate(x)) * up(x))` or `down(activation(up(x)))`."""
    activation: Activation = "silu"
    """
    `clamped_swiglu` takes gate and up: `(up + 1) * gate * sigmoid(1.702 * gate)` within `swiglu_limit` (gpt-oss).
    `xielu` has numbers p, n and l of each layer: `p x^2 + l x` where x is positive, else `(n + l) (e^x - 1 - x) + l x`
    (Apertus; Huang & Schlag 2024).
    """
    swiglu_limit: float = 0.0
    """Largest gate, and largest magnitude of up, in `clamped_swiglu`."""
    learned_positions: int = 0
    """Rows of the table of positions that is added to the embeddings; 0: there is none."""
    ropes: tuple[RopeSpec, ...] = (RopeSpec(),)
    """The rotary embeddings of the network, at least one."""
    rope_of_layer: tuple[int, ...] = ()
    """Index into `ropes` for each layer, -1 for a layer without positions. Empty: the first one on all layers."""
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: Literal["head", "rotated", "full", "layer"] | None = None
    """
    The norm of q and k before the rotary embedding: RMSNorm over each head (Qwen 3, Gemma 3), RMSNorm over all heads at
    once (OLMo 2), or LayerNorm over each head with weights of its own (Command R+). `rotated`: RMSNorm over each head
    after the rotary embedding (Hunyuan).
    """
    qkv_clip: float = 0.0
    """Largest magnitude of q, k and v before the rotary embedding; larger values are clipped. 0: no limit."""
    value_norm: bool = False
    """Values are divided by the root mean square of their head (Gemma 4)."""
    layer_scales: bool = False
    """The output of each layer is multiplied by a number of its own (Gemma 4)."""
    layer_input_size: int = 0
    """
    Numbers that each layer takes from a second embedding of a token (Gemma 4 E2B). The table of these embeddings stays
    in its file, since a step reads one row of it for each token. 0: there is none.
    """
    embedding_scale: float = 1.0
    """Factor of the token embeddings (Gemma: sqrt(hidden_size))."""
    logit_scale: float = 1.0
    """Factor of the logits. Readers multiply `final_norm` by it, so runners do not apply it (Granite)."""
    attention_scale: float = 0.0
    """Factor of the attention scores; 0 means head_dim ** -0.5."""
    attention_gate: Literal["element", "head"] | None = None
    """The output of attention is multiplied by gates that the layer computes of its input, one a number or a head."""
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    """The activation of these gates."""
    sinks: bool = False
    """Each head has a score that takes part in the softmax of attention, without a value (gpt-oss)."""
    distance_slopes: tuple[float, ...] = ()
    """
    Each head adds its slope times the distance `key - query` to its scores, in place of positions (alibi; Press et al.
    2022). Empty: no head does.
    """
    attention_softcap: float = 0.0
    """Attention scores s become `cap * tanh(s / cap)` (Gemma 2); 0: they stay as they are."""
    logit_softcap: float = 0.0
    """Softcap of the logits, as `attention_softcap`."""
    windows: tuple[int, ...] = ()
    """Sliding window of each layer in tokens, the token itself included; 0 means none. Empty: none in any layer."""

    is_causal: bool = True
    """A token attends to those before it. False: to all of its sequence (encoders)."""

    moe: MoeSpec | None = None
    """The experts of the layers that have some."""
    mla: MlaSpec | None = None
    """Latent attention, in place of q, k and v."""
    query_growth: float = 0.0
    """Factor of queries: that at position p is multiplied by `1 + query_growth * log(1 + floor(p / growth_period))`."""
    growth_period: int = 0
    """Positions after which the factor of queries grows (Ministral 3, Mistral 4)."""

    mixers: tuple[Mixer, ...] = ()
    """The mixer of each layer. Empty: attention everywhere."""
    mlps: tuple[bool, ...] = ()
    """False for layers without MLP (Nemotron-H). Empty: all layers have one."""
    conv: ConvSpec | None = None
    """The short convolution of the layers with mixer "conv"."""
    delta: DeltaSpec | None = None
    """The gated delta rule of the layers with mixer "delta"."""
    ssd: SsdSpec | None = None
    """The state space model of the layers with mixer "ssd"."""
    attention_beside: bool = False
    """Layers that keep a state also have attention, which reads the same norm; both outputs are added (Falcon-H1)."""
    weight_factors: tuple[tuple[str, float], ...] = ()
    """
    Factors of matrices by part, which readers of Hugging Face folders multiply, so that runners do not apply them;
    those of `mix_in` are by its rows: `mix_in.z`, `.x`, `.b` and `.c` (Falcon-H1).
    """

    @property
    def group_size(self) -> int:
        """Number of query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    def scale(self, layer: int) -> float:
        """Return the factor of a layer's attention scores."""
        return self.attention_scale or self.attention(layer).head_dim ** -0.5

    def eps_of(self, norm: str) -> float:
        """Return the epsilon of a norm of the residual stream, or of what is added to it, by its name in a layer."""
        return self.post_norm_eps if self.post_norm_eps and norm.startswith("post_") else self.norm_eps

    def attention(self, layer: int) -> AttentionShape:
        if self.attention_shapes:
            return self.attention_shapes[layer]
        return AttentionShape(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def attention_parts(self, layer: int) -> str:
        """Return the matrices of a layer's attention before the heads: "qkv", "qk" without v, or "q"."""
        if not self.owns_kv(layer):
            return "q"
        return "qk" if self.attention(layer).keys_as_values else "qkv"

    def kv_source(self, layer: int) -> int:
        """Return the layer whose keys and values a layer attends to; -1 for a layer without attention."""
        if not self.attends(layer):
            return -1
        return self.kv_sources[layer] if self.kv_sources else layer

    def owns_kv(self, layer: int) -> bool:
        """Return True for a layer that computes keys and values of its own."""
        return self.kv_source(layer) == layer

    @property
    def has_one_attention_shape(self) -> bool:
        """True if all layers have attention with the same heads, and keys and values of their own."""
        return not self.attention_shapes and not self.kv_sources

    def intermediate(self, layer: int) -> int:
        """Return the width of the dense MLP of a layer."""
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

    def num_gates(self, layer: int) -> int:
        """Return the number of gates of the output of a layer's attention; 0 if there are none."""
        heads = self.attention(layer).num_heads
        return {None: 0, "head": heads, "element": heads * self.value_head_dim(layer)}[self.attention_gate]

    def rope_head_dim(self, layer: int) -> int:
        """Return the size of the vectors that a layer rotates: heads, or their rotated part with latent attention."""
        return self.mla.rope_dim if self.mla is not None else self.attention(layer).head_dim

    def value_head_dim(self, layer: int) -> int:
        """Return the numbers that a head of a layer gives to `o`."""
        return self.mla.value_dim if self.mla is not None else self.attention(layer).head_dim

    @property
    def default_positions(self) -> int:
        """Longest context to offer unless a longer one is requested: longrope loses precision beyond its original."""
        long = [rope.original_max_positions for rope in self.ropes if rope.kind == "longrope"]
        return min([self.max_positions, *long])

    def rope(self, layer: int) -> RopeSpec | None:
        index = self.rope_of_layer[layer] if self.rope_of_layer else 0
        return None if index < 0 else self.ropes[index]

    def window(self, layer: int) -> int:
        """Return the sliding window of a layer in tokens; 0 for none."""
        return self.windows[layer] if self.windows else 0

    def norms_of(self, layer: int) -> Norms:
        """Return the places of the norms of a layer."""
        return self.norms if self.state_norms is None or self.state_mixer(layer) is None else self.state_norms

    def mixer(self, layer: int) -> Mixer:
        return self.mixers[layer] if self.mixers else "attention"

    def attends(self, layer: int) -> bool:
        """Return True for a layer with attention, alone or beside a state."""
        mixer = self.mixer(layer)
        return mixer == "attention" or (self.attention_beside and mixer != "none")

    def has_mlp(self, layer: int) -> bool:
        return self.mlps[layer] if self.mlps else True

    @property
    def has_state(self) -> bool:
        """True if a sequence has a state beside its KV cache."""
        return any(self.state_shape(layer) for layer in range(self.num_layers))

    def state_shape(self, layer: int) -> StateShape | None:
        """Return the sizes of a layer's state; None if it keeps none."""
        mixer = self.state_mixer(layer)
        return None if mixer is None else mixer.state_shape(self.hidden_size)

    def state_mixer(self, layer: int) -> ConvSpec | DeltaSpec | SsdSpec | None:
        """Return the mixer of a layer that keeps a state; None for attention and layers without mixer."""
        return {"conv": self.conv, "delta": self.delta, "ssd": self.ssd}.get(self.mixer(layer))

    def experts(self, layer: int) -> MoeSpec | None:
        """Return the experts of a layer; None if its MLP is dense."""
        is_routed = self.moe is not None and (not self.moe.layers or self.moe.layers[layer])
        return self.moe if is_routed and self.has_mlp(layer) else None

    @property
    def num_parameters(self) -> int:
        """Number of weights in the matrices, without norms and biases; of all experts."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        layers = range(self.num_layers)
        mixers = sum(self._mixer_parameters(layer) for layer in layers)
        mlps = sum(self._mlp_parameters(layer) for layer in layers if self.has_mlp(layer))
        own = self.layer_input_size * self.num_layers * (self.vocab_size + 3 * self.hidden_size)
        return mixers + mlps + embeddings + own

    @property
    def mlp_matrices(self) -> int:
        """Number of matrices of an MLP or an expert."""
        return 3 if self.mlp == "gated" else 2

    def _mixer_parameters(self, layer: int) -> int:
        state_mixer = self.state_mixer(layer)
        state = 0 if state_mixer is None else state_mixer.num_parameters(self.hidden_size)
        return state + (self._attention_parameters(layer) if self.attends(layer) else 0)

    def _attention_parameters(self, layer: int) -> int:
        shape, gates = self.attention(layer), self.hidden_size * self.num_gates(layer)
        if self.mla is not None:
            return self.mla.num_parameters(self.hidden_size, shape.num_heads) + gates
        keys = (len(self.attention_parts(layer)) - 1) * shape.key_size
        return self.hidden_size * (2 * shape.query_size + keys) + gates

    def _mlp_parameters(self, layer: int) -> int:
        moe = self.experts(layer)
        if moe is None:
            return self.mlp_matrices * self.hidden_size * self.intermediate(layer)
        experts = moe.num_experts * moe.expert_size * (moe.latent_size or self.hidden_size)
        around = 2 * self.hidden_size * moe.latent_size
        return self.mlp_matrices * (experts + self.hidden_size * moe.shared_size) + around
