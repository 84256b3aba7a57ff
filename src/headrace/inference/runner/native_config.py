"""Convert `ModelSpec` and `RunnerLimits` to the structures of the native module."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from headrace import _native
from headrace.core.errors import UnsupportedModel
from headrace.inference.models.attention import AttentionShape
from headrace.inference.models.latent import MlaSpec
from headrace.inference.models.mixers import SsdSpec
from headrace.inference.models.rope import inverse_frequencies
from headrace.inference.models.spec import ModelSpec, RopeSpec
from headrace.inference.runner.step import RunnerLimits

NO_FORMATS: Final[Mapping[str, str]] = MappingProxyType({})
# Fields that the native structures have under the same names.
_SPEC: Final = (
    *("num_layers", "hidden_size", "intermediate_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim"),
    *("norm", "norms", "norm_bias", "norm_eps", "activation", "embedding_norm", "first_attn_norm", "tie_embeddings"),
    *("qkv_bias", "o_bias", "mlp_bias", "head_bias", "qkv_clip", "embedding_scale", "attention_softcap"),
    *("logit_softcap", "swiglu_limit", "sinks", "gate_activation"),
    *("value_norm", "layer_scales", "layer_input_size"),
)
_SHAPE: Final = ("num_heads", "num_kv_heads", "head_dim", "keys_as_values")
_MLA: Final = ("query_rank", "key_dim", "rope_dim", "value_dim")
_EXPERTS: Final = (
    *("num_experts", "top_k", "expert_size", "num_shared_experts", "renormalize", "expert_bias", "router_bias"),
    *("scoring", "group_score", "num_groups", "top_groups", "choice_bias", "sum_floor", "factor_scale"),
    *("latent_size", "own_norms"),
)
_DELTA: Final = (
    *("key_heads", "value_heads", "key_dim", "value_dim", "taps"),
    *("is_tiled", "beta_scale", "norm_eps", "by_channel"),
)
"""Fields of `DeltaSpec`, which the native structure has with the prefix `delta_`."""
_LIMITS: Final = (
    *("num_blocks", "max_step_tokens", "max_step_sequences", "max_step_rows", "max_context_tokens"),
    *("max_adapters", "max_adapter_rank", "num_state_slots", "max_draft_tokens"),
)


def native_config(
    spec: ModelSpec,
    *,
    dtype: str,
    kv_dtype: str,
    max_context_tokens: int,
    layer_formats: Mapping[str, str] = NO_FORMATS,
) -> _native.ModelConfig:
    """
    Return the native configuration of a network.

    `dtype` is bf16, w8a16, w8a8, w4a16 or w4a8, `kv_dtype` bf16 or int8; `max_context_tokens` resolves dynamic and
    long rope scaling.
    `layer_formats` names the packed matrices that are not plain w4 in w4a8 and w4a16 (see `packing.layer_formats_of`).
    """
    config = _native.ModelConfig()
    config.dtype, config.kv_dtype = dtype, kv_dtype
    _copy(_SPEC, spec, config)
    config.post_norm_eps = spec.post_norm_eps or spec.norm_eps
    config.parallel, config.shared_norm = spec.parallel is not None, spec.parallel == "one"
    config.gated_mlp, config.qk_norm = spec.mlp == "gated", spec.qk_norm or ""
    config.attention_gate = spec.attention_gate or ""
    config.num_positions, config.num_token_types = spec.learned_positions, spec.token_types
    config.causal, config.attention_scale = spec.is_causal, spec.attention_scale
    config.attention_shapes = [_native_shape(shape) for shape in spec.attention_shapes]
    config.intermediate_sizes = list(spec.intermediate_sizes)
    config.kv_sources = [spec.kv_source(layer) for layer in range(spec.num_layers)]
    config.mixers, config.state_norms = list(spec.mixers), spec.state_norms or ""
    config.mlps, config.attention_beside = list(spec.mlps), spec.attention_beside
    config.conv_taps = spec.conv.taps if spec.conv is not None else 0
    if spec.delta is not None:
        for name in _DELTA:
            setattr(config, f"delta_{name}", getattr(spec.delta, name))
    if spec.ssd is not None:
        _set_ssd(config, spec.ssd)
    if spec.mla is not None:
        config.mla = _native_mla(spec, spec.mla)
    if (moe := spec.moe) is not None:
        _copy(_EXPERTS, moe, config)
        config.shared_gate, config.expert_tolerance = moe.has_shared_router, moe.tolerance
        config.router_softcap = moe.logit_softcap
        config.shared_size = moe.shared_size if moe.has_shared_mlp else 0
        config.expert_layers = list(moe.layers)
    config.layer_formats = dict(layer_formats)
    config.windows = list(spec.windows)
    config.distance_slopes = list(spec.distance_slopes)
    _set_ropes(config, spec, max_context_tokens)
    return config


def _set_ssd(config: _native.ModelConfig, ssd: SsdSpec) -> None:
    if ssd.norm == "before_gate":
        raise UnsupportedModel(
            "The native backend has no state space models whose norm precedes the gate. Use --backend transformers."
        )
    config.conv_taps, config.conv_bias = ssd.taps, ssd.conv_bias
    config.ssd_heads, config.ssd_head_dim = ssd.heads, ssd.head_dim
    config.ssd_state_size, config.ssd_groups = ssd.state_size, ssd.groups
    config.ssd_norm, config.ssd_norm_eps = ssd.norm is not None, ssd.norm_eps


def native_limits(limits: RunnerLimits) -> _native.Limits:
    native = _native.Limits()
    _copy(_LIMITS, limits, native)
    return native


def _native_shape(shape: AttentionShape) -> _native.AttentionShape:
    native = _native.AttentionShape()
    _copy(_SHAPE, shape, native)
    return native


def _native_mla(spec: ModelSpec, mla: MlaSpec) -> _native.Mla:
    native = _native.Mla()
    _copy(_MLA, mla, native)
    native.rank, native.eps = mla.kv_rank, mla.norm_eps
    native.growth, native.growth_period = spec.query_growth, spec.growth_period
    return native


def _copy(names: Iterable[str], source: object, target: object) -> None:
    for name in names:
        setattr(target, name, getattr(source, name))


def _set_ropes(config: _native.ModelConfig, spec: ModelSpec, max_context_tokens: int) -> None:
    """Set a table for each rotary embedding and size of heads; layers without one get pairs that do not turn."""
    tables: dict[tuple[RopeSpec | None, int], int] = {}
    layers = [(spec.rope(layer), spec.rope_head_dim(layer)) for layer in range(spec.num_layers)]
    config.rope_of_layer = [tables.setdefault(table, len(tables)) for table in layers]
    config.rope_frequencies = [
        [0.0] * (head_dim // 2) if rope is None else inverse_frequencies(rope, head_dim, max_context_tokens).tolist()
        for rope, head_dim in tables
    ]
    config.rope_factors = [1.0 if rope is None else rope.attention_factor for rope, _ in tables]
