"""
Write a `ModelSpec` as a Hugging Face `config.json`, for checkpoints without one (GGUF files).

The keys of every family are supported. The result is read back and must yield the same spec.
"""

from dataclasses import replace
from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.families.family import Family
from headrace.models.families.registry import FAMILIES, from_config
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, RopeSpec

_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def family_of(spec: ModelSpec) -> Family:
    """
    Return the family that read a spec.

    Raises:
        UnsupportedModel: the spec belongs to no family.
    """
    for family in FAMILIES:
        if family.name == spec.family:
            return family.variant_of(spec)
    raise UnsupportedModel(f"No family is called {spec.family!r}.", family=spec.family)


def config_from_spec(spec: ModelSpec) -> dict[str, object]:
    """
    Return the config of a network.

    Raises:
        UnsupportedModel: a config.json cannot describe this network.
    """
    family = family_of(spec)
    config = {"architectures": [_ARCHITECTURES.get(spec.family, "")], "model_type": family.model_types[0]}
    values: dict[str, object] = config | _sizes(spec) | _rope(spec) | _windows(spec)
    if spec.family == "gemma3":
        values |= _gemma(spec)
    else:
        values |= {"hidden_act": "silu", "attention_bias": spec.qkv_bias and spec.family != "qwen2"}
    _, again = from_config(Fields(values, "the config.json to be written"))
    if _without_rounding(again) != _without_rounding(spec):
        raise UnsupportedModel(
            f"A config.json of the family {spec.family} cannot describe this network, so it cannot be written as a "
            "Hugging Face folder. Use its original checkpoint, if this is a GGUF file, or serve it with --dtype w8a8.",
            family=spec.family,
        )
    return values


def _sizes(spec: ModelSpec) -> dict[str, object]:
    rope = spec.ropes[0]
    stretched = rope.kind in {"linear", "dynamic"} and spec.family != "gemma3"
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": round(spec.max_positions / rope.factor) if stretched else spec.max_positions,
        "rms_norm_eps": _shortest(spec.norm_eps),
        "tie_word_embeddings": spec.tie_embeddings,
    }


def _rope(spec: ModelSpec) -> dict[str, object]:
    rope, *local = spec.ropes
    values: dict[str, object] = {"rope_theta": rope.theta}
    if rope.kind != "default":
        values["rope_scaling"] = _scaling(rope)
    if local:
        values["rope_local_base_freq"] = local[0].theta
    return values


def _scaling(rope: RopeSpec) -> dict[str, object]:
    values: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        values |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_positions,
        }
    return values


def _windows(spec: ModelSpec) -> dict[str, object]:
    sliding = [window for window in spec.windows if window]
    if not sliding:
        return {"sliding_window": None} if spec.family == "mistral" else {}
    values: dict[str, object] = {"sliding_window": sliding[0]}
    if spec.family != "mistral":
        values["layer_types"] = [
            "sliding_attention" if spec.window(layer) else "full_attention" for layer in range(spec.num_layers)
        ]
    return values | ({"use_sliding_window": True} if spec.family.startswith("qwen") else {})


def _gemma(spec: ModelSpec) -> dict[str, object]:
    scalar = spec.attention_scale**-2
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar,
        "attention_bias": False,
    }


def _without_rounding(spec: ModelSpec) -> ModelSpec:
    """Return the spec without the fields that GGUF files hold in lower precision, or not at all."""
    ropes = [
        replace(rope, original_max_positions=0) if rope.kind in {"linear", "dynamic"} else rope for rope in spec.ropes
    ]
    return replace(
        spec,
        norm_eps=_shortest(spec.norm_eps),
        attention_scale=round(spec.attention_scale, 9),
        ropes=tuple(ropes),
    )


def _shortest(value: float) -> float:
    """Return the shortest decimal of a float32 (GGUF files hold those): 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")
