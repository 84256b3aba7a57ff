"""OpenELM: layers that differ in their heads and in the width of their MLP; the names of its own code."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.families.family import GGUF_FUSED_QKV, QKV, Family, GgufHeader
from headrace.inference.models.families.reading import MAX_LAYERS, check_heads, config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_EPS: Final = 1e-6
"""Source: `OpenELMRMSNorm` in the checkpoints' code."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    num_layers = min(config.whole("num_hidden_layers"), MAX_LAYERS)
    heads = config.wholes("num_query_heads", num_layers)
    kv_heads = config.wholes("num_kv_heads", num_layers)
    divisor = config.whole("ffn_dim_divisor")
    multipliers = config.numbers("ffn_multipliers")
    widths = [_divisible(factor * config.whole("hidden_size"), divisor) for factor in multipliers]
    inner = Fields({"ffn_multipliers": widths}, config.source).wholes("ffn_multipliers", num_layers)
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": kv_heads[0], "intermediate_size": max(inner)}
    spec = config_spec(family, Fields({**config.values, **sizes}, config.source))
    return _by_layer(spec, heads, kv_heads, inner, config.source)


def _divisible(width: float, divisor: int) -> int:
    """Round to a multiple of a number, but not down by more than a tenth. Source: `make_divisible` in that code."""
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    num_layers = min(fields.whole("block_count"), MAX_LAYERS)
    heads = fields.wholes("attention.head_count", num_layers)
    kv_heads = fields.wholes("attention.head_count_kv", num_layers)
    inner = fields.wholes("feed_forward_length", num_layers)
    sizes = {
        "attention.head_count": heads[0],
        "attention.head_count_kv": kv_heads[0],
        "feed_forward_length": max(inner),
    }
    spec = gguf_spec(family, replace(header, fields=Fields({**fields.values, **sizes}, fields.source)))
    return _by_layer(spec, heads, kv_heads, inner, fields.source)


def _by_layer(
    spec: ModelSpec, heads: Sequence[int], kv_heads: Sequence[int], inner: Sequence[int], source: str
) -> ModelSpec:
    shapes = tuple(
        AttentionShape(num_heads=count, num_kv_heads=num_kv, head_dim=spec.head_dim)
        for count, num_kv in zip(heads, kv_heads, strict=True)
    )
    check_heads(shapes, source)
    return replace(
        spec,
        attention_shapes=shapes if len(set(shapes)) > 1 else (),
        intermediate_sizes=tuple(inner) if len(set(inner)) > 1 else (),
    )


OPENELM: Final = Family(
    name="openelm",
    models="OpenELM, with a tokenizer beside it: its folders have none",
    verified=("layout", "GGUF twin"),
    defaults={
        "rms_norm_eps": _EPS,
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "ffn_with_glu": True,
        "normalization_layer_name": "rms_norm",
        "tie_word_embeddings": True,
    },
    keys={
        "num_hidden_layers": "num_transformer_layers",
        "hidden_size": "model_dim",
        "max_position_embeddings": "max_context_length",
        "rope_theta": "rope_freq_constant",
    },
    refused={
        "normalize_qk_projections": (True, "heads without norms in this family"),
        "share_input_output_layers": (True, "an LM head of its own in this family"),
        "ffn_with_glu": (True, "MLPs without gates in this family"),
        "normalization_layer_name": ("rms_norm", "another norm"),
    },
    activation_key="activation_fn_name",
    parts={"qk_norm": "head", "tie_embeddings": True},
    spec_from_config=_from_config,
    gguf_architectures=("openelm",),
    spec_from_gguf=_from_gguf,
    tensors={
        "layers": "model.layers",
        "embed": "model.token_embeddings.weight",
        "final_norm": "model.norm.weight",
        "attn_norm": "attn_norm.weight",
        **dict.fromkeys(QKV, "attn.qkv_proj.weight"),
        "o": "attn.out_proj.weight",
        "q_norm": "attn.q_norm.weight",
        "k_norm": "attn.k_norm.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn.proj_1.weight",
        "up": "ffn.proj_1.weight",
        "down": "ffn.proj_2.weight",
    },
    gguf_tensors=GGUF_FUSED_QKV,
)
