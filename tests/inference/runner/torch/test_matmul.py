import numpy as np
import pytest
import torch

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.torch.matmul import (
    dequantize,
    grouped_linear,
    linear,
    on_top,
    pack_int4,
    pack_int8,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)

BLOCK_BYTES = {Encoding.Q4_0: 18, Encoding.Q4_1: 20}


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def raw_q4(encoding, num_rows=6, num_blocks=3):
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (num_rows, num_blocks, BLOCK_BYTES[encoding]), np.uint8)
    factors = rng.standard_normal((num_rows, num_blocks, BLOCK_BYTES[encoding] // 2 - 8)).astype("<f2")
    data[..., : factors.shape[-1] * 2] = factors.view(np.uint8)
    return RawTensor(encoding, num_rows, num_blocks * 32, data.reshape(num_rows, -1))


def raw_int8(num_rows=6, num_columns=40):
    rng = np.random.default_rng(2)
    scales = rng.random((num_rows, 1)).astype("<f4")
    values = rng.integers(-127, 128, (num_rows, num_columns), np.int8)
    return RawTensor(Encoding.I8, num_rows, num_columns, np.hstack([scales.view(np.uint8), values.view(np.uint8)]))


@pytest.mark.parametrize(
    ("raw", "pack"),
    [(raw_q4(Encoding.Q4_0), pack_int4), (raw_q4(Encoding.Q4_1), pack_int4), (raw_int8(), pack_int8)],
    ids=["q4_0", "q4_1", "i8"],
)
def test_a_packed_matrix_has_the_numbers_of_the_checkpoint(raw, pack):
    np.testing.assert_array_equal(dequantize(pack(raw), torch.float32), decode(raw))


@pytest.mark.parametrize(("quantize", "error"), [(quantize_fp8, 0.05), (quantize_int8, 0.02), (quantize_int4, 0.12)])
def test_a_product_with_a_quantized_matrix_is_near_the_exact_one(quantize, error):
    x, matrix, bias = normal(5, 64), normal(24, 64, seed=1), normal(24, seed=2)
    exact = torch.nn.functional.linear(x, matrix, bias)
    found = linear(x, quantize(matrix), bias)
    assert found.dtype == x.dtype
    assert 0 < (found - exact).norm() / exact.norm() < error


def test_a_product_in_int8_is_exact_but_for_the_scales():
    x, weight = normal(3, 40), pack_int8(raw_int8())
    scales = x.abs().amax(-1) / 127
    rounded = torch.round(x / scales[:, None])
    expected = (rounded.double() @ weight.values.double().T) * scales[:, None] * weight.scales
    np.testing.assert_allclose(linear(x, weight), expected, rtol=1e-6)


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_int8, quantize_int4])
def test_zeros_stay_zeros(quantize):
    assert not dequantize(quantize(torch.zeros(4, 64)), torch.float32).any()
    assert not linear(torch.zeros(2, 64), quantize(normal(4, 64))).any()


def test_a_matrix_of_another_encoding_is_refused():
    with pytest.raises(BrokenModel, match="stored as i8; expected q4_0 or q4_1"):
        pack_int4(raw_int8())
    with pytest.raises(BrokenModel, match="stored as q4_0; expected i8"):
        pack_int8(raw_q4(Encoding.Q4_0))
    with pytest.raises(BrokenModel, match="40 inputs; int4 needs a multiple of 32"):
        quantize_int4(normal(4, 40))


@pytest.mark.parametrize("quantize", [torch.clone, quantize_fp8, quantize_int8, quantize_int4])
def test_each_group_of_rows_has_a_matrix_of_its_own(quantize):
    x, matrices = normal(7, 64), [normal(24, 64, seed=seed) for seed in range(4)]
    found = grouped_linear(x, on_top([quantize(matrix) for matrix in matrices]), torch.tensor([0, 3, 3, 4, 7]))
    for rows, matrix in ((slice(0, 3), 0), (slice(3, 4), 2), (slice(4, 7), 3)):
        np.testing.assert_allclose(found[rows], linear(x[rows], quantize(matrices[matrix])), rtol=1e-5, atol=1e-5)


def test_int4_matrices_without_minima_are_put_on_top_of_those_with_them():
    parts = [pack_int4(raw_q4(Encoding.Q4_0)), pack_int4(raw_q4(Encoding.Q4_1))]
    expected = torch.cat([dequantize(part, torch.float32) for part in parts])
    np.testing.assert_allclose(dequantize(on_top(parts), torch.float32), expected, rtol=1e-3)
