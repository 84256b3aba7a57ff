"""The definition of a model family, and the parts that most families share."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.families.rope_config import rope_from_config, rope_from_gguf, scaled_positions
from headrace.models.fields import Fields
from headrace.models.quantized.registry import refuse_other_quantization
from headrace.models.spec import Activation, ModelSpec, MoeSpec

LLAMA_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layers": "model.layers",
        "embed": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
        "attn_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "o": "self_attn.o_proj.weight",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
    }
)
"""
Names in Hugging Face checkpoints; those of a layer follow `layers` and its number. A bias without an entry has the name
of its weight with another suffix. `model.` stands for the prefix of the network, whatever it is in a checkpoint.
"""
POST_NORM_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "post_attn_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "post_mlp_norm": "post_feedforward_layernorm.weight",
    }
)
"""Names of families with norms after attention and MLP (Gemma, OLMo)."""

ONES: Final = "ones"
"""The name of norm weights that are ones and not stored in the checkpoint."""

EXPERT_INDEX: Final = "{expert}"
"""Placeholder for the expert's index in the names of expert tensors."""

HEAD_INDEX: Final = "{head}"
"""Placeholder for the head's index in the names of norms that have a tensor for each head."""

QWEN_EXPERT_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "router": "mlp.gate.weight",
        "expert_gate": f"mlp.experts.{EXPERT_INDEX}.gate_proj.weight",
        "expert_up": f"mlp.experts.{EXPERT_INDEX}.up_proj.weight",
        "expert_down": f"mlp.experts.{EXPERT_INDEX}.down_proj.weight",
        "shared_gate": "mlp.shared_expert.gate_proj.weight",
        "shared_up": "mlp.shared_expert.up_proj.weight",
        "shared_down": "mlp.shared_expert.down_proj.weight",
        "shared_router": "mlp.shared_expert_gate.weight",
    }
)
"""Names in checkpoints with experts that follow Qwen's."""

ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu": "gelu_erf",
        "relu": "relu",
        "relu2": "relu2",
    }
)
"""Activations by their names in configs."""
MAX_LAYERS: Final = 1024
_MAX_SIZE: Final = 1 << 24
"""Largest size in a config.json: lists of this length are allocated before any tensor is checked."""
_MAX_EXPERTS: Final = 65536
"""Maximum number of experts in all layers together."""

GGUF_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layers": "blk",
        "embed": "token_embd.weight",
        "positions": "position_embd.weight",
        "final_norm": "output_norm.weight",
        "lm_head": "output.weight",
        "attn_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "sinks": "attn_sinks.weight",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "post_attn_norm": "post_attention_norm.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "router": "ffn_gate_inp.weight",
        "expert_gate": "ffn_gate_exps.weight",
        "expert_up": "ffn_up_exps.weight",
        "expert_down": "ffn_down_exps.weight",
        "shared_gate": "ffn_gate_shexp.weight",
        "shared_up": "ffn_up_shexp.weight",
        "shared_down": "ffn_down_shexp.weight",
        "shared_router": "ffn_gate_inp_shexp.weight",
        "post_mlp_norm": "post_ffw_norm.weight",
    }
)
"""Names in GGUF files, the same for most families. Experts are stacked."""

GGUF_SEPARATE_EXPERTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layers": GGUF_TENSORS["layers"],
        **{f"expert_{part}": f"ffn_{part}.{EXPERT_INDEX}.weight" for part in ("gate", "up", "down")},
    }
)
"""Names of experts in old GGUF files of Mixtral, one tensor each."""


