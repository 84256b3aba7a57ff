"""
The int8 format of compressed-tensors: its `quantization_config`, and the subset that is supported.

llm-compressor writes it, and vLLM, SGLang and transformers load it as "W8A8": a matrix is `weight` (int8) and
`weight_scale` (one number for each row), everything else stays in floating point.
Source: compressed-tensors 0.20, `quantization/quant_config.py`, `quant_args.py`, `config/base.py`.
"""

from typing import Final

from headrace.core.errors import UnsupportedModel
from headrace.models.fields import Fields

METHOD: Final = "compressed-tensors"
SCALE_SUFFIX: Final = "_scale"
"""Suffix that turns the name of a matrix into the name of its scales."""
_FORMATS: Final = ("int-quantized", "naive-quantized")


def w8a8_config(ignore: list[str]) -> dict[str, object]:
    """Return a `quantization_config`: int8 weights per row, dynamic activations per token; `ignore` stays float."""
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": METHOD,
        "format": _FORMATS[0],
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def refuse_other_quantization(config: Fields) -> None:
    """
    Refuse a `quantization_config` whose weights cannot be read.

    Raises:
        UnsupportedModel: the method or a part of it is not supported; the message names it.
    """
    quantization = config.sub("quantization_config")
    if not quantization.values:
        return
    method = quantization.text("quant_method", "unnamed")
    if method != METHOD:
        raise UnsupportedModel(
            f"{config.source}: weights quantized with {method} (quantization_config) are not supported. "
            "Use the unquantized checkpoint or a GGUF file; Headrace quantizes when it loads (--dtype w8a8 or w4a8).",
            quant_method=method,
        )
    quantization.refuse("format", f"the format of {METHOD}", unless=_FORMATS)
    quantization.sub("sparsity_config").refuse("format", "a sparse format", unless=("dense",))
    quantization.sub("transform_config").refuse("config_groups", "a rotation of weights or activations", unless=({},))
    groups = quantization.sub("config_groups")
    for name in groups.values:
        _refuse_other_group(groups.sub(name))


def _refuse_other_group(group: Fields) -> None:
    group.refuse("format", f"the format of {METHOD}", unless=_FORMATS)
    weights, activations = group.sub("weights"), group.sub("input_activations")
    for part in (weights, activations):
        part.refuse("num_bits", f"quantization of {METHOD}", unless=(8,))
        part.refuse("type", f"quantization of {METHOD}", unless=("int",))
    weights.refuse("strategy", "a scale of weights", unless=("channel", "tensor"))
    weights.refuse("symmetric", "a zero point of weights", unless=(True,))
