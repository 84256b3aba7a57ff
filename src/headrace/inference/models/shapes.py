"""The weights that a spec requires, and their shapes."""

from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import DeltaSpec, SsdSpec
from headrace.inference.models.spec import ModelSpec

Shape = tuple[int, int]
"""Rows, columns; a vector is one row."""


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        "embed": (spec.vocab_size, spec.hidden_size),
    }
    if spec.norms != "stream":
        shapes |= _norm_shapes(spec, "final_norm")
    if spec.embedding_norm:
        shapes |= _norm_shapes(spec, "embed_norm")
    if spec.token_types:
        shapes["token_types"] = (spec.token_types, spec.hidden_size)
    if spec.learned_positions:
        shapes["positions"] = (spec.learned_positions, spec.hidden_size)
    if not spec.tie_embeddings:
        shapes["lm_head"] = (spec.vocab_size, spec.hidden_size)
    if spec.head_bias:
        shapes["lm_head_bias"] = (1, spec.vocab_size)
    if size := spec.layer_input_size:
        total = spec.num_layers * size
        shapes |= {"layer_embed": (spec.vocab_size, total), "layer_proj": (total, spec.hidden_size)}
        shapes["layer_proj_norm"] = (1, size)
    for index in range(spec.num_layers):
        layer = _mixer_shapes(spec, index) | _norms_of_layer(spec, index)
        if spec.has_mlp(index):
            layer |= _mlp_shapes(spec, index)
        layer |= _input_shapes(spec)
        if index == 0 and not spec.first_attn_norm:
            layer = {part: shape for part, shape in layer.items() if part not in {"attn_norm", "attn_norm_bias"}}
        shapes.update({f"layers.{index}.{part}": shape for part, shape in layer.items()})
    return shapes


def _input_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden, size = spec.hidden_size, spec.layer_input_size
    shapes: dict[str, Shape] = {"layer_scale": (1, 1)} if spec.layer_scales else {}
    if size:
        shapes |= {"input_gate": (size, hidden), "input_out": (hidden, size), "input_norm": (1, hidden)}
    return shapes


def _mlp_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    hidden, moe, inner = spec.hidden_size, spec.experts(layer), spec.intermediate(layer)
    if moe is None:
        shapes = _gated_shapes("", hidden, inner)
        if spec.mlp_bias:
            shapes |= _bias_shapes("", hidden, inner)
    else:
        shapes = _expert_shapes(moe, hidden)
    if spec.activation == "xielu":
        shapes |= dict.fromkeys(("xielu_positive", "xielu_negative", "xielu_linear"), (1, 1))
    gates = () if spec.mlp == "gated" else ("gate", "gate_bias", "shared_gate")
    return {name: shape for name, shape in shapes.items() if name.rpartition(".")[2] not in gates}


def _expert_shapes(moe: MoeSpec, hidden: int) -> dict[str, Shape]:
    shapes = {"router": (moe.num_experts, hidden)}
    if moe.router_bias:
        shapes["router_bias"] = (1, moe.num_experts)
    if moe.choice_bias:
        shapes["choice_bias"] = (1, moe.num_experts)
    if moe.latent_size:
        shapes |= {"latent_down": (moe.latent_size, hidden), "latent_up": (hidden, moe.latent_size)}
    for expert in range(moe.num_experts):
        shapes |= _gated_shapes(f"experts.{expert}.", moe.latent_size or hidden, moe.expert_size)
        if moe.expert_bias:
            shapes |= _bias_shapes(f"experts.{expert}.", moe.latent_size or hidden, moe.expert_size)
    if moe.shared_size:
        shapes |= _gated_shapes("shared_", hidden, moe.shared_size)
    if moe.has_shared_router:
        shapes["shared_router"] = (1, hidden)
    if moe.own_norms:
        norms = ("shared_post_norm", "expert_norm", "expert_post_norm", "router_norm")
        shapes |= {**dict.fromkeys(norms, (1, hidden)), "expert_scales": (1, moe.num_experts)}
    return shapes


def _norm_shapes(spec: ModelSpec, *names: str) -> dict[str, Shape]:
    suffixes = ("", "_bias") if spec.norm_bias else ("",)
    return {f"{name}{suffix}": (1, spec.hidden_size) for name in names for suffix in suffixes}