Verification = Literal["transformers", "layout", "GGUF twin", "real model"]
"""
The reference that a family was compared with: logits of transformers from the same folder; logits of an equivalent
network, where transformers lacks the family; a GGUF file with the names and permutations of llama.cpp's converter;
answers of a released model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The functions and names that read the checkpoints of one family."""

    name: str
    model_types: tuple[str, ...]
    """`model_type` in config.json."""
    spec_from_config: Callable[[Fields], ModelSpec]
    gguf_architectures: tuple[str, ...] = ()
    """`general.architecture` in GGUF files."""
    spec_from_gguf: Callable[["GgufHeader"], ModelSpec] | None = None
    tensors: Mapping[str, str] = field(default_factory=lambda: LLAMA_TENSORS)
    gguf_tensors: Mapping[str, str] = field(default_factory=lambda: GGUF_TENSORS)
    """Weights with the same name in a checkpoint are stored one after the other in one tensor (see `places`)."""
    qkv_by_kv_head: bool = False
    """Hugging Face checkpoints store q, k and v in one tensor, one KV head with its query heads after the other."""
    variant: Callable[["Family", ModelSpec], "Family"] | None = None
    """Returns the family with the names of one of its networks, where they depend on the spec."""
    norm_offset: float = 0.0
    """Added to the norm weights of Hugging Face checkpoints (Gemma stores `w` of `x * (1 + w)`)."""
    transposed: bool = False
    """Hugging Face checkpoints store the matrices of layers with the inputs as rows (GPT-2)."""
    alternating_experts: bool = False
    """Hugging Face checkpoints stack the experts with gate and up as alternating outputs, and the inputs as rows."""
    position_offset: int = 0
    """Row of position 0 in the table of learned positions."""
    interleaved_rope: bool = False
    """Hugging Face checkpoints interleave the rows of q and k: the two halves of each rotary pair are adjacent."""
    interleaved_gguf_rope: bool = False
    """GGUF files interleave the rows of q and k."""
    models: str = ""
    """The models of the family, for the docs."""
    verified: tuple[Verification, ...] = ()
    """References that the family was compared with, for the docs; `tests/parity` checks them."""

    def variant_of(self, spec: ModelSpec) -> "Family":
        """Return the family with the names of a network."""
        return self.variant(self, spec) if self.variant else self


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The parts of a GGUF file that a family reads."""

    fields: Fields
    """The metadata without the prefix `<architecture>.`."""
    tensor_shapes: Mapping[str, tuple[int, int]]
    rope_tensors: Mapping[str, tuple[float, ...]]
    """Those of `rope_config.ROPE_TENSORS` that the file has."""

    def without(self, keys: Collection[str]) -> tuple["GgufHeader", Fields]:
        """Return the header without some keys, and the fields with all of them."""
        others = {key: value for key, value in self.fields.values.items() if key not in keys}
        return replace(self, fields=Fields(others, self.fields.source)), self.fields


def base_config_spec(
    config: Fields, family: str, *, rotary_fraction: float | None = None, moe: MoeSpec | None = None
) -> ModelSpec:
    """
    Read the keys of config.json that all families share, and refuse parts that none of them supports.

    `rotary_fraction` is the default of `partial_rotary_factor`; None for a family that rotates whole heads.
    """
    refuse_foreign_parts(config)
    if moe is None:
        refuse_experts(config)
    if rotary_fraction is None:
        for fields in (config, config.sub("rope_parameters")):
            fields.refuse("partial_rotary_factor", "a partial rotary embedding in this family", unless=(1.0, 1))
    num_heads = config.whole("num_attention_heads")
    hidden_size = config.whole("hidden_size")
    head_dim = config.whole("head_dim", hidden_size // num_heads)
    rope = rope_from_config(config, head_dim, default_fraction=rotary_fraction or 1.0)
    spec = ModelSpec(
        family=family,
        num_layers=config.whole("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=config.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.whole("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=config.whole("vocab_size"),
        max_positions=scaled_positions(rope, config.whole("max_position_embeddings", 2048)),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        ropes=(rope,),
        tie_embeddings=config.flag("tie_word_embeddings", default=False),
        moe=moe,
    )
    return checked(spec, config.source)


def base_gguf_spec(header: GgufHeader, family: str, *, moe: MoeSpec | None = None) -> ModelSpec:
    """Read the keys of GGUF metadata that all families share, and refuse parts that none of them supports."""
    fields = header.fields.renamed({"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"})
    refuse_foreign_gguf_parts(fields)
    if moe is None:
        fields.refuse("expert_count", "a mixture of experts", unless=(0,))
    num_heads = fields.whole("attention.head_count")
    hidden_size = fields.whole("embedding_length")
    head_dim = fields.whole("attention.key_length", hidden_size // num_heads)
    _refuse_uneven_heads(fields, head_dim)
    vocab_size, _ = header.tensor_shapes.get(GGUF_TENSORS["embed"], (0, 0))
    if not vocab_size:
        raise BrokenModel(f"{fields.source} has no tensor {GGUF_TENSORS['embed']}.")
    spec = ModelSpec(
        family=family,
        num_layers=fields.whole("block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.whole("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=fields.whole("context_length"),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        ropes=(rope_from_gguf(fields, head_dim, header.rope_tensors),),
        tie_embeddings=GGUF_TENSORS["lm_head"] not in header.tensor_shapes,
        moe=moe,
    )
    return checked(spec, fields.source)


def checked(spec: ModelSpec, source: str) -> ModelSpec:
    """Return the spec, or refuse sizes that no real network has."""
    if spec.num_layers > MAX_LAYERS:
        raise BrokenModel(f"{source}: the network has {spec.num_layers} layers; expected at most {MAX_LAYERS}.")
    sizes = {
        "hidden size": spec.hidden_size,
        "MLP size": spec.intermediate_size,
        "size of all heads": spec.num_heads * spec.head_dim,
        "vocabulary": spec.vocab_size,
        "context": spec.max_positions,
    }
    for name, size in sizes.items():
        if size > _MAX_SIZE:
            raise BrokenModel(f"{source}: the {name} is {size}; expected at most {_MAX_SIZE}.")
    if spec.num_heads % spec.num_kv_heads:
        raise BrokenModel(
            f"{source}: there are {spec.num_heads} query heads; expected a multiple of {spec.num_kv_heads} key heads."
        )
    if spec.moe is not None:
        _check_experts(spec.moe, spec.num_layers, source)
    if spec.head_dim % 2 or spec.head_dim < 4:
        raise BrokenModel(f"{source}: the head size is {spec.head_dim}; expected an even number of at least 4.")
    return spec


def _check_experts(moe: MoeSpec, num_layers: int, source: str) -> None:
    if moe.top_k > moe.num_experts:
        raise BrokenModel(f"{source}: a token takes {moe.top_k} experts; expected at most {moe.num_experts}.")
    if moe.num_experts * num_layers > _MAX_EXPERTS:
        raise BrokenModel(
            f"{source}: {num_layers} layers have {moe.num_experts} experts each; "
            f"expected at most {_MAX_EXPERTS} in the whole network."
        )


def require_activation(config: Fields, expected: Activation, *, key: str = "hidden_act") -> None:
    """Refuse any activation but the one that the family uses."""
    config.refuse(key, "the activation", unless=tuple(name for name, kind in ACTIVATIONS.items() if kind == expected))


def read_activation(config: Fields, *, key: str = "hidden_act") -> Activation:
    """Return the activation of a family that has several."""
    config.refuse(key, "the activation", unless=tuple(ACTIVATIONS))
    return ACTIVATIONS[config.text(key)]


def uniform_window(spec: ModelSpec, window: int) -> ModelSpec:
    """Set the same window on all layers; 0 for none."""
    return replace(spec, windows=(window,) * spec.num_layers) if window else spec


def layer_windows(config: Fields, spec: ModelSpec, window: int, default: tuple[bool, ...]) -> ModelSpec:
    """Set the window of the sliding layers: those in `layer_types`, or `default` where that is absent."""
    slides = default
    kinds = config.texts("layer_types")
    if kinds:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UnsupportedModel(f"{config.source}: layers of type {', '.join(sorted(unknown))} are not supported.")
        if len(kinds) != spec.num_layers:
            raise BrokenModel(f"{config.source}: layer_types has {len(kinds)} entries for {spec.num_layers} layers.")
        slides = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(slides) or not window:
        return spec
    return replace(spec, windows=tuple(window if sliding else 0 for sliding in slides))


def sliding_layers(num_layers: int, pattern: int) -> tuple[bool, ...]:
    """Return which layers have a window: all but every `pattern`-th."""
    return tuple((layer + 1) % pattern != 0 for layer in range(num_layers))


def without_far_positions(spec: ModelSpec) -> ModelSpec:
    """Remove the rotary embedding of the layers with full attention."""
    return replace(spec, rope_of_layer=tuple(0 if spec.window(layer) else -1 for layer in range(spec.num_layers)))


def refuse_foreign_parts(config: Fields) -> None:
    """Refuse parts of config.json that would give wrong answers if they were ignored."""
    refuse_other_quantization(config)
    config.refuse("vision_config", "an image encoder")
    config.refuse("audio_config", "an audio encoder")
    config.refuse("attn_logit_softcapping", "softcapping of attention scores")
    config.refuse("final_logit_softcapping", "softcapping of logits")
    config.refuse("mlp_bias", "biases in the MLP", unless=(False,))
    config.refuse("clip_qkv", "clipping of q, k and v")
    config.refuse("attention_sinks", "attention sinks", unless=(False,))
    config.refuse("use_bidirectional_attention", "bidirectional attention", unless=(False,))


def refuse_experts(config: Fields) -> None:
    """Refuse experts in the config of a dense family."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        config.refuse(key, "a mixture of experts", unless=(0, 1))


