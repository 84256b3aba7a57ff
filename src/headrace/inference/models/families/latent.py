"""Read the keys of latent attention (DeepSeek-V2) in configs and GGUF metadata; families differ by their experts."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import (
    DEEPSEEK_EXPERT_TENSORS,
    GGUF_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec, is_null
from headrace.inference.models.fields import Fields
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.rope import yarn_attention_factor
from headrace.inference.models.spec import ModelSpec

LATENT_TENSORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **DEEPSEEK_EXPERT_TENSORS,
        "q_a": "self_attn.q_a_proj.weight",
        "q_a_norm": "self_attn.q_a_layernorm.weight",
        "q_b": "self_attn.q_b_proj.weight",
        "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
        "kv_a_norm": "self_attn.kv_a_layernorm.weight",
        **dict.fromkeys(("k_b", "v_b"), "self_attn.kv_b_proj.weight"),
    }
)
"""Names in checkpoints of all families with latent attention."""
_MAX_NUMBERS: Final = 1 << 24
"""Largest size of a vector that has a part for each head."""
_YARN_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"
_GGUF_MULTIPLIER_SCALE: Final = 0.1
"""Converters write the multiplier times this (llama.cpp pull request 17945)."""


def without_query_latent(family: Family, spec: ModelSpec) -> Family:
    """Return the family with the names of a network whose queries come from the hidden state (`variant`)."""
    if spec.mla is None or spec.mla.query_rank:
        return family
    return replace(
        family,
        tensors={**family.tensors, "q_b": "self_attn.q_proj.weight"},
        gguf_tensors={**family.gguf_tensors, "q_b": GGUF_TENSORS["q"]},
    )


def latent_config_spec(
    family: Family, config: Fields, *, moe: MoeSpec | None = None, query_rank: int = 1536
) -> ModelSpec:
    """Read a config.json; `query_rank` is the default of the family."""
    mla = MlaSpec(
        kv_rank=config.whole("kv_lora_rank", 512),
        query_rank=0 if is_null(config, "q_lora_rank") else config.whole("q_lora_rank", query_rank),
        key_dim=config.whole("qk_nope_head_dim", 128),
        rope_dim=config.whole("qk_rope_head_dim", 64),
        value_dim=config.whole("v_head_dim", 128),
    )
    rope = config.sub("rope_parameters" if config.sub("rope_parameters").values else "rope_scaling")
    scaling = rope.without("partial_rotary_factor", "llama_4_scaling_beta")
    values = {**config.without("rope_scaling", "partial_rotary_factor").values, "rope_parameters": scaling.values}
    heads = {"head_dim": mla.rope_dim, "num_key_value_heads": config.whole("num_attention_heads")}
    spec = config_spec(family, Fields({**values, **heads}, config.source), moe=moe)
    multiplier = scaling.number("mscale_all_dim", 0.0) if spec.ropes[0].kind != "default" else 0.0
    spec = _with_latents(spec, mla, multiplier, config.source)
    growth = rope.number("llama_4_scaling_beta", 0.0)
    return replace(spec, query_growth=growth, growth_period=spec.ropes[0].original_max_positions) if growth else spec


def latent_gguf_spec(family: Family, header: GgufHeader, *, moe: MoeSpec | None = None) -> ModelSpec:
    """Read GGUF metadata; files from before May 2025 have the sizes of heads as if each had a key of its own."""
    fields = header.fields
    rope_dim = fields.whole("rope.dimension_count")
    heads = fields.whole("attention.head_count")
    query_dim = fields.whole("attention.key_length_mla", fields.whole("attention.key_length"))
    value_dim = fields.whole("attention.value_length", fields.whole("embedding_length") // heads)
    if query_dim <= rope_dim:
        raise BrokenModel(f"{fields.source}: heads have {query_dim} numbers, of which {rope_dim} turn; expected more.")
    mla = MlaSpec(
        kv_rank=fields.whole("attention.kv_lora_rank"),
        query_rank=fields.whole("attention.q_lora_rank", 0, minimum=0),
        key_dim=query_dim - rope_dim,
        rope_dim=rope_dim,
        value_dim=fields.whole("attention.value_length_mla", value_dim),
    )
    sizes = dict.fromkeys(("attention.key_length", "attention.value_length"), rope_dim)
    values = {**fields.without(_YARN_MULTIPLIER).values, **sizes, "attention.head_count_kv": heads}
    spec = gguf_spec(family, replace(header, fields=Fields(values, fields.source)), moe=moe)
    multiplier = fields.number(_YARN_MULTIPLIER, 0.0) / _GGUF_MULTIPLIER_SCALE
    if multiplier and spec.ropes[0].kind == "yarn":  # its other half, `mscale`, is the same in all released models
        factor = fields.positive("rope.scaling.attn_factor", 1.0)
        spec = replace(spec, ropes=(replace(spec.ropes[0], attention_factor=factor),))
    return _with_latents(spec, mla, multiplier, fields.source)


def _with_latents(spec: ModelSpec, mla: MlaSpec, yarn_multiplier: float, source: str) -> ModelSpec:
    """Return a spec read with heads of the rotated size only, with the one KV head of latent attention."""
    sizes = {"latent": mla.kv_rank, "query": mla.query_dim, "value": mla.value_dim, "query latent": mla.query_rank}
    for name, size in sizes.items():
        if size * spec.num_heads > _MAX_NUMBERS:
            raise BrokenModel(
                f"{source}: {spec.num_heads} heads with a {name} of {size} numbers; expected at most {_MAX_NUMBERS}."
            )
    stretch = yarn_attention_factor(spec.ropes[0].factor, yarn_multiplier) if yarn_multiplier else 1.0
    return replace(
        spec,
        mla=mla,
        head_dim=mla.kv_rank + mla.rope_dim,
        num_kv_heads=1,
        attention_scale=mla.query_dim**-0.5 * stretch**2,
    )


def dense_up_to(spec: ModelSpec, positions: int) -> ModelSpec:
    """End the context where an indexer would begin to choose the positions that a token attends to."""
    if positions >= spec.max_positions:
        return spec
    return replace(spec, max_positions=positions, context_limit="its attention is sparse beyond")
