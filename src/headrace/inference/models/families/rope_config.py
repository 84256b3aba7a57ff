"""Read rotary embedding settings: `rope_parameters` (transformers 5), `rope_scaling` (before), GGUF metadata."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import (
    inverse_frequencies,
    llama3_divisors,
    longrope_attention_factor,
    yarn_attention_factor,
)
from headrace.inference.models.spec import RopeSpec

ROPE_TENSORS: Final = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of GGUF files with one number for each rotary pair."""
LLAMA3_CONTEXT_TOKENS: Final = 8192
"""The context that Llama 3 was trained with before its extension; GGUF files do not have it."""


_SYNONYMS = {"su": "longrope", "mrope": "default"}
"""Old names, and mrope for images, which is the default embedding for text."""


def rope_from_config(
    config: Fields, head_dim: int, *, default_theta: float = 10000.0, default_fraction: float = 1.0
) -> RopeSpec:
    """Read the rotary embedding of a config that has the same one for all layers."""
    parameters = config.sub("rope_parameters")
    for layer_type in ("full_attention", "sliding_attention"):
        parameters.refuse(layer_type, "a separate rotary embedding for each type of layer")
    scaling = parameters if parameters.values else config.sub("rope_scaling")
    common = {
        "rope_theta": config.positive("rope_theta", default_theta),
        "partial_rotary_factor": config.positive("partial_rotary_factor", default_fraction),
        "original_max_position_embeddings": config.whole("max_position_embeddings", 2048),
    }
    values = common | {key: value for key, value in scaling.values.items() if value is not None}
    if config.has("original_max_position_embeddings"):
        values["original_max_position_embeddings"] = config.whole("original_max_position_embeddings")
    return rope_from_scaling(Fields(values, scaling.source), head_dim, config.whole("max_position_embeddings", 2048))


def rope_from_scaling(scaling: Fields, head_dim: int, max_positions: int) -> RopeSpec:
    """
    Read the `rope_parameters` of transformers 5, whose theta is in the object.

    Raises `UnsupportedModel` for an unknown type of scaling.
    """
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    plain = RopeSpec(theta=_theta(scaling, "rope_theta"), rotary_dim=_rotary_dim(scaling, head_dim))
    scaling.refuse("llama_4_scaling_beta", "scaling of queries by position")
    read = _KINDS.get(_SYNONYMS.get(kind, kind))
    if read is None:
        raise UnsupportedModel(
            f"{scaling.source}: rope scaling of type {kind!r:.200} is not supported ({', '.join(_KINDS)} are).",
            rope_type=kind,
        )
    rope = read(scaling, plain, max_positions)
    return checked_longrope(rope, head_dim, scaling.source) if rope.kind == "longrope" else rope


def scaled_positions(rope: RopeSpec, max_positions: int) -> int:
    """Return the longest context of a network whose config says `max_position_embeddings`."""
    if rope.kind in {"linear", "dynamic"}:
        return int(max_positions * rope.factor)
    if rope.kind == "yarn":
        return max(max_positions, int(rope.factor * rope.original_max_positions))
    return max_positions


