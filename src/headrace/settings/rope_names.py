"""Names of other servers that set a part of `rope`: how each is read as `rope_parameters` of transformers 5."""

from collections.abc import Mapping

from headrace.settings.container_meanings import FillsPart
from headrace.settings.rules import read_json_object

_SCALING_EXPECTED = 'a JSON object such as {"rope_type": "yarn", "factor": 4.0}, or a type such as linear'
_OVERRIDES_EXPECTED = 'a JSON object such as {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}'


def _read_scaling(raw: str) -> Mapping[str, object]:
    """Read vLLM's object, or the type alone, as TGI has it."""
    if not raw.startswith(("{", "[", '"')):
        return {"rope_type": raw.lower()}
    try:
        return _with_new_names(read_json_object(raw))
    except ValueError:
        raise ValueError(_SCALING_EXPECTED) from None


def _read_type(raw: str) -> Mapping[str, object]:
    return {"rope_type": raw.lower()}


def _read_factor(raw: str) -> Mapping[str, object]:
    return {"factor": _number(raw)}


def _read_theta(raw: str) -> Mapping[str, object]:
    return {"rope_theta": _number(raw)}


def _read_overrides(raw: str) -> Mapping[str, object]:
    """Read the rope of vLLM's overrides of a config, in the forms of transformers 4 and 5; others are refused."""
    try:
        overrides = read_json_object(raw)
    except ValueError:
        raise ValueError(_OVERRIDES_EXPECTED) from None
    nested = overrides.pop("text_config", {})
    overrides |= nested if isinstance(nested, dict) else {"text_config": nested}
    other = sorted(set(overrides) - {"rope_parameters", "rope_scaling", "rope_theta"})
    if other:
        raise ValueError(
            f"rope_parameters, rope_scaling and rope_theta only, which set the context too; remove {', '.join(other)}"
        )
    values = {key: overrides[key] for key in ("rope_theta",) if key in overrides}
    for key in ("rope_scaling", "rope_parameters"):
        part = overrides.get(key, {})
        if part is not None and not isinstance(part, dict):
            raise ValueError(_OVERRIDES_EXPECTED)
        values |= {"rope_type": "default"} if part is None else _with_new_names(part)
    if not values:
        raise ValueError(_OVERRIDES_EXPECTED)
    return values


def _with_new_names(scaling: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values with `rope_type` for the older `type`, so that parts from several names can be merged."""
    kind = {"rope_type": scaling["type"]} if "type" in scaling else {}
    return {**kind, **{key: value for key, value in scaling.items() if key != "type"}}


def _number(raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise ValueError("a number") from None


ROPE_SCALING = FillsPart("rope", _read_scaling, {})
ROPE_TYPE = FillsPart("rope", _read_type, {"factor": 1.0})
"""TGI's and LMI's type of scaling, which may come without a factor."""
ROPE_FACTOR = FillsPart("rope", _read_factor, {"rope_type": "linear"})
"""TGI's and LMI's factor, which means linear scaling unless another name says otherwise."""
ROPE_THETA = FillsPart("rope", _read_theta, {})
HF_OVERRIDES = FillsPart("rope", _read_overrides, {})
WHOLE_ROPE = FillsPart("rope", read_json_object, {})
ROPE_FLAGS = {"rope_scaling": ROPE_SCALING, "rope_theta": ROPE_THETA, "hf_overrides": HF_OVERRIDES}
"""vLLM's flags, which `headrace serve` has too."""
