"""Laguna: layers that differ in their query heads, a softplus gate after attention, a router after DeepSeek-V3."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.family import (
    ATTENTION_BIAS,
    GGUF_TENSORS,
    QWEN_EXPERT_TENSORS,
    Family,
    GgufHeader,
)
from headrace.inference.models.families.reading import (
    MAX_LAYERS,
    config_router,
    config_spec,
    gguf_experts,
    gguf_spec,
    layer_windows,
    listed_slides,
    with_local_rope,
    with_query_heads,
)
from headrace.inference.models.families.rope_config import rope_from_gguf, rope_from_scaling, scaled_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import FULL, SLIDING
from headrace.inference.models.spec import ModelSpec, RopeSpec

_Gate = Literal["element", "head"]
_ROPES: Final = {
    FULL: {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}
"""Source: transformers `LagunaConfig`."""
_GATES: Final[dict[str, _Gate]] = {"per-head": "head", "per-element": "element"}
_GATE_TENSOR: Final = "attn_gate.weight"
_PERIOD: Final = 4
"""Every fourth layer, from the first one on, attends to the whole context. Source: llama.cpp `laguna.cpp`."""


def _from_config(family: Family, config: Fields) -> ModelSpec:
    moe = config_router(
        config,
        renormalize=True,
        sum_floor=0.0,
        logit_softcap=max(config.number("moe_router_logit_softcapping", 0.0), 0.0),
        shared_size=config.whole("shared_expert_intermediate_size"),
    )
    config.refuse("rope_scaling", "one rotary embedding for all types of layers")
    spec = config_spec(family, config.without("rope_parameters", "rope_theta", "partial_rotary_factor"), moe=moe)
    spec = layer_windows(config, spec, config.whole("sliding_window"), (False,) * spec.num_layers)
    if config.has("num_attention_heads_per_layer"):
        num_heads = config.wholes("num_attention_heads_per_layer", spec.num_layers)
        spec = with_query_heads(spec, num_heads, config.source)
    spec = _with_ropes(spec, lambda layer_type: _rope(config, layer_type, spec))
    max_positions = scaled_positions(spec.ropes[0], spec.max_positions)
    return replace(spec, attention_gate=_gate(config), max_positions=max_positions)


def _gate(config: Fields) -> _Gate:
    """Read the kind of the gates, which must be the same for all layers; `true` stands for one a head."""
    named = [config.values.get("gating"), *config.texts("gating_types")]
    kinds = {"per-head" if kind is True else str(kind).replace("_", "-") for kind in named}
    if len(kinds) > 1 or not kinds.issubset(_GATES):
        raise UnsupportedModel(
            f"{config.source}: gating and gating_types name the gates {', '.join(sorted(kinds))}; expected "
            f"{' or '.join(_GATES)}, the same in all layers. Other gates are not supported."
        )
    return _GATES[kinds.pop()]


def _rope(config: Fields, layer_type: str, spec: ModelSpec) -> RopeSpec:
    parameters = config.sub("rope_parameters") if config.has("rope_parameters") else Fields(_ROPES, config.source)
    if not parameters.has(layer_type):
        raise BrokenModel(f"{parameters.source} has no {layer_type}, which is required.")
    return rope_from_scaling(parameters.sub(layer_type), spec.head_dim, spec.max_positions)


def _with_ropes(spec: ModelSpec, rope_of: Callable[[str], RopeSpec]) -> ModelSpec:
    """Set the rotary embedding of each type of layer that the network has."""
    windows = [spec.window(layer) for layer in range(spec.num_layers)]
    kinds = (FULL, not all(windows)), (SLIDING, any(windows))
    spec = replace(spec, ropes=tuple(rope_of(kind) for kind, is_there in kinds if is_there))
    return with_local_rope(spec) if len(spec.ropes) > 1 else spec


def _from_gguf(family: Family, header: GgufHeader) -> ModelSpec:
    fields = header.fields
    num_layers = min(fields.whole("block_count"), MAX_LAYERS)
    num_heads = fields.wholes("attention.head_count", num_layers)
    plain = Fields({**fields.values, "attention.head_count": num_heads[0]}, fields.source)
    moe = gguf_experts(header, renormalize=True, scoring="sigmoid")
    spec = gguf_spec(family, replace(header, fields=plain), moe=moe)
    window = fields.whole("attention.sliding_window", 0, minimum=0)
    slides = listed_slides(fields, num_layers) or tuple(layer % _PERIOD > 0 for layer in range(num_layers))
    spec = replace(
        with_query_heads(spec, num_heads, fields.source),
        windows=tuple(window * slide for slide in slides) if window else (),
        attention_gate=_gguf_gate(header, num_heads[0], spec.head_dim),
    )
    ropes = {FULL: _gguf_rope(fields, spec.ropes[0]), SLIDING: _gguf_local_rope(fields, spec.head_dim)}
    return _with_ropes(spec, ropes.__getitem__)


def _gguf_rope(fields: Fields, rope: RopeSpec) -> RopeSpec:
    """Return yarn with the attention factor of config.json, which llama.cpp's converter writes if there is one."""
    if rope.kind != "yarn":
        return rope
    return replace(rope, attention_factor=fields.positive("rope.scaling.yarn_attn_factor", rope.attention_factor))


def _gguf_local_rope(fields: Fields, head_dim: int) -> RopeSpec:
    """Return the rope of layers with a window: unscaled, with the values of the other one that it lacks."""
    keys = ("rope.freq_base", "rope.dimension_count")
    own = {key: fields.values.get(f"{key}_swa", fields.values.get(key)) for key in (*keys, "context_length")}
    return rope_from_gguf(Fields(own, fields.source), head_dim, {})


def _gguf_gate(header: GgufHeader, num_heads: int, head_dim: int) -> _Gate:
    """Tell the kind of the gates by the rows of the first layer's; the metadata do not name it."""
    name = f"blk.0.{_GATE_TENSOR}"
    num_rows, _ = header.tensor_shapes.get(name, (0, 0))
    gates: dict[int, _Gate] = {num_heads * head_dim: "element", num_heads: "head"}
    if num_rows not in gates:
        raise BrokenModel(
            f"{header.fields.source}: {name} has {num_rows} rows; expected {num_heads}, one a head, or "
            f"{num_heads * head_dim}."
        )
    return gates[num_rows]


LAGUNA: Final = Family(
    name="laguna",
    models="Laguna (XS.2, S.2, M.1)",
    verified=("transformers", "GGUF twin"),
    # Source: transformers `LagunaConfig`.
    defaults={
        "vocab_size": 100_352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "gating": True,
    },
    keys={"n_routed_experts": "num_experts", "routed_scaling_factor": "moe_routed_scaling_factor"},
    refused={"moe_apply_router_weight_on_input": (False, "factors of experts on their input")},
    bias_flags=ATTENTION_BIAS,
    rotary_fraction=1.0,
    parts={"qk_norm": "head", "gate_activation": "softplus"},
    spec_from_config=_from_config,
    gguf_architectures=("laguna",),
    gguf_biases=("qkv_bias", "o_bias"),
    spec_from_gguf=_from_gguf,
    tensors={
        **QWEN_EXPERT_TENSORS,
        "choice_bias": "mlp.experts.e_score_correction_bias",
        "attn_gate": "self_attn.g_proj.weight",
    },
    gguf_tensors={**GGUF_TENSORS, "attn_gate": _GATE_TENSOR},
)
