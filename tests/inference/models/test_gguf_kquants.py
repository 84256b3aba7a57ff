"""K-quants: Q4_K becomes Q4_1 without another rounding of the weights, mixed files keep a format for each matrix."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from hypothesis import given
from hypothesis import strategies as st

from headrace import _native
from headrace.inference.models.decoding import decode
from headrace.inference.models.gguf_dequantize import BLOCK_BYTES, q4_k_as_q4_1
from headrace.inference.models.gguf_file import open_gguf
from headrace.inference.models.gguf_reader import GgufWeights, read_gguf_spec
from headrace.inference.models.places import gguf_name
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.weights import Encoding, dominant_bits
from headrace.inference.runner.native_config import native_config
from headrace.inference.runner.packing import layer_formats_of
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.models.model_files import gguf_metadata, random_weights, write_gguf
from tests.inference.models.test_gguf_reader import SPEC as TINY
from tests.inference.runner.native_models import ISAS, LIMITS, load, relative_error
from tests.inference.runner.steps import make_step

SPEC = replace(
    TINY, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=96, num_layers=2
)
BLOCK_BYTES_OF = {Type.Q4_K: 144, Type.Q5_K: 176, Type.Q6_K: 210, Type.Q3_K: 110, Type.Q2_K: 84}
HALVES_AT = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.Q3_K: (108,), Type.Q2_K: (80, 82)}


def random_blocks(kind: Type, num_rows: int, num_columns: int, seed: int = 0) -> np.ndarray:
    """Rows of K-quant blocks: random fields, halves of the size that weights have."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_rows * num_columns // 256, BLOCK_BYTES_OF[kind]), np.uint8)
    for at in HALVES_AT[kind]:
        halves = rng.uniform(1e-4, 3e-4, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


def write(path, types, spec=SPEC):
    """A Llama whose layers' matrices have these types by the last part of their name."""
    tensors, kinds = {}, {}
    for name, values in random_weights(spec).items():
        kind = types.get(name.rpartition(".")[2]) if values.ndim == 2 and name.startswith("layers.") else None
        tensors[gguf_name(name)] = values if kind is None else random_blocks(kind, *values.shape, seed=len(name))
        kinds |= {} if kind is None else {gguf_name(name): kind}
    write_gguf(path, gguf_metadata(spec, "llama"), tensors, types=kinds)
    file = open_gguf(path)
    family, read = read_gguf_spec(file)
    return read, GgufWeights(file, family, read)


@given(st.integers(0, 2**32 - 1), st.floats(6e-5, 100), st.floats(6e-5, 100))
def test_q4_k_as_q4_1_moves_no_number_by_more_than_the_rounding_of_its_scale_and_minimum(seed, scale, minimum):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, BLOCK_BYTES), np.uint8)
    blocks[:, :4] = np.tile(np.array([scale, minimum], "<f2").view(np.uint8), (4, 1))
    exact = quants.dequantize(blocks, Type.Q4_K).reshape(-1, 32)
    ours = quants.dequantize(q4_k_as_q4_1(blocks), Type.Q4_1).reshape(-1, 32)
    scales, minima = quants.Q4_K.get_scale_min(blocks[:, 4:16])
    largest = 15 * np.float32(np.float16(scale)) * scales + np.float32(np.float16(minimum)) * minima
    assert np.all(np.abs(ours - exact) <= largest.reshape(-1, 1) * 2.0**-11 + 1e-7)


def test_a_q4_k_tensor_is_returned_as_q4_1_and_the_others_as_floats(tmp_path):
    _, weights = write(tmp_path / "m.gguf", {"o": Type.Q4_K, "down": Type.Q6_K, "gate": Type.Q5_K})
    assert weights.load("layers.0.o").encoding is Encoding.Q4_1
    assert weights.load("layers.0.down").encoding is Encoding.F32
    assert [weights.stored_bits(f"layers.0.{name}") for name in ("o", "down", "gate", "up")] == [4, 6, 5, 32]


def test_rotary_halves_of_q4_k_change_places_like_those_of_floats(tmp_path):
    _, weights = write(tmp_path / "m.gguf", {"q": Type.Q4_K})
    blocks = random_blocks(Type.Q4_K, 256, 256, seed=len("layers.0.q"))
    rows = quants.dequantize(blocks, Type.Q4_K).reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    np.testing.assert_allclose(decode(weights.load("layers.0.q")), rows, rtol=0, atol=0.002 * np.abs(rows).max())


MIXED = dict.fromkeys(("q", "k", "o", "gate", "up"), Type.Q4_K) | {"v": Type.Q6_K, "down": Type.Q5_K}


def test_a_mixed_file_keeps_8_bits_where_it_has_more_than_4(tmp_path):
    spec, weights = write(tmp_path / "m.gguf", MIXED)
    assert dominant_bits(weights, expected_shapes(spec)) == 4
    kept = layer_formats_of(spec, weights)
    assert kept == dict.fromkeys(("layers.0.qkv", "layers.0.down", "layers.1.qkv", "layers.1.down"), "w8")
    sizes = slot_bytes(spec, kept)
    assert sizes["layers.0.down"] == 256 * 512 + 256 * 512 // 64 * 2 + 256 * 4
    assert sizes["layers.0.o"] == 256 * 256 * 5 // 8


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K])
def test_a_file_of_one_type_is_not_mixed(kind, tmp_path):
    spec, weights = write(tmp_path / "m.gguf", dict.fromkeys((*MIXED, "v"), kind))
    assert layer_formats_of(spec, weights) == {}


@pytest.mark.parametrize("isa", ISAS)
def test_a_mixed_file_runs_as_the_reference_does(isa, tmp_path):
    spec, weights = write(tmp_path / "m.gguf", MIXED)
    step = make_step((np.arange(40) % spec.vocab_size, 0, [2, 0]), all_rows=True)
    expected = ReferenceRunner(spec, weights, LIMITS).logits(step)
    runner = load(spec, weights, tmp_path, dtype="w4a8", isa=isa)
    assert relative_error(runner.logits(step), expected) < 0.06  # of 8-bit inputs
    again = load(spec, weights, tmp_path, dtype="w4a8", isa=isa)
    assert again.info.facts["packed_weights"] == "cached"
    assert np.array_equal(again.logits(step), runner.logits(step))
    whole = sum(slot_bytes(spec, {}).values())
    assert whole < runner.info.weights_bytes < sum(slot_bytes(spec, {}, dtype="w8a8").values())


def slot_bytes(spec, kept, *, dtype="w4a8"):
    config = native_config(spec, dtype=dtype, kv_dtype="int8", max_context_tokens=64, layer_formats=kept)
    return {slot.name: slot.num_bytes for slot in _native.layout(config)}
