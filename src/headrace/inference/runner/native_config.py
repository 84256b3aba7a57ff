"""Convert `ModelSpec` and `RunnerLimits` to the structures of the native module."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace import _native
from headrace.inference.models.rope import inverse_frequencies
from headrace.inference.models.spec import ModelSpec, MoeSpec
from headrace.inference.runner.step import RunnerLimits

NO_FORMATS: Final[Mapping[str, str]] = MappingProxyType({})


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
    config.num_layers, config.hidden_size = spec.num_layers, spec.hidden_size
    config.intermediate_size, config.vocab_size = spec.intermediate_size, spec.vocab_size
    config.num_heads, config.num_kv_heads, config.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    config.norm, config.norms, config.norm_bias = spec.norm, spec.norms, spec.norm_bias
    config.parallel, config.shared_norm = spec.parallel is not None, spec.parallel == "one"
    config.gated_mlp, config.activation = spec.mlp == "gated", spec.activation
    config.num_positions, config.causal = spec.learned_positions, spec.is_causal
    config.embedding_norm, config.num_token_types = spec.embedding_norm, spec.token_types
    config.first_attn_norm = spec.first_attn_norm
    config.tie_embeddings = spec.tie_embeddings
    config.qkv_bias, config.o_bias = spec.qkv_bias, spec.o_bias
    config.mlp_bias, config.head_bias = spec.mlp_bias, spec.head_bias
    config.qk_norm, config.qkv_clip = spec.qk_norm or "", spec.qkv_clip
    config.norm_eps = spec.norm_eps
    config.embedding_scale, config.attention_scale = spec.embedding_scale, spec.scale
    config.attention_softcap, config.logit_softcap = spec.attention_softcap, spec.logit_softcap
    config.swiglu_limit, config.sinks = spec.swiglu_limit, spec.sinks
    if spec.moe is not None:
        _set_experts(config, spec.moe)
    config.layer_formats = dict(layer_formats)
    config.windows = list(spec.windows)
    _set_ropes(config, spec, max_context_tokens)
    return config


def native_limits(limits: RunnerLimits) -> _native.Limits:
    native = _native.Limits()
    native.num_blocks, native.max_context_tokens = limits.num_blocks, limits.max_context_tokens
    native.max_step_tokens, native.max_step_rows = limits.max_step_tokens, limits.max_step_rows
    native.max_step_sequences = limits.max_step_sequences
    native.max_adapters, native.max_adapter_rank = limits.max_adapters, limits.max_adapter_rank
    return native


def _set_ropes(config: _native.ModelConfig, spec: ModelSpec, max_context_tokens: int) -> None:
    """Set the rotary embeddings; layers without one get a table of pairs that do not turn."""
    frequencies = [inverse_frequencies(rope, spec.head_dim, max_context_tokens).tolist() for rope in spec.ropes]
    factors = [rope.attention_factor for rope in spec.ropes]
    if -1 in spec.rope_of_layer:
        frequencies.append([0.0] * (spec.head_dim // 2))
        factors.append(1.0)
    config.rope_frequencies, config.rope_factors = frequencies, factors
    config.rope_of_layer = [len(factors) - 1 if rope < 0 else rope for rope in spec.rope_of_layer]


def _set_experts(config: _native.ModelConfig, moe: MoeSpec) -> None:
    config.num_experts, config.top_k, config.expert_size = moe.num_experts, moe.top_k, moe.expert_size
    config.num_shared_experts, config.shared_gate = moe.num_shared_experts, moe.has_shared_router
    config.renormalize, config.expert_tolerance = moe.renormalize, moe.tolerance
    config.expert_bias, config.router_bias = moe.expert_bias, moe.router_bias
    config.expert_layers = list(moe.layers)
