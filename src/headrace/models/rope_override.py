"""Rope settings of the server, merged into those of a checkpoint: `{"rope_type": "yarn", "factor": 4.0}`."""

from collections.abc import Mapping
from dataclasses import replace

from headrace.core.errors import BrokenModel, SettingsError, UnsupportedModel
from headrace.models.families.rope_config import rope_from_scaling, scaled_positions
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec, RopeSpec

_KEYS = frozenset(
    {
        "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor",
        "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate", "short_factor", "long_factor",
    }
)  # fmt: skip


def override_rope(spec: ModelSpec, values: Mapping[str, object]) -> ModelSpec:
    """
    Merge `rope_parameters` into a network; its longest context follows.

    Another `rope_type` replaces the scaling of the checkpoint; its theta and the size of its heads stay.

    Raises:
        SettingsError: a value is unknown or malformed, or the network has several ropes; the message names it.
    """
    source = "The rope setting"
    unknown = sorted(set(values) - _KEYS)
    if unknown:
        raise SettingsError(f"{source} has the keys {', '.join(unknown)}; expected some of {', '.join(sorted(_KEYS))}.")
    if len(spec.ropes) > 1:
        raise SettingsError(
            f"{source} cannot change the {len(spec.ropes)} rotary embeddings of this network (family {spec.family}). "
            "Remove it."
        )
    (old,) = spec.ropes
    trained = _unscaled_positions(spec, old)
    kind = values.get("rope_type", values.get("type", old.kind))
    kept = rope_parameters(old, spec.head_dim) if kind == old.kind else {}
    merged: dict[str, object] = {
        "rope_theta": old.theta,
        "partial_rotary_factor": (old.rotary_dim or spec.head_dim) / spec.head_dim,
        **kept,
        "rope_type": kind,
        **values,
    }
    try:
        new = rope_from_scaling(Fields(merged, source), spec.head_dim, trained)
    except (BrokenModel, UnsupportedModel) as exc:
        raise SettingsError(str(exc)) from exc
    return replace(spec, ropes=(new,), max_positions=scaled_positions(new, trained))


def _unscaled_positions(spec: ModelSpec, rope: RopeSpec) -> int:
    """Return the longest context without the scaling of linear, dynamic and yarn, which stretch it."""
    if rope.kind == "yarn":
        return rope.original_max_positions
    return round(spec.max_positions / rope.factor) if rope.kind in {"linear", "dynamic"} else spec.max_positions


def rope_parameters(rope: RopeSpec, head_dim: int) -> dict[str, object]:
    """Return the `rope_parameters` of transformers 5 that give a rope; its attention factor is computed again."""
    values: dict[str, object] = {"rope_type": rope.kind, "rope_theta": rope.theta, "factor": rope.factor}
    if rope.rotary_dim:
        values["partial_rotary_factor"] = rope.rotary_dim / head_dim
    if rope.original_max_positions:
        values["original_max_position_embeddings"] = rope.original_max_positions
    if rope.kind == "llama3":
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
    if rope.kind == "longrope":
        factors = {"short_factor": list(rope.short_factors), "long_factor": list(rope.long_factors)}
        values = {key: value for key, value in values.items() if key != "factor"} | factors
        values["attention_factor"] = rope.attention_factor
    return values