def _gated_shapes(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {f"{prefix}gate": (inner, hidden), f"{prefix}up": (inner, hidden), f"{prefix}down": (hidden, inner)}


def _bias_shapes(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {f"{prefix}gate_bias": (1, inner), f"{prefix}up_bias": (1, inner), f"{prefix}down_bias": (1, hidden)}


def _norms_of_layer(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    parts = [
        part for part, is_there in (("attn", spec.mixer(layer) != "none"), ("mlp", spec.has_mlp(layer))) if is_there
    ]
    norms, names = spec.norms_of(layer), list[str]()
    if norms in {"pre", "both"}:
        names += [f"{part}_norm" for part in parts if part == "attn" or spec.parallel != "one"]
    if norms != "pre":
        names += [f"post_{part}_norm" for part in parts]
    return _norm_shapes(spec, *names)


def _mixer_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    mixer, hidden = spec.mixer(layer), spec.hidden_size
    if mixer == "conv" and spec.conv is not None:
        return {"mix_in": (3 * hidden, hidden), "mix_conv": (hidden, spec.conv.taps), "o": (hidden, hidden)}
    if mixer == "delta" and spec.delta is not None:
        return _delta_shapes(spec.delta, hidden)
    if mixer == "ssd" and spec.ssd is not None:
        shapes = _ssd_shapes(spec.ssd, hidden)
        if spec.attention_beside:
            shapes["mix_out"] = shapes.pop("o")
            shapes |= _attention_shapes(spec, layer)
        return shapes
    return _attention_shapes(spec, layer) if mixer == "attention" else {}


def _delta_shapes(delta: DeltaSpec, hidden: int) -> dict[str, Shape]:
    decays = delta.value_heads * (delta.key_dim if delta.by_channel else 1)
    return {
        **dict.fromkeys(("mix_q", "mix_k"), (delta.num_keys, hidden)),
        "mix_v": (delta.num_values, hidden),
        **_gate_shapes("mix_z", delta, delta.num_values, hidden),
        "mix_beta": (delta.value_heads, hidden),
        **_gate_shapes("mix_dt", delta, decays, hidden),
        "mix_conv": (2 * delta.num_keys + delta.num_values, delta.taps),
        "mix_decay": (1, delta.value_heads),
        "mix_dt_bias": (1, decays),
        "mix_norm": (1, delta.value_dim),
        "o": (hidden, delta.num_values),
    }


def _gate_shapes(name: str, delta: DeltaSpec, size: int, hidden: int) -> dict[str, Shape]:
    """Return the shape of a projection, or by channel those of the two of a low rank in its place."""
    if not delta.by_channel:
        return {name: (size, hidden)}
    return {f"{name}_a": (delta.key_dim, hidden), f"{name}_b": (size, delta.key_dim)}


def _ssd_shapes(ssd: SsdSpec, hidden: int) -> dict[str, Shape]:
    shapes = {
        "mix_in": (ssd.num_values + ssd.num_channels, hidden),
        "mix_small": (ssd.heads, hidden),
        "mix_conv": (ssd.num_channels, ssd.taps),
        **dict.fromkeys(("mix_decay", "mix_dt_bias", "mix_skip"), (1, ssd.heads)),
        "o": (hidden, ssd.num_values),
    }
    if ssd.conv_bias:
        shapes["mix_conv_bias"] = (1, ssd.num_channels)
    if ssd.norm:
        shapes["mix_norm"] = (1, ssd.num_values)
    return shapes


def _attention_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    hidden, num_heads = spec.hidden_size, spec.attention(layer).num_heads
    shapes = _qkv_shapes(spec, layer) if spec.mla is None else _latent_shapes(spec, spec.mla)
    shapes["o"] = (hidden, num_heads * spec.value_head_dim(layer))
    if spec.o_bias:
        shapes["o_bias"] = (1, hidden)
    if spec.attention_gate is not None:
        shapes["attn_gate"] = (spec.num_gates(layer), hidden)
    if spec.sinks:
        shapes["sinks"] = (1, num_heads)
    return shapes


def _qkv_shapes(spec: ModelSpec, layer: int) -> dict[str, Shape]:
    heads = spec.attention(layer)
    sizes = {"q": heads.query_size, "k": heads.key_size, "v": heads.key_size}
    parts = {part: sizes[part] for part in spec.attention_parts(layer)}
    shapes: dict[str, Shape] = {part: (size, spec.hidden_size) for part, size in parts.items()}
    if spec.qkv_bias:
        shapes |= {f"{part}_bias": (1, size) for part, size in parts.items()}
    if spec.qk_norm:
        by_head = spec.qk_norm in {"head", "rotated"}
        normed = {part: size for part, size in parts.items() if part != "v"}
        shapes |= {f"{part}_norm": (1, heads.head_dim if by_head else size) for part, size in normed.items()}
    return shapes


def _latent_shapes(spec: ModelSpec, mla: MlaSpec) -> dict[str, Shape]:
    hidden, heads, latent = spec.hidden_size, spec.num_heads, mla.kv_rank + mla.rope_dim
    shapes: dict[str, Shape] = {}
    if mla.query_rank:
        shapes |= {"q_a": (mla.query_rank, hidden), "q_a_norm": (1, mla.query_rank)}
    shapes |= {
        "q_b": (heads * mla.query_dim, mla.query_rank or hidden),
        "kv_a": (latent, hidden),
        "kv_a_norm": (1, mla.kv_rank),
        "k_b": (heads * mla.kv_rank, mla.key_dim),
        "v_b": (heads * mla.value_dim, mla.kv_rank),
    }
    if spec.qkv_bias:
        shapes |= {"q_a_bias": (1, mla.query_rank)} if mla.query_rank else {}
        shapes["kv_a_bias"] = (1, latent)
    return shapes
