"""StableLM and StableLM 2: layer norms, a quarter of each head turns; the 12B has norms of q and k by head."""

from dataclasses import replace
from typing import Final

from headrace.inference.models.families.family import HEAD_INDEX, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec


def _from_config(family: Family, config: Fields) -> ModelSpec:
    return replace(
        config_spec(family, config),
        qk_norm="layer" if config.flag("qk_layernorm", default=False) else None,
        parallel="one" if config.flag("use_parallel_residual", default=False) else None,
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    return replace(
        gguf_spec(family, header),
        qk_norm="layer" if "blk.0.attn_q_norm.weight" in header.tensor_shapes else None,
        parallel=None if "blk.0.ffn_norm.weight" in header.tensor_shapes else "one",
    )


STABLELM: Final = Family(
    name="stablelm",
    models="StableLM, StableLM 2",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `StableLmConfig`.
    defaults={"max_position_embeddings": 4096, "num_key_value_heads": 32, "layer_norm_eps": 1e-5},
    keys={"rms_norm_eps": "layer_norm_eps"},
    bias_flags={"qkv_bias": "use_qkv_bias"},
    rotary_fraction=0.25,
    parts={"norm": "layer", "norm_bias": True},
    spec_from_config=_from_config,
    gguf_architectures=("stablelm",),
    gguf_biases=("qkv_bias",),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        "q_norm": f"self_attn.q_layernorm.norms.{HEAD_INDEX}.weight",
        "k_norm": f"self_attn.k_layernorm.norms.{HEAD_INDEX}.weight",
    },
)
