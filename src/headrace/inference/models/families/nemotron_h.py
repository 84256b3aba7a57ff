"""
Nemotron-H and Nemotron 3: each layer has one part, a state space model, attention without positions, or an MLP.

MLPs and experts have no gates. transformers limits dt to `time_step_min` and more, but in prompts only; the authors'
code, vLLM and llama.cpp have no such limit, nor has ours.

Layers that predict several tokens (`mtp.*`) are not read: they only propose drafts.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.experts import MoeSpec
from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    EXPERT_INDEX,
    GGUF_TENSORS,
    LLAMA_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.mamba import (
    SSD_GGUF_TENSORS,
    mixers_of_kinds,
    read_gguf_ssd,
    read_ssd,
    ssd_tensors,
    with_mixers,
)
from headrace.inference.models.families.reading import (
    config_router,
    config_spec,
    gguf_attention_layers,
    gguf_experts,
    gguf_spec,
    without_positions,
)
from headrace.inference.models.fields import Fields
from headrace.inference.models.mixers import Mixer
from headrace.inference.models.spec import ModelSpec

_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_MLPS: Final[Mapping[str, Mixer]] = MappingProxyType({"mlp": "none", "moe": "none"})


def _from_config(family: Family, config: Fields) -> ModelSpec:
    kinds = _kinds(config)
    config = Fields({**config.values, "num_hidden_layers": len(kinds)}, config.source)
    moe = _experts(config, kinds) if "moe" in kinds else None
    if moe is not None and "mlp" not in kinds:  # the width of an MLP that no layer has
        config = Fields({**config.values, "intermediate_size": moe.expert_size}, config.source)
    others = config if moe is not None else config.without("n_routed_experts")
    spec = config_spec(family, others, moe=moe)
    mixers = mixers_of_kinds(kinds, config.source, others=_MLPS)
    spec = replace(without_positions(spec), mixers=mixers, mlps=tuple(kind in _MLPS for kind in kinds))
    return with_mixers(spec, read_ssd(config, norm_eps=spec.norm_eps), mixers, config.source)


def _kinds(config: Fields) -> tuple[str, ...]:
    """Return the kind of each layer; older configs have a letter for each."""
    pattern = config.text("hybrid_override_pattern", "")
    kinds = config.texts("layers_block_type") or config.texts("layer_types")
    if unknown := set(pattern) - set(_LETTERS):
        raise UnsupportedModel(
            f"{config.source}: hybrid_override_pattern has layers of type {', '.join(sorted(unknown))}, which are not "
            "supported.",
            key="hybrid_override_pattern",
        )
    kinds = kinds or tuple(_LETTERS[letter] for letter in pattern)
    if not kinds:
        raise BrokenModel(f"{config.source} has no layers_block_type, which is required.", key="layers_block_type")
    return kinds


def _experts(config: Fields, kinds: tuple[str, ...]) -> MoeSpec:
    return config_router(
        config,
        layers=tuple(kind == "moe" for kind in kinds),
        shared_size=config.whole("moe_shared_expert_intermediate_size", 7688),
        latent_size=config.whole("moe_latent_size") if config.has("moe_latent_size") else 0,
    )


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    """Read GGUF metadata, which lists the KV heads of each layer and the width of its MLP, 0 where there is none."""
    header, attends = gguf_attention_layers(header)
    widths = header.fields.numbers("feed_forward_length")
    if len(widths) != len(attends) or len({width for width in widths if width}) > 1:
        raise BrokenModel(
            f"{header.fields.source}: feed_forward_length is {list(widths)!r:.200}; expected the same number or 0 for "
            "each layer."
        )
    fields = Fields({**header.fields.values, "feed_forward_length": int(max(widths)) or 1}, header.fields.source)
    header = replace(header, fields=fields)
    has_experts = fields.whole("expert_count", 0, minimum=0) > 0
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid", sum_floor=1e-20) if has_experts else None
    spec = without_positions(gguf_spec(family, header, moe=moe))
    layers = zip(attends, widths, strict=True)
    kinds = ["attention" if attention else "mlp" if width else "mamba" for attention, width in layers]
    mixers = mixers_of_kinds(kinds[: spec.num_layers], fields.source, others=_MLPS)
    spec = replace(spec, mlps=tuple(mixer == "none" for mixer in mixers))
    return with_mixers(spec, read_gguf_ssd(header, norm_eps=spec.norm_eps), mixers, fields.source)


NEMOTRON_H: Final = Family(
    name="nemotron_h",
    models="Nemotron-H, Nemotron Nano 2 and 3",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `NemotronHConfig`.
    defaults={
        "mlp_hidden_act": "relu2",
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_norm_epsilon": 1e-5,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "n_routed_experts": 8,
        "moe_intermediate_size": 7688,
        "num_experts_per_tok": 2,
    },
    keys={
        "rms_norm_eps": "layer_norm_epsilon",
        "mamba_n_heads": "mamba_num_heads",
        "mamba_d_head": "mamba_head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_d_state": "ssm_state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
    },
    refused={
        "use_bias": (False, "biases of a state space model's matrices"),
        "mamba_hidden_act": ("silu", "another activation of a state space model"),
        "mlp_bias": (False, "biases in the MLP"),
    },
    activation="relu2",
    activation_key="mlp_hidden_act",
    bias_flags=ATTENTION_BIAS,
    parts={"mlp": "plain"},
    spec_from_config=_from_config,
    gguf_architectures=("nemotron_h", "nemotron_h_moe"),
    spec_from_gguf=_from_gguf,
    tensors={
        **LLAMA_TENSORS,
        **ssd_tensors("mixer"),
        "embed": "model.embeddings.weight",
        "final_norm": "model.norm_f.weight",
        **dict.fromkeys(("attn_norm", "mlp_norm"), "norm.weight"),
        **{part: f"mixer.{part}_proj.weight" for part in ("q", "k", "v", "o", "up", "down")},
        "router": "mixer.gate.weight",
        "choice_bias": "mixer.gate.e_score_correction_bias",
        "latent_down": "mixer.fc1_latent_proj.weight",
        "latent_up": "mixer.fc2_latent_proj.weight",
        **{f"expert_{part}": f"mixer.experts.{EXPERT_INDEX}.{part}_proj.weight" for part in ("up", "down")},
        **{f"shared_{part}": f"mixer.shared_experts.{part}_proj.weight" for part in ("up", "down")},
    },
    gguf_tensors={**SSD_GGUF_TENSORS, "mlp_norm": GGUF_TENSORS["attn_norm"]},
)
