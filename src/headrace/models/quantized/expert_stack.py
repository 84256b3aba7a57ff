"""
Experts that are stacked in one tensor: bf16 with the inputs as rows, or MXFP4 as `_blocks` and `_scales` (gpt-oss).

A stack takes gigabytes in float32, so it is converted one expert at a time.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.models.quantized.fp4 import MXFP4_BLOCK, mxfp4_tensor
from headrace.models.quantized.stored_weight import Rows, StoredWeight
from headrace.models.shapes import Shape
from headrace.models.stored_tensor import PLAIN, StoredTensor, TensorFiles
from headrace.models.weights import STORED_BITS, Encoding, RawTensor

_MXFP4_BITS = 4
_Part = tuple[int, slice]
"""An expert, and rows of its matrix."""


def find_experts(tensors: TensorFiles, name: str, shape: Shape, num_experts: int) -> StoredWeight | None:
    """
    Return a stack whose matrices together have a shape, or None if there is no such tensor.

    Raises:
        BrokenModel: A tensor has the wrong type or shape; the message names it.
    """
    rows, columns = shape[0] // num_experts, shape[1]
    blocks, scales = tensors.get(f"{name}_blocks"), tensors.get(f"{name}_scales")
    if blocks is not None and scales is not None:
        return _find_mxfp4(blocks, scales, (num_experts, rows, columns))
    stack = tensors.get(name)
    if stack is None:
        return None
    stack.expect((num_experts, columns, rows))
    if stack.dtype not in PLAIN:
        raise stack.broken(f"expected {', '.join(PLAIN)}")
    encoding = PLAIN[stack.dtype]
    numbers = stack.data.reshape(num_experts, columns, rows, -1)

    def load(part: _Part) -> RawTensor:
        expert, chosen = part
        matrix = np.ascontiguousarray(numbers[expert][:, chosen].transpose(1, 0, 2))
        return RawTensor(encoding, len(matrix), columns, matrix.reshape(len(matrix), -1))

    return _stack(encoding, STORED_BITS[encoding], load, (num_experts, rows))


def _find_mxfp4(blocks: StoredTensor, scales: StoredTensor, shape: tuple[int, int, int]) -> StoredWeight:
    num_experts, rows, columns = shape
    if columns % MXFP4_BLOCK:
        raise blocks.broken(f"{columns} columns are not a multiple of {MXFP4_BLOCK}")
    groups = (num_experts, rows, columns // MXFP4_BLOCK)
    for tensor, expected in ((blocks, (*groups, MXFP4_BLOCK // 2)), (scales, groups)):
        if tensor.dtype not in {"U8", "F8_E8M0"}:
            raise tensor.broken("expected bytes (U8)")
        tensor.expect(expected)
    codes, exponents = blocks.data.reshape(blocks.shape), scales.data.reshape(groups)

    def load(part: _Part) -> RawTensor:
        expert, chosen = part
        with np.errstate(over="ignore", invalid="ignore"):
            tensor = mxfp4_tensor(codes[expert][chosen], exponents[expert][chosen])
        if tensor.encoding is not Encoding.FP4:
            raise scales.broken("a scale is above 2^15 or not finite: the scales of its quantization are damaged")
        return tensor

    return _stack(Encoding.FP4, _MXFP4_BITS, load, (num_experts, rows))


def _stack(encoding: Encoding, bits: int, load: Callable[[_Part], RawTensor], shape: Shape) -> StoredWeight:
    """Return a stack of `shape` (experts, rows), of which the rows of one expert are loaded at a time."""
    num_experts, rows = shape

    def load_rows(chosen: Rows) -> RawTensor:
        if not isinstance(chosen, slice):
            raise TypeError("the rows of an expert are a slice")
        expert, first = divmod(chosen.start, rows)
        return load((expert, slice(first, chosen.stop - expert * rows, chosen.step)))

    def load_all() -> RawTensor:
        parts = [load((expert, slice(None))) for expert in range(num_experts)]
        data: npt.NDArray[np.uint8] = np.concatenate([part.data for part in parts])
        return RawTensor(encoding, len(data), parts[0].num_columns, data)

    return StoredWeight(encoding, bits, load_all, load_rows=load_rows)
