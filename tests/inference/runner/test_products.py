"""
Products of the kernels give the bits of the formulas of `Matrix` and `Activations`, in any company of rows.

The reference computes integer sums exactly and floats in the order of the kernels, so that no sum of 16 bits can
overflow unnoticed, and no ISA can round in another place.
"""

from functools import cache

import numpy as np
import pytest

from headrace import _native
from tests.inference.runner.native_models import ALL_ISAS

PANEL, MAX_ROWS, WIDTH = 32, 13, 576
KINDS = [("bf16", 1), *((kind, terms) for kind in ("w8", "w4", "w4_symmetric", "fp4") for terms in (1, 2))]
FP4_STEPS = np.array([12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0])
MIDDLES = {"w8": 128, "w4": 0, "w4_symmetric": 8, "fp4": 12}
TERM_RATIO = np.float32(254)
LOW_WIDTH = 768
LOW_KINDS = {"ternary": (1, 128, 4), "w2": (0, 256, 4), "w3": (4, 256, 8)}
"""Middle code, inputs of a block and number of codes."""


def fused(a, b, c):
    """Return a * b + c in float32, rounded once: in float64 to the odd neighbour, then to float32."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = np.ascontiguousarray(total).view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits % 2 == 0), bits + away, bits)
    return odd.view(np.float64).astype(np.float32)


def separate(a, b, c):
    return (a * b).astype(np.float32) + c


def quantized(inputs, group, terms):
    """Return the bytes (terms, rows, groups, group), scales and sums of rows."""
    x = inputs.reshape(len(inputs), -1, group)
    peak = np.abs(x).max(axis=-1)
    scales = peak / np.float32(127)
    steps = x * np.where(peak > 0, np.float32(127) / np.where(peak > 0, peak, 1), 0).astype(np.float32)[..., None]
    first = np.rint(steps)
    second = np.rint((steps - first) * TERM_RATIO)
    sums = first.sum(-1, dtype=np.float32)
    if terms == 2:
        sums = sums + second.sum(-1, dtype=np.float32) / TERM_RATIO
    return np.stack([first, second][:terms]).astype(np.int64), scales, scales * sums


def random_matrix(rng, kind, fill):
    """Return the integers, scales, minima (w4) and output scales (w8) of two panels; `fill` picks extreme integers."""
    group = 64 if kind == "w8" else 32
    low, high, extremes = (
        (0, 256, {"largest": 255, "least": 0}) if kind == "w8" else (0, 16, {"largest": 15, "least": 0})
    )
    if kind == "fp4":
        extremes = {"largest": 7, "least": 15}
    shape = (2 * PANEL, WIDTH)
    integers = rng.integers(low, high, shape) if fill == "any" else np.full(shape, extremes[fill])
    scales, minima = (rng.uniform(-1, 1, (2 * PANEL, WIDTH // group)).astype(np.float16) for _ in range(2))
    return integers.astype(np.uint8), scales, minima, rng.uniform(0.5, 2, 2 * PANEL).astype(np.float32)


def packed(kind, integers, scales, minima, output_scales):
    """Return the bytes of the panels of a matrix, as `Matrix` of csrc/model.h describes them."""
    panels = []
    for panel in range(0, len(integers), PANEL):
        rows, own = integers[panel : panel + PANEL], slice(panel, panel + PANEL)
        if kind == "w8":
            data = rows.reshape(PANEL, -1, 16, 4).transpose(1, 2, 0, 3).reshape(WIDTH // 64, -1)
        else:
            slices = rows.reshape(PANEL, -1, 4, 2, 4)
            data = (slices[..., 0, :] | slices[..., 1, :] << 4).transpose(1, 2, 0, 3).reshape(WIDTH // 32, -1)
        halves = [scales[own].T, minima[own].T] if kind == "w4" else [scales[own].T]
        groups = np.hstack([data, *(np.ascontiguousarray(half).view(np.uint8) for half in halves)])
        panels.append(groups.tobytes() + (output_scales[own].tobytes() if kind == "w8" else b""))
    return np.frombuffer(b"".join(panels), np.uint8)


def expected(kind, terms, matrix, inputs, fma):
    integers, scales, minima, output_scales = matrix
    values, input_scales, sums = quantized(inputs, 64 if kind == "w8" else 32, terms)
    steps = FP4_STEPS[integers] if kind == "fp4" else integers.astype(np.int64) - (128 if kind == "w8" else 0)
    products = np.einsum("trgi,ngi->trgn", values, steps.reshape(len(steps), *values.shape[2:])).astype(np.float32)
    parts = products[0] if terms == 1 else fma(products[1], 1 / TERM_RATIO, products[0])
    total = np.zeros((len(inputs), len(steps)), np.float32)
    for group in range(values.shape[2]):
        part, scale = parts[:, group], input_scales[:, group, None]
        own, low = (half[:, group].astype(np.float32)[None] for half in (scales, minima))
        if kind == "w8":
            total = fma(part, own * scale, total)
        elif kind == "w4":
            total = fma(sums[:, group, None], low, fma(part * scale, own, total))
        else:
            offset = -np.float32(MIDDLES[kind]) * sums[:, group, None]
            total = fma(fma(part, scale, offset), own, total)
    return total * output_scales if kind == "w8" else total


def rounded(values):
    """Round to bf16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rows_of(rng, fill, width=WIDTH):
    """Return inputs; of `halves` the second term is as large as it can be."""
    noise = rng.standard_normal((MAX_ROWS, width)).astype(np.float32)
    noise[:, 64:128] = 0
    halves = np.full_like(noise, 126.5)
    halves[:, ::32] = 127
    fills = {"noise": noise, "largest": np.full_like(noise, 127), "signs": np.sign(noise) * 127, "halves": halves}
    return (-fills["largest"] if fill == "least" else fills[fill]).astype(np.float32)


