"""Rope settings of the server, merged into those of a checkpoint: `{"rope_type": "yarn", "factor": 4.0}`."""

from collections.abc import Mapping
from dataclasses import replace

from headrace.core.errors import BrokenModel, SettingsError, UnsupportedModel
from headrace.inference.models.families.rope_config import rope_from_scaling, scaled_positions
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import LAYER_TYPES, SLIDING, ropes_by_layer_type, yarn_attention_factor
from headrace.inference.models.spec import ModelSpec, RopeSpec

_SOURCE = "The rope setting"
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

    Another `rope_type` replaces the scaling of the checkpoint; its theta and the size of its heads stay. A network with
    a rotary embedding for each type of layer takes an object for each: `{"full_attention": {...}}`.
    Raises `SettingsError` for a value that is unknown, malformed or does not fit the network.
    """
    by_type = ropes_by_layer_type(spec)
    for index, layer_type, part in _parts(spec, values, by_type):
        old = spec.ropes[index]
        trained = _unscaled_positions(spec, old)
        source = _SOURCE if len(spec.ropes) == 1 else f"{_SOURCE}, {layer_type}"
        new = _merged(old, part, _head_dim(spec, old), trained, source)
        ropes = tuple(new if position == index else rope for position, rope in enumerate(spec.ropes))
        max_positions = spec.max_positions
        if layer_type != SLIDING:
            longest = scaled_positions(new, trained)
            is_capped = max_positions < scaled_positions(old, trained)
            max_positions = min(longest, max_positions) if is_capped else longest
        spec = replace(spec, ropes=ropes, max_positions=max_positions)
    return spec


def _head_dim(spec: ModelSpec, rope: RopeSpec) -> int:
    """Return the size of the heads that a rope turns."""
    layers = (layer for layer in range(spec.num_layers) if spec.rope(layer) == rope)
    return next(map(spec.rope_head_dim, layers), spec.head_dim)


def _parts(
    spec: ModelSpec, values: Mapping[str, object], by_type: Mapping[str, int]
) -> list[tuple[int, str, Mapping[str, object]]]:
    """Return the index, the type of layer and the values of each rotary embedding that the setting changes."""
    if spec.rope_of_layer.count(-1) == spec.num_layers:
        raise SettingsError(f"{_SOURCE} has no effect: this network (family {spec.family}) has none. Remove it.")
    if len(spec.ropes) == 1:
        nested = [key for key in LAYER_TYPES if key in values]
        if nested:
            raise SettingsError(
                f"{_SOURCE} has {', '.join(nested)}, but this network (family {spec.family}) has one rotary embedding "
                "for all layers; expected its values without the type of layer."
            )
        return [(0, "", values)]
    if not by_type:
        raise SettingsError(
            f"{_SOURCE} cannot change the {len(spec.ropes)} rotary embeddings of this network (family {spec.family}). "
            "Remove it."
        )
    foreign = sorted(set(values) - set(by_type))
    if foreign:
        raise SettingsError(
            f"{_SOURCE} has the keys {', '.join(foreign)}, but this network (family {spec.family}) has "
            f"{len(spec.ropes)} rotary embeddings; expected an object for a type of layer: "
            f'{", ".join(by_type)}. Example: {{"{next(iter(by_type))}": {{"factor": 4.0}}}}.'
        )
    setting = Fields(values, _SOURCE)
    try:
        return [(index, key, setting.sub(key).values) for key, index in by_type.items() if key in values]
    except BrokenModel as exc:
        raise SettingsError(str(exc)) from exc


def _merged(old: RopeSpec, values: Mapping[str, object], head_dim: int, trained: int, source: str) -> RopeSpec:
    unknown = sorted(set(values) - _KEYS)
    if unknown:
        raise SettingsError(f"{source} has the keys {', '.join(unknown)}; expected some of {', '.join(sorted(_KEYS))}.")
    kind = values.get("rope_type", values.get("type", old.kind))
    kept = rope_parameters(old, head_dim) if kind == old.kind else {}
    merged: dict[str, object] = {
        "rope_theta": old.theta,
        "partial_rotary_factor": (old.rotary_dim or head_dim) / head_dim,
        **kept,
        "rope_type": kind,
        **values,
    }
    try:
        new = rope_from_scaling(Fields(merged, source), head_dim, trained)
    except (BrokenModel, UnsupportedModel) as exc:
        raise SettingsError(str(exc)) from exc
    if new.rotary_dim != old.rotary_dim or (new.kind == "proportional") != (old.kind == "proportional"):
        raise SettingsError(
            f"{source} changes which values of a head turn ({_turning(old, head_dim)} in the checkpoint, "
            f"{_turning(new, head_dim)} in the setting), which the weights were trained for. Remove "
            f"{'partial_rotary_factor' if 'partial_rotary_factor' in values else 'rope_type'}."
        )
    return new


def _turning(rope: RopeSpec, head_dim: int) -> str:
    return f"{rope.rotary_dim or head_dim} of {head_dim}{' proportionally' if rope.kind == 'proportional' else ''}"


def _unscaled_positions(spec: ModelSpec, rope: RopeSpec) -> int:
    """Return the longest context without the scaling of linear, dynamic and yarn, which stretch it."""
    if rope.kind == "yarn":
        return rope.original_max_positions
    return round(spec.max_positions / rope.factor) if rope.kind in {"linear", "dynamic"} else spec.max_positions


def rope_parameters(rope: RopeSpec, head_dim: int) -> dict[str, object]:
    """Return the `rope_parameters` of transformers 5 that give a rope; yarn's usual attention factor is left out."""
    values: dict[str, object] = {"rope_type": rope.kind, "rope_theta": rope.theta, "factor": rope.factor}
    if rope.rotary_dim:
        values["partial_rotary_factor"] = rope.rotary_dim / head_dim
    if rope.original_max_positions:
        values["original_max_position_embeddings"] = rope.original_max_positions
    if rope.kind == "llama3":
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        if rope.attention_factor != yarn_attention_factor(rope.factor):
            values["attention_factor"] = rope.attention_factor
    if rope.kind == "longrope":
        factors = {"short_factor": list(rope.short_factors), "long_factor": list(rope.long_factors)}
        values = {key: value for key, value in values.items() if key != "factor"} | factors
        values["attention_factor"] = rope.attention_factor
    return values