def rope_from_gguf(fields: Fields, head_dim: int, tensors: Mapping[str, tuple[float, ...]]) -> RopeSpec:
    """Read the rotary embedding of a GGUF file; `tensors` are those of `ROPE_TENSORS` that it has."""
    rotary_dim = fields.whole("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        _check_rotary_dim(rotary_dim, head_dim, f"{fields.source}: rope.dimension_count is {rotary_dim}")
    plain = RopeSpec(
        theta=_theta(fields, "rope.freq_base", 10000.0), rotary_dim=0 if rotary_dim == head_dim else rotary_dim
    )
    kind = fields.text("rope.scaling.type", "none")
    original = fields.whole("rope.scaling.original_context_length", fields.whole("context_length"))
    attention_factor = fields.positive("rope.scaling.attn_factor", 1.0)
    fields.refuse("rope.scaling.yarn_log_multiplier", "a multiplier of yarn's attention factor", unless=(0.0,))
    if "rope_freqs.weight" in tensors:
        return _llama3_from_divisors(fields, plain, head_dim, tensors["rope_freqs.weight"])
    rope = replace(plain, original_max_positions=original, attention_factor=attention_factor)
    if "rope_factors_long.weight" in tensors:
        long, short = tensors["rope_factors_long.weight"], tensors.get("rope_factors_short.weight", ())
        return checked_longrope(
            replace(rope, kind="longrope", short_factors=short, long_factors=long), head_dim, fields.source
        )
    if kind == "none":
        return plain
    factor = fields.positive("rope.scaling.factor", 1.0)
    if kind == "linear":
        return replace(plain, kind="linear", factor=factor, original_max_positions=original)
    if kind == "yarn":
        return replace(
            rope,
            kind="yarn",
            factor=factor,
            attention_factor=attention_factor * yarn_attention_factor(factor),
            beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise UnsupportedModel(
        f"{fields.source}: rope scaling of type {kind!r:.200} is not supported in GGUF files "
        "(none, linear, yarn and longrope are).",
        rope_type=kind,
    )


def checked_longrope(rope: RopeSpec, head_dim: int, source: str) -> RopeSpec:
    """Return the rope, or refuse factors that are not one positive number for each rotary pair."""
    pairs = (rope.rotary_dim or head_dim) // 2
    for name, factors in (("short", rope.short_factors), ("long", rope.long_factors)):
        if len(factors) != pairs or not all(0 < factor < math.inf for factor in factors):
            raise BrokenModel(f"{source}: there are {len(factors)} {name} factors; expected {pairs} numbers above 0.")
    return rope


def _rotary_dim(scaling: Fields, head_dim: int) -> int:
    """Return the number of rotated dimensions of a head, 0 for all of them."""
    fraction = scaling.positive("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * fraction)
    if rotary_dim == head_dim:
        return 0
    _check_rotary_dim(rotary_dim, head_dim, f"{scaling.source}: partial_rotary_factor is {fraction}")
    return rotary_dim


def _check_rotary_dim(rotary_dim: int, head_dim: int, origin: str) -> None:
    if rotary_dim > head_dim or rotary_dim % 2 or rotary_dim < 4:
        raise BrokenModel(
            f"{origin}, which turns {rotary_dim} of {head_dim} values of a head; "
            f"expected an even number from 4 to {head_dim}."
        )


def _theta(fields: Fields, key: str, default: float | None = None) -> float:
    theta = fields.positive(key, default)
    if theta <= 1:  # the frequencies must fall: yarn divides by the logarithm
        raise BrokenModel(f"{fields.source}: {key} is {theta}; expected a number above 1.")
    return theta


def _factor(scaling: Fields, default: float | None = None) -> float:
    factor = scaling.number("factor", default)
    if factor < 1:
        raise BrokenModel(f"{scaling.source}: factor is {factor}; expected at least 1.")
    return factor


def _linear(scaling: Fields, plain: RopeSpec, max_positions: int) -> RopeSpec:
    original = scaling.whole("original_max_position_embeddings", max_positions)
    return replace(plain, kind="linear", factor=_factor(scaling), original_max_positions=original)


def _yarn(scaling: Fields, plain: RopeSpec, max_positions: int) -> RopeSpec:
    original = scaling.whole("original_max_position_embeddings", max_positions)
    factor = _factor(scaling, max_positions / original)
    mscale, mscale_all = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if min(mscale, mscale_all) < 0:
        raise BrokenModel(f"{scaling.source}: mscale is {mscale} and mscale_all_dim {mscale_all}; expected at least 0.")
    attention_factor = yarn_attention_factor(factor)
    if mscale and mscale_all:
        attention_factor = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, mscale_all)
    return replace(
        plain,
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        attention_factor=scaling.positive("attention_factor", attention_factor),
        beta_fast=scaling.positive("beta_fast", 32.0),
        beta_slow=scaling.positive("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
    )


def _longrope(scaling: Fields, plain: RopeSpec, max_positions: int) -> RopeSpec:
    original = scaling.whole("original_max_position_embeddings", max_positions, minimum=2)
    attention_factor = longrope_attention_factor(scaling.positive("factor", max_positions / original), original)
    return replace(
        plain,
        kind="longrope",
        original_max_positions=original,
        attention_factor=scaling.positive("attention_factor", attention_factor),
        short_factors=scaling.numbers("short_factor"),
        long_factors=scaling.numbers("long_factor"),
    )


def _llama3(scaling: Fields, plain: RopeSpec, max_positions: int) -> RopeSpec:  # noqa: ARG001
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if low >= high:
        raise BrokenModel(f"{scaling.source}: low_freq_factor {low} must be below high_freq_factor {high}.")
    return replace(
        plain,
        kind="llama3",
        factor=_factor(scaling),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=scaling.whole("original_max_position_embeddings"),
    )


_KINDS: Final[Mapping[str, Callable[[Fields, RopeSpec, int], RopeSpec]]] = MappingProxyType(
    {
        "default": lambda _scaling, plain, _positions: plain,
        "linear": _linear,
        "dynamic": lambda scaling, plain, positions: replace(
            plain, kind="dynamic", factor=_factor(scaling), original_max_positions=positions
        ),
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
        "proportional": lambda scaling, plain, _positions: replace(
            plain, kind="proportional", factor=scaling.positive("factor", 1.0)
        ),
    }
)


def _llama3_from_divisors(fields: Fields, plain: RopeSpec, head_dim: int, divisors: tuple[float, ...]) -> RopeSpec:
    """Recover Llama 3's scaling parameters from its divisors, one per frequency, which GGUF files store."""
    rotary_dim = plain.rotary_dim or head_dim
    if rotary_dim % 2 or len(divisors) != rotary_dim // 2 or not all(1 <= divisor < math.inf for divisor in divisors):
        raise BrokenModel(f"{fields.source}: rope_freqs.weight must hold {rotary_dim // 2} numbers of at least 1.")
    rope = replace(
        plain,
        kind="llama3",
        factor=max(divisors),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=LLAMA3_CONTEXT_TOKENS,
    )
    expected = llama3_divisors(rope, inverse_frequencies(plain, rotary_dim, LLAMA3_CONTEXT_TOKENS))
    if not np.allclose(expected, divisors, rtol=1e-3):
        raise UnsupportedModel(
            f"{fields.source}: the rope scaling in rope_freqs.weight is not Llama 3's; others are not supported."
        )
    return rope
