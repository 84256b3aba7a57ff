"""Read rotary embedding settings: `rope_parameters` (transformers 5), `rope_scaling` (before), GGUF metadata."""

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.fields import Fields
from headrace.models.rope import inverse_frequencies, llama3_divisors
from headrace.models.spec import RopeSpec

LLAMA3_CONTEXT_TOKENS = 8192
"""The context that Llama 3 was trained with before its extension; GGUF files do not have it."""


def rope_from_config(config: Fields, default_theta: float = 10000.0) -> RopeSpec:
    """Read the rotary embedding of a config that has the same one for all layers."""
    parameters = config.sub("rope_parameters")
    for layer_type in ("full_attention", "sliding_attention"):
        parameters.refuse(layer_type, "a separate rotary embedding for each type of layer")
    scaling = parameters if parameters.values else config.sub("rope_scaling")
    theta = scaling.positive("rope_theta", config.positive("rope_theta", default_theta))
    return rope_from_scaling(scaling, theta, config.whole("max_position_embeddings", 2048))


def rope_from_scaling(scaling: Fields, theta: float, max_positions: int) -> RopeSpec:
    """
    Read a `rope_scaling` object.

    Raises:
        UnsupportedModel: the type of scaling is unknown; the message names it.
    """
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    scaling.refuse("partial_rotary_factor", "a partial rotary embedding", unless=(1.0, 1))
    original = scaling.whole("original_max_position_embeddings", max_positions)
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=_factor(scaling), original_max_positions=original)
    if kind == "dynamic":
        return RopeSpec(theta=theta, kind="dynamic", factor=_factor(scaling), original_max_positions=max_positions)
    if kind == "llama3":
        return _llama3(scaling, theta)
    raise UnsupportedModel(
        f"{scaling.source}: rope scaling of type {kind!r} is not supported (default, linear, dynamic and llama3 are).",
        rope_type=kind,
    )


def rope_from_gguf(fields: Fields, head_dim: int, divisors: tuple[float, ...] | None) -> RopeSpec:
    """Read the rotary embedding of a GGUF file; `divisors` is its tensor `rope_freqs.weight`."""
    theta = fields.positive("rope.freq_base", 10000.0)
    kind = fields.text("rope.scaling.type", "none")
    original = fields.whole("rope.scaling.original_context_length", fields.whole("context_length"))
    if divisors is not None:
        return _llama3_from_divisors(fields, theta, head_dim, divisors)
    if kind == "none":
        return RopeSpec(theta=theta)
    if kind == "linear":
        factor = fields.positive("rope.scaling.factor")
        return RopeSpec(theta=theta, kind="linear", factor=factor, original_max_positions=original)
    raise UnsupportedModel(
        f"{fields.source}: rope scaling of type {kind!r} is not supported in GGUF files (none and linear are).",
        rope_type=kind,
    )


def _factor(scaling: Fields) -> float:
    factor = scaling.number("factor")
    if factor < 1:
        raise BrokenModel(f"{scaling.source}: factor is {factor}; expected at least 1.")
    return factor


def _llama3(scaling: Fields, theta: float) -> RopeSpec:
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if low >= high:
        raise BrokenModel(f"{scaling.source}: low_freq_factor {low} must be below high_freq_factor {high}.")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=_factor(scaling),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=scaling.whole("original_max_position_embeddings"),
    )


def _llama3_from_divisors(fields: Fields, theta: float, head_dim: int, divisors: tuple[float, ...]) -> RopeSpec:
    """Recover Llama 3's scaling parameters from its divisors, one per frequency, which GGUF files store."""
    if len(divisors) != head_dim // 2 or not all(divisor >= 1 for divisor in divisors):
        raise BrokenModel(f"{fields.source}: rope_freqs.weight must hold {head_dim // 2} numbers of at least 1.")
    rope = RopeSpec(
        theta=theta,
        kind="llama3",
        factor=max(divisors),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=LLAMA3_CONTEXT_TOKENS,
    )
    expected = llama3_divisors(rope, inverse_frequencies(RopeSpec(theta=theta), head_dim))
    if not np.allclose(expected, divisors, rtol=1e-3):
        raise UnsupportedModel(
            f"{fields.source}: the rope scaling in rope_freqs.weight is not Llama 3's; others are not supported."
        )
    return rope
