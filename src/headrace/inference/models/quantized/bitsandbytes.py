"""
bitsandbytes: int8 with one scale for each row (LLM.int8), and 4-bit codes of a table (nf4, fp4) in blocks.

int8: `weight` and `SCB`, 127 times the scale. 4 bits: `weight` holds two codes to a byte, the first in the high
nibble; `weight.absmax` is a scale for each block, or its own 8-bit code in `weight.nested_quant_map`; the JSON in
`weight.quant_state.bitsandbytes__nf4` describes the rest.
Source: bitsandbytes `functional.py` (`QuantState`), `nn/modules.py`.
"""

import json
from functools import partial
from typing import Final

import numpy as np

from headrace.core.errors import BrokenModel
from headrace.inference.models.fields import Fields
from headrace.inference.models.quantized.affine import Floats
from headrace.inference.models.quantized.stored_weight import MatrixFiles, StoredWeight, float_tensor, int8_tensor
from headrace.inference.models.shapes import Shape
from headrace.inference.models.stored_tensor import StoredTensor
from headrace.inference.models.weights import Encoding, RawTensor

_SCALE_STEPS: Final = 127
_BITS: Final = 4
_MAX_BLOCK: Final = 1 << 20
_STATES: Final = ("nf4", "fp4")
_LOSS: Final = "nf4 and fp4 are not evenly spaced"


def read_llm_int8(matrix: MatrixFiles) -> StoredWeight:
    shape = matrix.shape
    weight = matrix.required("weight").expect(shape)
    scale = matrix.required("SCB").expect((shape[0],), (shape[0], 1))
    scale.floats()
    values = weight.data.reshape(shape).view(np.int8)
    return StoredWeight(Encoding.I8, 8, lambda: int8_tensor(scale.floats() / np.float32(_SCALE_STEPS), values))


def read_four_bits(matrix: MatrixFiles) -> StoredWeight:
    weight = matrix.required("weight")
    shape = matrix.shape
    num_numbers = shape[0] * shape[1]
    num_bytes = -(-num_numbers // 2)
    weight.expect((num_bytes, 1), (1, num_bytes), (num_bytes,))
    state = _state(matrix)
    if state.values.get("shape") != list(shape):
        raise BrokenModel(f"{state.source}: shape is {state.values.get('shape')!r:.80}; expected {list(shape)}.")
    block = _block(state, "blocksize")
    table = matrix.required("weight.quant_map").expect((1 << _BITS,))
    scales = partial(_scales, matrix, state, -(-num_numbers // block))
    scales()
    return StoredWeight(Encoding.F32, _BITS, partial(_load, weight, table, scales, block, shape), _LOSS)


def _state(matrix: MatrixFiles) -> Fields:
    names = [f"weight.quant_state.bitsandbytes__{kind}" for kind in _STATES]
    tensor = matrix.required(next((name for name in names if matrix.get(name) is not None), names[0]))
    try:
        values = json.loads(tensor.data.tobytes())
    except (ValueError, RecursionError) as exc:
        raise tensor.broken(f"it is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise tensor.broken("it is not a JSON object")
    return Fields(values, f"{tensor.file}, {tensor.name}")


def _block(state: Fields, key: str) -> int:
    size = state.whole(key)
    if size > _MAX_BLOCK:
        raise BrokenModel(f"{state.source}: {key} is {size}; expected at most {_MAX_BLOCK}.")
    return size


def _scales(matrix: MatrixFiles, state: Fields, num_blocks: int) -> Floats:
    absmax = matrix.required("weight.absmax").expect((num_blocks,))
    if state.has("nested_blocksize") != (absmax.dtype == "U8"):
        raise absmax.broken("expected floating point numbers, or U8 with nested scales")
    if not state.has("nested_blocksize"):
        return absmax.floats()
    nested_block = _block(state, "nested_blocksize")
    nested = matrix.required("weight.nested_absmax").expect((-(-num_blocks // nested_block),))
    table = matrix.required("weight.nested_quant_map").expect((256,))
    blocks = np.arange(num_blocks) // nested_block
    values: Floats = table.floats()[absmax.data] * nested.floats()[blocks] + np.float32(state.number("nested_offset"))
    return values


def _load(weight: StoredTensor, table: StoredTensor, scales: "partial[Floats]", block: int, shape: Shape) -> RawTensor:
    packed = weight.data.reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[: shape[0] * shape[1]]
    values = table.floats()[codes] * scales()[np.arange(len(codes)) // block]
    return float_tensor(values.reshape(shape))
