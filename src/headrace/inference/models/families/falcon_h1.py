"""Falcon-H1: a state space model and attention side by side in each layer, and factors of most matrices (muP)."""

from dataclasses import replace
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import ATTENTION_BIAS, LLAMA_TENSORS, Family, GgufHeader
from headrace.inference.models.families.mamba import (
    SSD_GGUF_TENSORS,
    read_gguf_ssd,
    read_ssd,
    ssd_tensors,
    with_ssd,
)
from headrace.inference.models.families.reading import config_spec, gguf_spec
from headrace.inference.models.fields import Fields
from headrace.inference.models.spec import ModelSpec

_TENSORS: Final = {
    **LLAMA_TENSORS,
    **ssd_tensors("mamba"),
    "ssd.o": LLAMA_TENSORS["o"],
    "mix_out": "mamba.out_proj.weight",
    "final_norm": "model.final_layernorm.weight",
    "mlp_norm": "pre_ff_layernorm.weight",
    **{part: f"feed_forward.{part}_proj.weight" for part in ("gate", "up", "down")},
}


def _from_config(family: Family, config: Fields) -> ModelSpec:
    spec = config_spec(family, config)
    ssd = read_ssd(config, norm_eps=spec.norm_eps)
    if not config.flag("mamba_rms_norm", default=False):
        ssd = replace(ssd, norm=None)
    elif config.flag("mamba_norm_before_gate", default=True):
        raise UnsupportedModel(
            f"{config.source}: mamba_norm_before_gate is true; the native backend has no norm before the gate of a "
            "state space model. Use --backend vllm.",
            key="mamba_norm_before_gate",
        )
    spec = replace(
        spec,
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        logit_scale=config.positive("lm_head_multiplier", 1.0),
        weight_factors=_factors(config),
        attention_beside=True,
    )
    return with_ssd(spec, ssd, [True] * spec.num_layers, config.source)


def _factors(config: Fields) -> tuple[tuple[str, float], ...]:
    attention_in = config.number("attention_in_multiplier", 1.0)
    ssd_in = config.number("ssm_in_multiplier", 1.0)
    rows, mlp = config.numbers("ssm_multipliers") or (1.0,) * 5, config.numbers("mlp_multipliers") or (1.0,) * 2
    if len(rows) != 5 or len(mlp) != 2:
        raise BrokenModel(
            f"{config.source} has {len(rows)} ssm_multipliers and {len(mlp)} mlp_multipliers; expected 5 and 2."
        )
    *parts, dt = rows
    return (
        ("q", attention_in),
        ("k", attention_in * config.number("key_multiplier", 1.0)),
        ("v", attention_in),
        ("o", config.number("attention_out_multiplier", 1.0)),
        *((f"mix_in.{part}", ssd_in * factor) for part, factor in zip("zxbc", parts, strict=True)),
        ("mix_small", ssd_in * dt),
        ("mix_out", config.number("ssm_out_multiplier", 1.0)),
        ("gate", mlp[0]),
        ("down", mlp[1]),
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata; the converter multiplies all factors."""
    spec = replace(gguf_spec(family, header), attention_beside=True)
    ssd = read_gguf_ssd(header, norm_eps=spec.norm_eps)
    return with_ssd(spec, ssd, [True] * spec.num_layers, header.fields.source)


FALCON_H1: Final = Family(
    name="falcon_h1",
    models="Falcon-H1",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `FalconH1Config`.
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
    },
    refused={"projectors_bias": (False, "biases of projections")},
    bias_flags=ATTENTION_BIAS,
    spec_from_config=_from_config,
    gguf_architectures=("falcon-h1",),
    spec_from_gguf=_from_gguf,
    tensors=_TENSORS,
    gguf_tensors={
        **SSD_GGUF_TENSORS,
        "mlp_norm": "ffn_norm",  # without a suffix
        "ssd.o": SSD_GGUF_TENSORS["o"],
        "mix_out": SSD_GGUF_TENSORS["ssd.o"],
    },
)