def check(kind, terms, panels, inputs, expected_rows, isa, compare=np.testing.assert_array_equal):
    for count in range(1, len(inputs) + 1):
        rows = np.ascontiguousarray(inputs[:count])
        compare(_native.multiply(kind, panels, rows, terms=terms, isa=isa), expected_rows[:count])


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize(("kind", "terms"), KINDS[1:])
def test_products_of_integers_are_exact(kind, terms, isa):
    for panels, inputs, rows in products_of(kind, terms, separate if isa == "portable" else fused):
        check(kind, terms, panels, inputs, rows, isa)


@cache
def products_of(kind, terms, fma):
    """Return panels, inputs and the exact rows of their products."""
    rng, found = np.random.default_rng(7), []
    for weights in ("any", "largest", "least"):
        if kind in LOW_KINDS:
            matrix, width = random_low_matrix(rng, kind, weights), LOW_WIDTH
            panels = packed_low(kind, *matrix)
        else:
            matrix, width = random_matrix(rng, kind, weights), WIDTH
            panels = packed(kind, *matrix)
        for fill in ("noise", "largest", "least", "signs", "halves"):
            inputs = rows_of(rng, fill, width)
            rows = (expected_low if kind in LOW_KINDS else expected)(kind, terms, matrix, inputs, fma)
            found.append((panels, inputs, rows))
    return found


