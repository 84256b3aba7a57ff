import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.gguf_dequantize import mxfp4_as_fp4
from headrace.inference.models.weights import Encoding, RawTensor, cut_tensor

VALUES = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)


def tensor_in(encoding):
    if encoding is Encoding.I8:
        scales = np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(6, 1).view(np.uint8)
        return RawTensor(encoding, 6, 128, np.concatenate([scales, VALUES.view(np.uint8)[:, :128]], axis=1))
    if encoding is Encoding.FP4:
        blocks = mxfp4_as_fp4(quants.quantize(VALUES, GGMLQuantizationType.MXFP4).reshape(-1, 17))
        return RawTensor(encoding, 6, 128, blocks.reshape(6, -1))
    return RawTensor(encoding, 6, 128, quants.quantize(VALUES, GGMLQuantizationType[encoding.upper()]).view(np.uint8))


@pytest.mark.parametrize("encoding", Encoding)
def test_a_cut_tensor_has_the_numbers_of_its_rows_and_columns(encoding):
    tensor = tensor_in(encoding)
    cut = cut_tensor(tensor, range(1, 4), range(32, 96))
    assert (cut.encoding, cut.num_rows, cut.num_columns) == (encoding, 3, 64)
    np.testing.assert_array_equal(decode(cut), decode(tensor)[1:4, 32:96])
    np.testing.assert_array_equal(decode(cut_tensor(tensor, range(2, 6), None)), decode(tensor)[2:6])


@pytest.mark.parametrize("columns", [range(16, 64), range(48)])
def test_blocks_are_not_cut_in_two(columns):
    with pytest.raises(BrokenModel, match="multiples of 32"):
        cut_tensor(tensor_in(Encoding.Q4_0), None, columns)
