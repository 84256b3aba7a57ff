"""The bits per weight that a config.json promises, for checkpoints whose tensors are not at hand."""

from headrace.models.fields import Fields

_METHOD_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}


def promised_bits(config: Fields) -> int:
    """Return the bits of most weights by `quantization_config`, or those of the floats."""
    quantization = config.sub("quantization_config")
    if not quantization.values:
        return 32 if "float32" in {config.values.get("dtype"), config.values.get("torch_dtype")} else 16
    method = quantization.text("quant_method", "")
    if method == "bitsandbytes":
        return 4 if quantization.flag("load_in_4bit", default=False) else 8
    if method == "modelopt":
        return 4 if "FP4" in quantization.text("quant_algo", "") else 8
    for group in quantization.sub("config_groups").values.values():
        weights = Fields(group if isinstance(group, dict) else {}, quantization.source).sub("weights")
        return weights.whole("num_bits", 8)
    return quantization.whole("bits", quantization.whole("w_bit", _METHOD_BITS.get(method, 16)))