def random_low_matrix(rng, kind, fill):
    """Return the codes, integer scales and minima by 16 inputs, and d and dmin by block, of two panels."""
    _, block, num_codes = LOW_KINDS[kind]
    codes = rng.integers(0, num_codes, (2 * PANEL, LOW_WIDTH), np.uint8)
    low, high = {"ternary": (1, 2), "w2": (0, 16), "w3": (-32, 32)}[kind]
    scales, minima = (rng.integers(low, high, (2 * PANEL, LOW_WIDTH // 16)) for _ in range(2))
    minima = minima * (kind == "w2")
    if fill != "any":
        codes[:] = num_codes - 1 if fill == "largest" else 0
        scales[:] = low if kind == "w3" else high - 1
    d, dmin = (rng.uniform(-1, 1, (2 * PANEL, LOW_WIDTH // block)).astype(np.float16) for _ in range(2))
    return codes, scales, minima, d, dmin


def packed_low(kind, codes, scales, minima, d, dmin):
    """Return the bytes of the panels of a matrix of 2 or 3 bits, as `Matrix` of csrc/model.h describes them."""
    panels, shifts = [], np.arange(8, dtype=np.uint8)
    for panel in range(0, len(codes), PANEL):
        own = slice(panel, panel + PANEL)
        low, high = (codes[own] & 3).reshape(PANEL, -1, 4, 4, 4), (codes[own] >> 2).reshape(PANEL, -1, 2, 8, 4)
        parts = [(low << 2 * shifts[:4, None]).sum(axis=3).transpose(1, 2, 0, 3)]
        if kind == "w3":
            parts.append((high << shifts[:, None]).sum(axis=3).transpose(1, 2, 0, 3))
        if kind != "ternary":
            both = (scales[own] & 255 | minima[own] << 4).reshape(PANEL, -1, 4)[..., [0, 2, 1, 3]]
            parts.append(both.transpose(1, 0, 2))
        slabs = np.concatenate([part.reshape(LOW_WIDTH // 64, -1).astype(np.uint8) for part in parts], axis=1)
        halves = [d[own].T, -dmin[own].T] if kind == "w2" else [d[own].T]
        blocks = [slabs.reshape(d.shape[1], -1), *(np.ascontiguousarray(half).view(np.uint8) for half in halves)]
        panels.append(np.concatenate(blocks, axis=1).tobytes())
    return np.frombuffer(b"".join(panels), np.uint8)


def expected_low(kind, terms, matrix, inputs, fma):
    codes, scales, minima, d, dmin = matrix
    middle, block, _ = LOW_KINDS[kind]
    values, input_scales, _ = quantized(inputs, 32, terms)

    def products(steps):
        sums = np.einsum("trgi,ngi->trgn", values, steps.reshape(len(steps), *values.shape[2:])).astype(np.float32)
        return sums[0] if terms == 1 else fma(sums[1], 1 / TERM_RATIO, sums[0])

    parts = products(np.repeat(scales, 16, axis=1) * (codes.astype(np.int64) - middle))
    lows = products(np.repeat(minima, 16, axis=1))
    total = np.zeros((len(inputs), len(codes)), np.float32)
    for start in range(0, values.shape[2], block // 32):
        part = low = np.zeros_like(total)
        for group in range(start, start + block // 32):
            scale = input_scales[:, group, None]
            part, low = fma(parts[:, group], scale, part), fma(lows[:, group], scale, low)
        at = start * 32 // block
        total = fma(part, d[:, at].astype(np.float32)[None], total)
        if kind == "w2":
            total = fma(low, -dmin[:, at].astype(np.float32)[None], total)
    return total


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("kind", LOW_KINDS)
def test_products_of_2_and_3_bits_are_exact(kind, terms, isa):
    for panels, inputs, rows in products_of(kind, terms, separate if isa == "portable" else fused):
        check(kind, terms, panels, inputs, rows, isa)


@pytest.mark.parametrize(("kind", "terms"), [*KINDS, *((kind, terms) for kind in LOW_KINDS for terms in (1, 2))])
def test_panels_of_any_bytes_give_the_same_numbers_on_every_cpu(kind, terms):
    """A file may hold any bytes: steps that no packing makes, scales that are infinite or NaN."""
    rng = np.random.default_rng(7)
    isas = [isa for isa in ALL_ISAS if isa != "portable" and not (kind == "bf16" and _native.has_native_bf16(isa))]
    width = LOW_WIDTH if kind in LOW_KINDS else WIDTH
    if kind == "bf16":
        size = 2 * PANEL * WIDTH * 2
    elif kind in LOW_KINDS:
        size = packed_low(kind, *random_low_matrix(rng, kind, "any")).size
    else:
        size = packed(kind, *random_matrix(rng, kind, "any")).size
    for count in range(1, MAX_ROWS + 1):
        panels, inputs = rng.integers(0, 256, size, np.uint8), rows_of(rng, "noise", width)[:count]
        products = [_native.multiply(kind, panels, inputs, terms=terms, isa=isa) for isa in isas]
        for other in products[1:]:
            np.testing.assert_array_equal(other, products[0])


@pytest.mark.parametrize("isa", ALL_ISAS)
def test_products_of_bf16_add_input_after_input(isa):
    rng = np.random.default_rng(7)
    fma = separate if isa == "portable" else fused
    weights = rounded(rng.standard_normal((2 * PANEL, WIDTH)).astype(np.float32))
    pairs = (weights.view(np.uint32) >> 16).astype(np.uint16).reshape(2, PANEL, -1, 2).transpose(0, 2, 1, 3)
    inputs = rows_of(rng, "noise")
    total = np.zeros((MAX_ROWS, 2 * PANEL), np.float32)
    for at in range(WIDTH):
        total = fma(rounded(inputs)[:, at, None], weights[None, :, at], total)
    near = {"rtol": 1e-4, "atol": 1e-4} if _native.has_native_bf16(isa) else {"rtol": 0, "atol": 0}
    panels = np.frombuffer(pairs.tobytes(), np.uint8)
    check("bf16", 1, panels, inputs, total, isa, lambda actual, own: np.testing.assert_allclose(actual, own, **near))
