"""The definition of a model family, and the parts that most families share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import Activation, ModelSpec

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
GPT_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "layers": "model.h",
        "embed": "model.wte.weight",
        "final_norm": "model.ln_f.weight",
        "attn_norm": "ln_1.weight",
        "mlp_norm": "ln_2.weight",
    }
)
"""Names of families after GPT-2."""
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

QKV_INDEX: Final = "{qkv}"
"""Placeholder for q, k and v in the name of a weight that has a tensor for each of them."""

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
DEEPSEEK_EXPERT_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **QWEN_EXPERT_TENSORS,
        "choice_bias": "mlp.gate.e_score_correction_bias",
        **{f"shared_{part}": f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")},
    }
)
"""Names in checkpoints with experts that follow DeepSeek-V3's."""

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
        "q_a": "attn_q_a.weight",
        "q_a_norm": "attn_q_a_norm.weight",
        "q_b": "attn_q_b.weight",
        "kv_a": "attn_kv_a_mqa.weight",
        "kv_a_norm": "attn_kv_a_norm.weight",
        "k_b": "attn_k_b.weight",
        "v_b": "attn_v_b.weight",
        "post_attn_norm": "post_attention_norm.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "router": "ffn_gate_inp.weight",
        "choice_bias": "exp_probs_b.bias",
        "latent_down": "ffn_latent_down.weight",
        "latent_up": "ffn_latent_up.weight",
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
GGUF_FUSED_EXPERTS: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("expert_gate", "expert_up"), "ffn_gate_up_exps.weight")
)
"""Names of experts in GGUF files whose converter keeps gate and up in one tensor."""
GGUF_FUSED_KV_B: Final[Mapping[str, str]] = MappingProxyType(dict.fromkeys(("k_b", "v_b"), "attn_kv_b.weight"))
"""Names in GGUF files of MiniCPM 3, and in those of DeepSeek from before May 2025."""


Verification = Literal["transformers", "layout", "GGUF twin", "real model"]
"""
The reference that a family was compared with: logits of transformers from the same folder; logits of an equivalent
network, where transformers lacks the family; a GGUF file with the names and permutations of llama.cpp's converter;
answers of a released model.
"""


ATTENTION_BIAS: Final[Mapping[str, str]] = MappingProxyType({"qkv_bias": "attention_bias", "o_bias": "attention_bias"})
"""The `bias_flags` of most families."""
GPT_PARTS: Final[Mapping[str, Any]] = MappingProxyType({"norm": "layer", "norm_bias": True, "mlp": "plain"})
"""The `parts` of families after GPT-2."""
ALL_BIASED: Final = MappingProxyType(dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True))
ENCODER_PARTS: Final[Mapping[str, Any]] = MappingProxyType(
    {"is_causal": False, "norm": "layer", "embedding_norm": True, "tie_embeddings": True}
)
QKV: Final = ("q", "k", "v")
GGUF_FUSED_QKV: Final[Mapping[str, str]] = MappingProxyType({**GGUF_TENSORS, **dict.fromkeys(QKV, "attn_qkv.weight")})
"""Names in GGUF files of families whose q, k and v are one tensor."""


_OFFSET_NORMS: Final = frozenset(
    {"final_norm", "attn_norm", "mlp_norm", "q_norm", "k_norm", "post_attn_norm", "post_mlp_norm"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """
    The values and names that read the checkpoints of one family.

    Most families differ from Llama by values alone (`reading.config_spec` and `gguf_spec` apply them). One that has
    keys of its own wraps these functions in `spec_from_config` or `spec_from_gguf`.
    """

    name: str
    models: str = ""
    """The models of the family, for the docs."""
    verified: tuple[Verification, ...] = ()
    """References that the family was compared with, for the docs; `tests/parity` checks them."""

    model_types: tuple[str, ...] = ()
    """`model_type` in config.json; empty: the name of the family."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of keys that a config.json may omit, by their names in the file."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Names in config.json of keys that Llama calls otherwise, by Llama's name."""
    refused: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    """Keys of config.json with the only value that is supported, and the part that another value would need."""
    activation: Activation = "silu"
    """The activation of GGUF files, and of configs unless `reads_activation`."""
    activation_key: str = "hidden_act"
    """The key of the activation in config.json; empty: there is none."""
    reads_activation: bool = False
    """A config.json may name any activation; otherwise those other than `activation` are refused."""
    bias_flags: Mapping[str, str] = field(default_factory=dict)
    """Keys of config.json that decide fields of `ModelSpec`; an absent key is false."""
    rotary_fraction: float | None = None
    """Default of `partial_rotary_factor`; None for a family that rotates whole heads."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `ModelSpec` that all networks of the family have."""
    spec_from_config: Callable[["Family", Fields], ModelSpec] | None = None
    """Reads a config.json with `defaults` and `keys` applied, in place of `config_spec`."""

    gguf_architectures: tuple[str, ...] = ()
    """`general.architecture` in GGUF files."""
    gguf_biases: tuple[str, ...] = ()
    """Fields of `ModelSpec` for biases that a GGUF file has if it has their tensors."""
    spec_from_gguf: Callable[["Family", "GgufHeader"], ModelSpec] | None = None
    """Reads the metadata of a GGUF file, in place of `gguf_spec`."""

    tensors: Mapping[str, str] = field(default_factory=lambda: LLAMA_TENSORS)
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Parts of names of tensors in Hugging Face checkpoints, and what some of these have in their place."""
    gguf_tensors: Mapping[str, str] = field(default_factory=lambda: GGUF_TENSORS)
    """Weights with the same name in a checkpoint are stored one after the other in one tensor (see `places`)."""
    qkv_by_kv_head: bool = False
    """Hugging Face checkpoints store q, k and v in one tensor, one KV head with its query heads after the other."""
    variant: Callable[["Family", ModelSpec], "Family"] | None = None
    """Returns the family with the names of one of its networks, where they depend on the spec."""
    norm_offset: float = 0.0
    """Added to the norm weights of Hugging Face checkpoints (Gemma stores `w` of `x * (1 + w)`)."""
    plain_norms: tuple[str, ...] = ()
    """Norms whose weights Hugging Face checkpoints store as they are, or not at all, in spite of `norm_offset`."""
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

    def __post_init__(self) -> None:
        if not self.model_types:
            object.__setattr__(self, "model_types", (self.name,))

    def offset_of(self, name: str) -> float:
        """Return what is added to a weight by its canonical name: 0 but for the norms of layers and the last one."""
        part = name.rpartition(".")[2]
        return self.norm_offset if part in _OFFSET_NORMS and part not in self.plain_norms else 0.0

    def variant_of(self, spec: ModelSpec) -> "Family":
        return self.variant(self, spec) if self.variant else self


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The parts of a GGUF file that a family reads."""

    fields: Fields
    """The metadata without the prefix `<architecture>.`."""
    tensor_shapes: Mapping[str, tuple[int, int]]
    rope_tensors: Mapping[str, tuple[float, ...]]
    """Those of `rope_config.ROPE_TENSORS` that the file has."""
