"""Inverse frequencies of the rotary embeddings that a `RopeSpec` describes, and their names by type of layer."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.inference.models.spec import ModelSpec, RopeSpec

Float64 = npt.NDArray[np.float64]


def inverse_frequencies(rope: RopeSpec, head_dim: int, context_tokens: int) -> Float64:
    """
    Return the radians per position of each pair of a head, (head_dim / 2,); pairs without rotation come last as 0.

    `context_tokens` is the context of the server, which `dynamic` and `longrope` depend on.
    Source: transformers `modeling_rope_utils.py`.
    """
    rope = resolve(rope, head_dim, context_tokens)
    rotary_dim = rope.rotary_dim or head_dim
    whole = head_dim if rope.kind == "proportional" else rotary_dim
    frequencies: Float64 = rope.theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / whole) / _divisors(
        rope, rotary_dim
    )
    return np.pad(frequencies, (0, head_dim // 2 - len(frequencies)))


def resolve(rope: RopeSpec, head_dim: int, context_tokens: int) -> RopeSpec:
    """
    Resolve dynamic and long scaling for one context length, so that an answer does not depend on the request's length.

    Dynamic NTK does not scale contexts up to the original length. Longrope takes its short factors up to there and the
    long ones beyond, as in vLLM. Source: transformers `_compute_dynamic_ntk_parameters`.
    """
    if rope.kind == "longrope":
        factors = rope.long_factors if context_tokens > rope.original_max_positions else rope.short_factors
        return replace(rope, short_factors=factors, long_factors=factors)
    if rope.kind != "dynamic":
        return rope
    rotary_dim = rope.rotary_dim or head_dim
    stretch = max(1.0, context_tokens / rope.original_max_positions)
    growth = rope.factor * stretch - (rope.factor - 1)
    return replace(rope, kind="default", theta=rope.theta * growth ** (rotary_dim / (rotary_dim - 2)), factor=1.0)


def llama3_divisors(rope: RopeSpec, frequencies: Float64) -> Float64:
    """Return Llama 3's divisor of each frequency: 1 for high ones, `factor` for low ones, a ramp between."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    smooth = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return 1.0 / (smooth + (1.0 - smooth) / rope.factor)


def yarn_divisors(rope: RopeSpec, rotary_dim: int) -> Float64:
    """Return yarn's divisor of each frequency: a ramp over the pairs from 1 to `factor` (Peng et al. 2023)."""

    def pair_of(num_turns: float) -> float:
        """Return the pair that makes `num_turns` turns within the original context."""
        return (
            rotary_dim * math.log(rope.original_max_positions / (num_turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / (high - low or 0.001), 0.0, 1.0)
    divisors: Float64 = 1.0 / (1.0 - ramp + ramp / rope.factor)
    return divisors


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return yarn's factor of cosines and sines for a stretch of the context."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original_max_positions: int) -> float:
    """Return longrope's factor of cosines and sines for a stretch of the context."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_positions))


def _divisors(rope: RopeSpec, rotary_dim: int) -> Float64 | float:
    match rope.kind:
        case "linear" | "proportional":
            return rope.factor
        case "llama3":
            return llama3_divisors(rope, rope.theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim))
        case "yarn":
            return yarn_divisors(rope, rotary_dim)
        case "longrope":
            return np.array(rope.long_factors)
        case _:
            return 1.0


FULL = "full_attention"
SLIDING = "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)


def ropes_by_layer_type(spec: ModelSpec) -> dict[str, int]:
    """
    Return the index of the rotary embedding of each type of layer, of a network that has several.

    Empty if the network has one for all layers, or layers of the same type with different ones.
    """
    found: dict[str, set[int]] = {}
    for layer, index in enumerate(spec.rope_of_layer):
        if index >= 0:
            found.setdefault(SLIDING if spec.window(layer) else FULL, set()).add(index)
    by_type = {layer_type: next(iter(indexes)) for layer_type, indexes in found.items() if len(indexes) == 1}
    is_distinct = len(by_type) == len(found) == len(set(by_type.values())) == len(spec.ropes)
    return by_type if is_distinct and len(by_type) > 1 else {}


def describe_ropes(spec: ModelSpec, context_tokens: int) -> str:
    """Return the rotary embeddings of a network that serves contexts of some length, for logs and `/info`."""
    num_without = spec.rope_of_layer.count(-1)
    if num_without == spec.num_layers:
        return "none"
    texts = [_describe(rope, context_tokens) for rope in spec.ropes]
    by_type = ropes_by_layer_type(spec)
    if by_type:
        text = "; ".join(f"{layer_type}: {texts[by_type[layer_type]]}" for layer_type in LAYER_TYPES)
    else:
        text = "; ".join(texts)
    return f"{text}; none on {num_without} of {spec.num_layers} layers" if num_without else text


def _describe(rope: RopeSpec, context_tokens: int) -> str:
    words = [rope.kind, f"theta {rope.theta:.10g}"]
    if rope.kind in {"linear", "llama3", "yarn", "dynamic"}:
        words.append(f"factor {rope.factor:g}")
    if rope.kind == "longrope":
        words.append(f"{'long' if context_tokens > rope.original_max_positions else 'short'} factors")
    if rope.kind == "dynamic":
        words.append(f"for {context_tokens} tokens")
    if rope.original_max_positions:
        words.append(f"trained with {rope.original_max_positions} tokens")
    if rope.rotary_dim:
        words.append(f"rotary dimension {rope.rotary_dim}")
    return ", ".join(words)
