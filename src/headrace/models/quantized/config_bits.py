"""The bits per weight and the format that a config.json promises, for checkpoints whose tensors are not at hand."""

from headrace.models.fields import Fields

_METHOD_BITS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}

_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_FOUR_BITS = 4


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


def promised_format(config: Fields) -> str:
    """Return the format of most weights by `quantization_config`, or that of the floats."""
    quantization = config.sub("quantization_config")
    if quantization.values:
        return quantization_label(quantization, promised_bits(config))
    dtype = config.values.get("dtype") or config.values.get("torch_dtype")
    return _FLOATS.get(str(dtype), "BF16")


def quantization_label(quantization: Fields, bits: int) -> str:
    """Return the common name of a quantized format, such as `GPTQ W4A16`, by its `quantization_config`."""
    method = quantization.text("quant_method", "quantized")
    if method == "compressed-tensors":
        return f"compressed-tensors {_scheme(quantization, bits)}"
    if method == "bitsandbytes":
        four_bits = quantization.text("bnb_4bit_quant_type", "fp4").upper()
        return f"bitsandbytes {four_bits if bits == _FOUR_BITS else 'LLM.int8'}"
    if method == "modelopt":
        return f"ModelOpt {quantization.text('quant_algo', f'{bits} bits')}"
    if method in ("awq", "gptq", "hqq"):
        return f"{method.upper()} W{bits}A16"
    if method in _METHOD_BITS:
        return method.upper().replace("_", " ")
    return f"{method}, {bits} bits"


def _scheme(quantization: Fields, bits: int) -> str:
    """Return the scheme of compressed-tensors: bits of weights and activations, or the type of floats."""
    for group in quantization.sub("config_groups").values.values():
        parts = Fields(group if isinstance(group, dict) else {}, quantization.source)
        weights, inputs = parts.sub("weights"), parts.sub("input_activations")
        if weights.text("type", "int") == "float":
            return f"FP{bits}"
        return f"W{bits}A{inputs.whole('num_bits', 16)}"
    return f"W{bits}A16"
