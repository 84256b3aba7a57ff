"""Rounding to 4 bits finds scales of little error, for packed weights and for files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import _native
from headrace.inference.runner.native_config import native_config
from tests.inference.runner.native_models import small_spec

GROUP = 32


def pack_w4(values):
    """Pack a square matrix as W4 and return what the panels mean."""
    size = len(values)
    spec = small_spec(num_layers=1, hidden_size=size, num_heads=size // 32, num_kv_heads=1)
    config = native_config(spec, dtype="w4a16", kv_dtype="bf16", max_context_tokens=64)
    slot = next(slot for slot in _native.layout(config) if slot.name == "layers.0.o")
    arena = _native.Arena(_native.layout_bytes(config))
    rows = np.ascontiguousarray(values, np.float32).view(np.uint8)
    _native.pack_tensor(arena, slot, "f32", rows, size, size, first_row=0, interleaved=False, num_threads=2)
    panels = arena.view()[slot.offset : slot.offset + slot.num_bytes].reshape(size // 32, -1, 640)
    slices = panels[:, :, :512].reshape(len(panels), -1, 4, 32, 4)
    nibbles = np.stack([slices & 15, slices >> 4], axis=3).transpose(0, 4, 1, 2, 3, 5).reshape(size, -1, GROUP)
    halves = panels[:, :, 512:].reshape(len(panels), -1, 2, 32, 2).view("<f2")[..., 0].transpose(0, 3, 1, 2)
    scales, minima = np.moveaxis(halves.reshape(size, -1, 2).astype(np.float32), -1, 0)[..., None]
    return (nibbles * scales + minima).reshape(size, size)


def from_int4(codes, scales, zeros):
    groups = codes.reshape(*scales.shape, GROUP).astype(np.float32) - zeros[..., None]
    return (groups * scales.view(np.float16).astype(np.float32)[..., None]).reshape(codes.shape)


def plain_rounding(values):
    groups = values.reshape(-1, GROUP)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scales = np.maximum(high - low, 1e-20) / 15
    return (np.rint((groups - low) / scales) * scales + low).reshape(values.shape)


def power_of_error(values, rounded):
    return float(np.sum((values - rounded) ** 2) / np.sum(values**2))


@pytest.mark.parametrize(("degrees", "bound"), [(None, 0.0050), (5, 0.0068)])
def test_packed_weights_lose_less_than_by_rounding_between_minimum_and_maximum(degrees, bound):
    rng = np.random.default_rng(0)
    shape = (256, 256)
    values = (rng.standard_normal(shape) if degrees is None else rng.standard_t(degrees, shape)).astype(np.float32)
    error = power_of_error(values, pack_w4(values))
    assert error < bound
    assert error < 0.83 * power_of_error(values, plain_rounding(values))


def test_numbers_on_a_grid_are_packed_exactly():
    rng = np.random.default_rng(1)
    nibbles = rng.integers(0, 16, (64, 2, GROUP))
    nibbles[..., :2] = 0, 15
    scales = rng.integers(1, 200, (64, 2, 1)) / 1024
    values = (nibbles * scales - 8 * scales).reshape(64, 64).astype(np.float32)
    np.testing.assert_array_equal(pack_w4(values), values)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]), st.booleans())
def test_codes_are_finite_and_no_worse_than_zero(seed, size, is_one_sided):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((3, 2 * GROUP), np.float32) * np.float32(size)
    values[0] = values[0, 0]  # a constant
    values = np.abs(values) if is_one_sided else values
    codes, scales, zeros = _native.quantize_int4(values, None, num_threads=1)
    assert codes.max() <= 15
    assert zeros.max() <= 15
    rounded = from_int4(codes, scales, zeros)
    assert np.isfinite(rounded).all()
    if size in (1e-6, 1.0):  # others exceed a half
        assert np.sum((values - rounded) ** 2, dtype=np.float64) <= np.sum(values**2, dtype=np.float64)


def test_important_columns_get_less_error():
    rng = np.random.default_rng(2)
    values = rng.standard_normal((64, 256), np.float32)
    importance = np.where(np.arange(256) % 8 == 0, 50.0, 1.0).astype(np.float32)
    plain = (from_int4(*_native.quantize_int4(values, None, num_threads=2)) - values) ** 2
    weighted = (from_int4(*_native.quantize_int4(values, importance, num_threads=2)) - values) ** 2
    assert (weighted * importance).sum() < 0.8 * (plain * importance).sum()
    assert plain.sum() < weighted.sum()
    assert plain.sum() / (values**2).sum() < 0.0062


def test_the_result_does_not_depend_on_the_number_of_threads():
    values = np.random.default_rng(3).standard_normal((40, 96), np.float32)
    for alone, together in zip(
        _native.quantize_int4(values, None, num_threads=1),
        _native.quantize_int4(values, None, num_threads=3),
        strict=True,
    ):
        np.testing.assert_array_equal(alone, together)


def test_matrices_that_do_not_fit_are_refused():
    values = np.zeros((2, 64), np.float32)
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.quantize_int4(values[:, :40].copy(), None, num_threads=1)
    with pytest.raises(ValueError, match="each column"):
        _native.quantize_int4(values, np.ones(32, np.float32), num_threads=1)
