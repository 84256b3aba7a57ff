import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import cut_numbers, decode
from headrace.inference.models.gguf_dequantize import mxfp4_as_fp4
from headrace.inference.models.weights import BLOCKS, Encoding, RawTensor, cut_tensor

WIDTH = 512
RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((6, WIDTH)).astype(np.float32)


def tensor_in(encoding):
    if encoding is Encoding.I8:
        scales = np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(6, 1).view(np.uint8)
        return RawTensor(encoding, 6, WIDTH, np.concatenate([scales, VALUES.view(np.uint8)[:, :WIDTH]], axis=1))
    if encoding is Encoding.FP4:
        blocks = mxfp4_as_fp4(quants.quantize(VALUES, GGMLQuantizationType.MXFP4).reshape(-1, 17))
        return RawTensor(encoding, 6, WIDTH, blocks.reshape(6, -1))
    size, num_bytes = BLOCKS[encoding]
    if size > 32:  # gguf-py does not quantize to these
        return RawTensor(encoding, 6, WIDTH, RNG.integers(0, 60, (6, WIDTH // size * num_bytes), np.uint8))
    return RawTensor(encoding, 6, WIDTH, quants.quantize(VALUES, GGMLQuantizationType[encoding.upper()]).view(np.uint8))


@pytest.mark.parametrize("columns", [range(32, 96), range(256, 512)])
@pytest.mark.parametrize("encoding", Encoding)
def test_a_cut_tensor_has_the_numbers_of_its_rows_and_columns(encoding, columns):
    tensor = tensor_in(encoding)
    cut = cut_numbers(tensor, range(1, 4), columns)
    expected = Encoding.F32 if columns.start % BLOCKS[encoding][0] else encoding
    assert (cut.encoding, cut.num_rows, cut.num_columns) == (expected, 3, len(columns))
    np.testing.assert_array_equal(decode(cut), decode(tensor)[1:4, columns.start : columns.stop])
    np.testing.assert_array_equal(decode(cut_tensor(tensor, range(2, 6), None)), decode(tensor)[2:6])


@pytest.mark.parametrize("columns", [range(16, 64), range(48)])
def test_blocks_are_not_cut_in_two(columns):
    with pytest.raises(BrokenModel, match="multiples of 32"):
        cut_numbers(tensor_in(Encoding.Q4_0), None, columns)