def gguf_experts(header: GgufHeader, *, renormalize: bool) -> MoeSpec:
    """Read the experts of GGUF metadata; they have the width of a dense MLP unless the file says otherwise."""
    fields = header.fields
    fields.refuse("expert_group_count", "choosing experts by groups", unless=(0, 1))
    fields.refuse("expert_weights_scale", "scaling the output of experts", unless=(0.0, 1.0))
    fields.refuse("expert_gating_func", "experts chosen by anything but a softmax", unless=(0, 1))
    routed = tuple(
        f"blk.{layer}.{GGUF_TENSORS['router']}" in header.tensor_shapes
        for layer in range(min(fields.whole("block_count"), MAX_LAYERS))
    )
    shared = GGUF_TENSORS["shared_gate"]
    sizes = {rows for name, (rows, _) in header.tensor_shapes.items() if name.endswith(shared)}
    return MoeSpec(
        num_experts=fields.whole("expert_count"),
        top_k=fields.whole("expert_used_count"),
        expert_size=fields.whole("expert_feed_forward_length", fields.whole("feed_forward_length")),
        layers=() if all(routed) else routed,
        renormalize=renormalize,
        shared_size=max(sizes, default=0),
        has_shared_router=any(name.endswith(GGUF_TENSORS["shared_router"]) for name in header.tensor_shapes),
    )


def refuse_foreign_gguf_parts(fields: Fields) -> None:
    """Refuse parts of GGUF metadata that would give wrong answers if they were ignored."""
    fields.refuse("attn_logit_softcapping", "softcapping of attention scores", unless=(0.0,))
    fields.refuse("final_logit_softcapping", "softcapping of logits", unless=(0.0,))
    fields.refuse("logit_scale", "scaling of logits", unless=(0.0, 1.0))
    fields.refuse("residual_scale", "scaling of residuals", unless=(0.0, 1.0))
    fields.refuse("embedding_scale", "scaling of embeddings", unless=(0.0, 1.0))
    fields.refuse("attention.scale", "a scale of attention scores", unless=(0.0,))


def _refuse_uneven_heads(fields: Fields, head_dim: int) -> None:
    if fields.whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{fields.source}: value heads that differ in size from key heads are not supported.")
