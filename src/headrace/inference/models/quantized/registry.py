"""
The formats of quantized weights that are read, and the choice of the one that a matrix is stored in.

A matrix is recognised by its tensors: what a `quantization_config` lists as ignored is simply not quantized.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.awq import check_awq, read_awq
from headrace.inference.models.quantized.bitnet import check_bitnet, read_bitnet
from headrace.inference.models.quantized.bitsandbytes import read_four_bits, read_llm_int8
from headrace.inference.models.quantized.compressed_tensors import check_compressed_tensors, read_int8, read_packed
from headrace.inference.models.quantized.fp4 import read_fp4
from headrace.inference.models.quantized.fp8 import check_fp8, check_modelopt, read_fp8
from headrace.inference.models.quantized.gptq import check_gptq, read_gptq
from headrace.inference.models.quantized.hqq import check_hqq, read_hqq
from headrace.inference.models.quantized.stored_weight import MatrixFiles, ReadFormat, StoredWeight
from headrace.inference.models.quantized.torchao import (
    CODES,
    PAIRS,
    SCALES,
    check_torchao,
    read_torchao_fp8,
    read_torchao_integers,
    read_torchao_tiles,
)
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor, TensorFiles
from headrace.inference.models.weights import Encoding, RawTensor

WEIGHT: Final = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of matrices: the tensors that it is recognised by, and the function that reads it."""

    name: str
    tensor: str
    """Name of the codes after the module's, and their type."""
    dtype: str
    companion: str
    """A tensor that must be present too."""
    method: str = ""
    """The `quant_method` that tells formats with the same tensors apart; empty: any."""
    read: ReadFormat


FORMATS: Final = (
    Format(name="AWQ", method="awq", tensor="qweight", dtype="I32", companion="qzeros", read=read_awq),
    Format(name="GPTQ", method="gptq", tensor="qweight", dtype="I32", companion="qzeros", read=read_gptq),
    Format(name="pack-quantized", tensor="weight_packed", dtype="I32", companion="weight_scale", read=read_packed),
    Format(name="int-quantized", tensor="weight", dtype="I8", companion="weight_scale", read=read_int8),
    Format(name="LLM.int8", tensor="weight", dtype="I8", companion="SCB", read=read_llm_int8),
    Format(name="nf4 and fp4", tensor="weight", dtype="U8", companion="weight.quant_map", read=read_four_bits),
    Format(name="FP8", tensor="weight", dtype="F8_E4M3", companion="weight_scale", read=read_fp8),
    Format(name="FP8 in blocks", tensor="weight", dtype="F8_E4M3", companion="weight_scale_inv", read=read_fp8),
    Format(name="FP8 of Mistral", tensor="weight", dtype="F8_E4M3", companion="qscale_weight", read=read_fp8),
    Format(name="MXFP4 and NVFP4", tensor="weight_packed", dtype="U8", companion="weight_scale", read=read_fp4),
    Format(name="NVFP4 of ModelOpt", tensor="weight", dtype="U8", companion="weight_scale_2", read=read_fp4),
    Format(name="int8 and int4 of torchao", tensor=CODES, dtype="I8", companion=SCALES, read=read_torchao_integers),
    Format(name="tiled int4 of torchao", tensor=CODES, dtype="I32", companion=PAIRS, read=read_torchao_tiles),
    Format(name="FP8 of torchao", tensor=CODES, dtype="F8_E4M3", companion=SCALES, read=read_torchao_fp8),
    Format(name="BitNet", method="bitnet", tensor="weight", dtype="U8", companion="weight_scale", read=read_bitnet),
    Format(name="HQQ", method="hqq", tensor="W_q", dtype="U8", companion="scale", read=read_hqq),
)

METHODS: Final[Mapping[str, Callable[[Fields], None]]] = MappingProxyType(
    {
        "awq": check_awq,
        "bitnet": check_bitnet,
        "bitsandbytes": lambda _: None,
        "compressed-tensors": check_compressed_tensors,
        "fbgemm_fp8": lambda _: None,
        "fp8": check_fp8,
        "gptq": check_gptq,
        "hqq": check_hqq,
        "modelopt": check_modelopt,
        "mxfp4": lambda _: None,
        "torchao": check_torchao,
    }
)
"""Every supported `quant_method`, with the check of its `quantization_config`."""
_METHOD_BITS: Final = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "bitnet": 2}
_FLOATS: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_FLOAT_BYTES: Final = {Encoding.F32: slice(None), Encoding.I8: slice(4)}
"""Bytes of a row that are float32 by encoding; the halves of others are checked where they are made."""


def refuse_other_quantization(config: Fields) -> None:
    """Raise `UnsupportedModel` for a `quantization_config` whose weights cannot be read."""
    quantization = config.sub("quantization_config")
    if not quantization.values:
        return
    method = quantization.text("quant_method", "unnamed")
    if method not in METHODS:
        raise UnsupportedModel(
            f"{config.source}: the weights are quantized with {method} (quantization_config); "
            f"expected {', '.join(METHODS)}, or none. "
            "Use the unquantized checkpoint or a GGUF file; Headrace quantizes when it loads (--dtype w8a8 or w4a8).",
            quant_method=method,
        )
    METHODS[method](quantization)


def find_quantized(tensors: TensorFiles, name: str, shape: Shape, quantization: Fields) -> StoredWeight | None:
    """
    Return the matrix that a checkpoint stores under `name` in a quantized format, or None if there is none.

    Raises `BrokenModel` if a tensor of it is missing or of the wrong shape; when loaded, if its values are not finite.
    """
    matrix = MatrixFiles(tensors, name.removesuffix(WEIGHT), shape, quantization)
    method = quantization.text("quant_method", "")
    for kind in FORMATS:
        codes = matrix.get(kind.tensor)
        if codes is None or codes.dtype != kind.dtype or matrix.get(kind.companion) is None:
            continue
        if kind.method in ("", method):
            with np.errstate(over="ignore", invalid="ignore"):  # damaged scales; the loaded values are checked
                weight = kind.read(matrix)
            label = quantization_label(quantization, weight.bits)
            return replace(weight, load=partial(_load_finite, weight.load, codes), format=label)
    return None


def _load_finite(load: Callable[[], RawTensor], codes: StoredTensor) -> RawTensor:
    """Load a matrix; raise `BrokenModel` if its values are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        tensor = load()
    columns = _FLOAT_BYTES.get(tensor.encoding, slice(0))
    if not np.isfinite(np.ascontiguousarray(tensor.data[:, columns]).view(np.float32)).all():
        raise codes.broken("its values are not finite: the scales of its quantization are damaged")
    return tensor


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
        return f"bitsandbytes {four_bits if bits == 4 else 'LLM.int8'}"
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
