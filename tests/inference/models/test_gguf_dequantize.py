"""Every quantized type of GGUF has the values that gguf-py gives it; ternary types keep their numbers."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedModel
from headrace.inference.models import gguf_dequantize
from headrace.inference.models.decoding import decode
from headrace.inference.models.gguf_dequantize import dequantize, mxfp4_as_fp4
from headrace.inference.models.gguf_file import BLOCKS, open_gguf
from headrace.inference.models.gguf_reader import RAW_TYPES, GgufWeights, read_gguf_spec
from headrace.inference.models.places import gguf_name
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.ternary import GGUF_TYPES as TERNARY
from headrace.inference.models.ternary import ternary_as_q4_1, ternary_rows, ternary_values
from headrace.inference.models.weights import Encoding, RawTensor
from tests.inference.models.model_files import gguf_metadata, random_weights, write_gguf
from tests.inference.models.test_gguf_kquants import SPEC

BITS = {
    **dict.fromkeys((Type.Q5_0, Type.Q5_1, Type.Q5_K), 5),
    **dict.fromkeys((Type.Q4_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4, Type.NVFP4), 4),
    **dict.fromkeys((Type.Q3_K, Type.IQ3_S, Type.IQ3_XXS), 3),
    **dict.fromkeys((Type.Q2_K, Type.IQ2_S, Type.IQ2_XS, Type.IQ2_XXS, Type.TQ2_0), 2),
    **dict.fromkeys((Type.IQ1_S, Type.IQ1_M, Type.TQ1_0, Type.Q1_0), 1),
    Type.Q6_K: 6,
}
"""Bits per number of all types that are decoded."""
BY_GGUF = sorted(set(BITS) - {Type.Q1_0})


def random_blocks(kind, num_rows, num_columns, seed):
    """Rows of random bytes: any bytes are blocks of every type."""
    num_numbers, num_bytes = GGML_QUANT_SIZES[kind]
    shape = (num_rows, num_columns // num_numbers * num_bytes)
    blocks = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return blocks if kind != Type.TQ2_0 else np.where(blocks & blocks >> 1 & 0x55, 0, blocks)  # a code of 3 is none


@pytest.mark.parametrize("kind", BY_GGUF)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_blocks_have_the_values_of_gguf_py(kind, seed):
    rows = random_blocks(kind, 3, 1024, seed)
    with np.errstate(all="ignore"):  # halves may be infinite or not a number
        np.testing.assert_array_equal(dequantize(rows, kind), quants.dequantize(rows, kind))


@pytest.mark.parametrize("kind", BY_GGUF)
def test_a_tensor_of_several_chunks_is_put_together_in_order(kind, monkeypatch):
    rows = random_blocks(kind, 64, 1024, 0)
    monkeypatch.setattr(gguf_dequantize, "_CHUNK_NUMBERS", 5120)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(dequantize(rows, kind), quants.dequantize(rows, kind))


def test_bits_of_q1_0_are_signs_from_the_lowest_up():
    block = np.frombuffer(np.float16(0.5).tobytes() + bytes([0b00000101] + [0] * 14 + [0x80]), np.uint8)
    values = ternary_values(ternary_rows(block[np.newaxis], Type.Q1_0))[0]
    assert values[:4].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert (values[4:-1] == -0.5).all()
    assert values[-1] == 0.5


@pytest.mark.parametrize("kind", [Type.TQ1_0, Type.TQ2_0])
def test_ternary_types_keep_their_numbers_also_in_q4_1(kind):
    blocks = random_blocks(kind, 6, 512, seed=0)
    blocks.reshape(-1, GGML_QUANT_SIZES[kind][1])[:, -2:] = (
        np.float16(0.37).tobytes()[0],
        np.float16(-0.37).tobytes()[1],
    )
    rows = ternary_rows(blocks, kind)
    expected = quants.dequantize(blocks, kind)
    np.testing.assert_array_equal(ternary_values(rows), expected)
    np.testing.assert_array_equal(decode(ternary_as_q4_1(RawTensor(Encoding.TERNARY, 6, 512, rows))), expected)


@pytest.mark.parametrize("kind", sorted(BITS))
def test_a_file_of_each_type_is_read_near_its_size(kind, tmp_path):
    tensors, types = {}, {}
    for name, values in random_weights(SPEC).items():
        is_matrix = values.ndim == 2 and name.startswith("layers.")
        blocks = random_blocks(kind, *values.shape, seed=0) & 0xBF if is_matrix else values  # halves are finite
        if is_matrix and kind == Type.MXFP4:
            blocks[:, ::17] = 120  # exponents
        tensors[gguf_name(name)] = blocks
        types |= {gguf_name(name): kind} if is_matrix else {}
    file = open_gguf(write_gguf(tmp_path / "m.gguf", gguf_metadata(SPEC, "llama"), tensors, types=types))
    weights = GgufWeights(file, *read_gguf_spec(file))

    raw = weights.load("layers.0.down")
    encodings = dict.fromkeys(TERNARY, Encoding.TERNARY) | {
        Type.Q4_K: Encoding.Q4_1,
        Type.MXFP4: Encoding.FP4,
        Type.Q2_K: Encoding.Q2_K,
        Type.Q3_K: Encoding.Q3_K,
    }
    assert weights.stored_bits("layers.0.down") == BITS[kind]
    assert weights.dominant_encoding is raw.encoding is encodings.get(kind, Encoding.F32)
    assert (raw.num_rows, raw.num_columns) == expected_shapes(SPEC)["layers.0.down"]


@pytest.mark.parametrize("kind", [Type.Q8_1, Type.Q8_K])
def test_types_of_activations_are_refused(kind, tmp_path):
    tensors = {gguf_name(name): values for name, values in random_weights(SPEC).items()}
    name = gguf_name("layers.0.down")
    tensors[name] = random_blocks(kind, *expected_shapes(SPEC)["layers.0.down"], seed=0)
    file = open_gguf(write_gguf(tmp_path / "m.gguf", gguf_metadata(SPEC, "llama"), tensors, types={name: kind}))

    with pytest.raises(UnsupportedModel, match=rf"{name} has type {kind.value}, which is not supported"):
        GgufWeights(file, *read_gguf_spec(file)).load("layers.0.down")


def test_every_type_of_gguf_has_a_test():
    activations = {Type.Q8_1, Type.Q8_K}
    quantized = {kind for kind in map(Type, BLOCKS) if BLOCKS[kind][0] > 1}
    assert quantized == set(BITS) | {Type(kind) for kind in RAW_TYPES if BLOCKS[kind][0] > 1} | activations
    assert {kind: GGML_QUANT_SIZES[kind] for kind in map(Type, BLOCKS)} == BLOCKS


def test_mxfp4_keeps_its_codes_where_halves_hold_its_exponents():
    blocks = random_blocks(Type.MXFP4, 4, 64, seed=0).reshape(-1, 17)
    blocks[:, 0] = np.arange(127 - 24, 127 - 24 + len(blocks))
    fp4 = mxfp4_as_fp4(blocks)
    expected = quants.dequantize(blocks, Type.MXFP4)
    np.testing.assert_array_equal(decode(RawTensor(Encoding.FP4, len(blocks), 32, fp4)), expected)
    blocks[0, 0] = 127 + 16
    assert mxfp4_as_fp4(blocks) is None
