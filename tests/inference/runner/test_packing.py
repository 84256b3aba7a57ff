"""Packed weights come back from the cache as they went in, or are rebuilt."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from headrace import _native
from headrace.core.errors import BrokenModel, SettingsError
from headrace.inference.models.decoding import decode
from headrace.inference.models.ternary import pack_ternary, ternary_rows
from headrace.inference.models.weights import Encoding, RawTensor
from headrace.inference.runner.native_config import native_config
from headrace.inference.runner.packed_parts import MATRICES
from headrace.inference.runner.packing import layer_formats_of, load_packed, packing_key
from headrace.inference.runner.reference import ReferenceRunner
from tests.inference.models.test_gguf_dequantize import random_blocks
from tests.inference.runner.native_models import ISAS, LIMITS, WIDE, BlockWeights, relative_error, small_spec
from tests.inference.runner.native_models import load as load_runner
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import ArrayWeights, random_weights, round_to_w8


def config_of(spec, dtype="w8a8"):
    return native_config(spec, dtype=dtype, kv_dtype="int8", max_context_tokens=128)


def load(spec, cache_dir, dtype="w8a8", **options):
    return load_packed(spec, random_weights(spec), config_of(spec, dtype), cache_dir=cache_dir, threads=2, **options)


def packed_file(cache_dir):
    (path,) = (cache_dir / "packed").iterdir()
    return path


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
def test_the_second_start_reads_the_same_bytes_from_the_cache(dtype, tmp_path):
    spec = small_spec()
    first, second = load(spec, tmp_path, dtype), load(spec, tmp_path, dtype)
    assert (first.origin, second.origin) == ("packed and cached", "cached")
    np.testing.assert_array_equal(first.arena.view(), second.arena.view())


@pytest.mark.parametrize("at", [0, 20, 5000, -1])
def test_a_damaged_file_is_rebuilt(at, tmp_path):
    spec = small_spec()
    good = load(spec, tmp_path).arena.view().copy()
    path = packed_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)
    again = load(spec, tmp_path)
    assert again.origin == "packed and cached"
    np.testing.assert_array_equal(again.arena.view(), good)
    assert load(spec, tmp_path).origin == "cached"


@pytest.mark.parametrize("size", [0, 100, 4096, 9000])
def test_a_truncated_file_is_rebuilt(size, tmp_path):
    spec = small_spec()
    load(spec, tmp_path)
    path = packed_file(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    assert load(spec, tmp_path).origin == "packed and cached"


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
def test_mapped_weights_are_the_same_bytes_and_use_the_same_file(dtype, tmp_path):
    spec = small_spec()
    copied = load(spec, tmp_path / "copied", dtype).arena.view()
    for origin in ("packed and mapped", "mapped"):
        mapped = load(spec, tmp_path / "mapped", dtype, mapping="preferred")
        assert mapped.origin == origin
        np.testing.assert_array_equal(mapped.arena.view(), copied)
    assert load(spec, tmp_path / "mapped", dtype).origin == "cached"


@pytest.mark.parametrize("at", [0, 20, 4096, -1])
def test_a_file_damaged_at_its_ends_is_not_mapped(at, tmp_path):
    good = load(small_spec(), tmp_path, mapping="required").arena.view().copy()
    path = packed_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)
    again = load(small_spec(), tmp_path, mapping="required")
    assert again.origin == "packed and mapped"
    np.testing.assert_array_equal(again.arena.view(), good)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.98])
def test_a_file_of_which_a_part_was_never_written_is_not_mapped(share, tmp_path):
    load(small_spec(), tmp_path, mapping="required")
    path = packed_file(tmp_path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(int(size * share))
        file.truncate(size)  # zeros, as a crash leaves blocks that were reserved
    assert load(small_spec(), tmp_path, mapping="required").origin == "packed and mapped"
    assert load(small_spec(), tmp_path, mapping="required").origin == "mapped"


def test_a_file_that_is_replaced_stays_as_it_was_where_it_is_mapped(tmp_path):
    mapped = load(small_spec(), tmp_path, mapping="required").arena
    good, path = mapped.view().copy(), packed_file(tmp_path)
    kept = path.stat().st_ino
    with path.open("r+b") as file:
        file.write(b"another version")
    assert load(small_spec(), tmp_path, mapping="required").origin == "packed and mapped"
    assert path.stat().st_ino != kept
    np.testing.assert_array_equal(mapped.view(), good)


@pytest.mark.parametrize("size", [0, 100, 4096, 9000])
def test_a_truncated_file_is_not_mapped(size, tmp_path):
    spec = small_spec()
    good = load(spec, tmp_path, mapping="required").arena.view().copy()
    path = packed_file(tmp_path)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:size])
    again = load(spec, tmp_path, mapping="required")
    assert again.origin == "packed and mapped"
    np.testing.assert_array_equal(again.arena.view(), good)


@pytest.mark.parametrize("mapping", ["none", "preferred"])
def test_an_unwritable_cache_does_not_prevent_loading(mapping, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    packed = load(small_spec(), blocked, mapping=mapping)
    assert packed.origin.startswith("packed, not cached")


def test_weights_that_must_be_mapped_need_a_cache_that_can_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(SettingsError, match="cache_dir"):
        load(small_spec(), blocked, mapping="required")


def test_a_checkpoint_that_is_broken_leaves_no_file(tmp_path):
    spec = small_spec()
    weights = ArrayWeights(dict(random_weights(spec).arrays) | {"layers.1.down": np.zeros((96, 999), np.float32)})
    with pytest.raises(BrokenModel, match=r"layers\.1\.down"):
        load_packed(spec, weights, config_of(spec), cache_dir=tmp_path, threads=1, mapping="preferred")
    assert list((tmp_path / "packed").iterdir()) == []


@pytest.mark.parametrize("mapping", ["none", "preferred"])
def test_no_temporary_files_are_left(mapping, tmp_path):
    load(small_spec(), tmp_path, mapping=mapping)
    assert [path.suffix for path in (tmp_path / "packed").iterdir()] == [".weights"]


def test_the_key_depends_on_content_format_and_shape():
    keys = {
        packing_key("one", config_of(small_spec())),
        packing_key("two", config_of(small_spec())),
        packing_key("one", config_of(small_spec(), "bf16")),
        packing_key("one", config_of(small_spec(num_layers=3))),
    }
    assert len(keys) == 4


def test_progress_ends_at_the_total(tmp_path):
    calls = []
    load(small_spec(), tmp_path, progress=lambda task, done, total, unit="bytes": calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == _native.layout_bytes(config_of(small_spec()))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    spec = small_spec()
    arrays = dict(random_weights(spec).arrays) | {"layers.1.down": np.zeros((96, 999), np.float32)}
    with pytest.raises(BrokenModel, match=r"layers\.1\.down"):
        load_packed(spec, ArrayWeights(arrays), config_of(spec), cache_dir=tmp_path, threads=1)


def test_a_tensor_with_too_few_bytes_is_named(tmp_path):
    spec = small_spec()

    class Truncated(ArrayWeights):
        def load(self, name):
            tensor = super().load(name)
            return (
                RawTensor(Encoding.F32, tensor.num_rows, tensor.num_columns, tensor.data[:, :-4])
                if name.endswith(".o")
                else tensor
            )

    with pytest.raises(BrokenModel, match=r"layers\.0\.o"):
        load_packed(spec, Truncated(random_weights(spec).arrays), config_of(spec), cache_dir=tmp_path, threads=1)


def test_four_bit_blocks_are_copied_nibble_for_nibble():
    spec = small_spec(num_layers=1)
    config = config_of(spec, "w4a8")
    slot = next(slot for slot in _native.layout(config) if slot.name == "layers.0.o")
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (slot.num_rows, slot.num_columns // 32, 20), np.uint8)
    scales = rng.uniform(0.1, 1, (*blocks.shape[:2], 2)).astype("<f2")
    blocks[:, :, :4] = scales.view(np.uint8)
    arena = _native.Arena(_native.layout_bytes(config))
    _native.pack_tensor(
        arena,
        slot,
        "q4_1",
        blocks.reshape(slot.num_rows, -1),
        slot.num_rows,
        slot.num_columns,
        first_row=0,
        interleaved=False,
        num_threads=2,
    )
    panels = arena.view()[slot.offset : slot.offset + slot.num_bytes].reshape(slot.num_rows // 32, -1, 640)
    nibbles = panels[:, :, :512].reshape(len(panels), -1, 4, 32, 4)
    unpacked = np.stack([nibbles & 15, nibbles >> 4], axis=3).transpose(0, 4, 1, 2, 3, 5).reshape(slot.num_rows, -1)
    expected = np.concatenate([blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4], axis=2).reshape(slot.num_rows, -1)
    np.testing.assert_array_equal(unpacked, expected)
    halves = panels[:, :, 512:].reshape(len(panels), -1, 2, 32, 2).view("<f2")[..., 0].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(halves.reshape(slot.num_rows, -1, 2), scales)


def packed_w8(spec, encoding, rows, num_rows, num_columns):
    """Return the numbers that `layers.0.down` holds after packing: bytes, scales of groups, scales of rows."""
    config = config_of(spec)
    slot = next(slot for slot in _native.layout(config) if slot.name == "layers.0.down")
    arena = _native.Arena(_native.layout_bytes(config))
    _native.pack_tensor(
        arena, slot, encoding, rows, num_rows, num_columns, first_row=0, interleaved=False, num_threads=1
    )
    panels = arena.view()[slot.offset : slot.offset + slot.num_bytes].reshape(slot.num_rows // 32, -1)
    row_scales = panels[:, -128:].copy().view("<f4").reshape(-1)
    groups = panels[:, :-128].reshape(len(panels), slot.num_columns // 64, -1)
    scales = groups[:, :, 2048:].copy().view("<f2").transpose(0, 2, 1).reshape(slot.num_rows, -1)
    numbers = groups[:, :, :2048].reshape(len(panels), -1, 16, 32, 4).transpose(0, 3, 1, 2, 4)
    return numbers.reshape(slot.num_rows, -1).astype(np.int32) - 128, scales.astype(np.float32), row_scales


def values_of(numbers, scales, row_scales):
    return numbers * np.repeat(scales, 64, axis=1) * row_scales[:, None]


def test_int8_rows_are_packed_as_they_are():
    """Rounding again would find other scales: hardly a group has a value of 127."""
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, (96, 160), np.int8)
    row_scales = rng.uniform(1e-6, 1e3, 96).astype(np.float32)
    rows = np.concatenate([row_scales.view(np.uint8).reshape(96, 4), values.view(np.uint8)], axis=1)
    numbers, scales, packed_scales = packed_w8(small_spec(), "i8", rows, 96, 160)
    np.testing.assert_array_equal(numbers[:, :160], values)
    assert not numbers[:, 160:].any()
    assert (scales == 1).all()
    np.testing.assert_array_equal(packed_scales, row_scales)


def test_floats_are_rounded_in_groups_of_64_to_the_values_of_the_reference():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((96, 160)) * np.ldexp(1.0, rng.integers(-20, 5, (96, 1)))).astype(np.float32)
    values[3] = 0
    values[5, :64] *= 1e-12  # its scale is lost beside those of the row
    values[7, 64:128] = 0
    packed = values_of(*packed_w8(small_spec(), "f32", values.view(np.uint8), 96, 160))
    np.testing.assert_array_equal(packed[:, :160], round_to_w8(values))
    again = np.ascontiguousarray(packed[:, :160], np.float32)
    np.testing.assert_array_equal(values_of(*packed_w8(small_spec(), "f32", again.view(np.uint8), 96, 160)), packed)
    error = np.abs(packed[:, :160] - values).reshape(96, -1, 32).max(axis=2)
    largest = np.abs(values).reshape(96, -1, 32).max(axis=2)
    assert (error[:, 4] <= largest[:, 4] / 253).all()


def test_blocks_of_q8_0_that_share_a_scale_keep_their_numbers():
    rng = np.random.default_rng(0)
    numbers = rng.integers(-127, 128, (96, 128), np.int8)
    numbers[:, ::64] = 127
    scales = np.repeat(rng.uniform(1e-3, 1, (96, 2)).astype("<f2"), 2, axis=1)
    blocks = np.concatenate([scales[..., None].view(np.uint8), numbers.reshape(96, 4, 32).view(np.uint8)], axis=2)
    packed = values_of(*packed_w8(small_spec(), "q8_0", np.ascontiguousarray(blocks.reshape(96, -1)), 96, 128))
    np.testing.assert_array_equal(packed[:, :128], numbers * np.repeat(scales.astype(np.float32), 32, axis=1))


def blocks(spec, encoding):
    return BlockWeights(random_weights(spec).arrays, encoding)


def slots_of(spec, weights):
    config = native_config(
        spec,
        dtype="w4a8",
        kv_dtype="int8",
        max_context_tokens=128,
        layer_formats=layer_formats_of(spec, weights),
    )
    return {slot.name: slot for slot in _native.layout(config)}


@pytest.mark.parametrize(("encoding", "bits"), [(Encoding.Q4_0, 4.5), (Encoding.FP4, 4.5), (Encoding.Q4_1, 5)])
def test_matrices_of_symmetric_blocks_are_packed_without_minima(encoding, bits):
    spec = small_spec()
    slots = slots_of(spec, blocks(spec, encoding))
    for name in MATRICES:
        slot = slots[f"layers.0.{name}"]
        assert slot.num_bytes * 8 == slot.num_rows * slot.num_columns * bits


@pytest.mark.parametrize(
    ("kind", "encoding", "bits"),
    [
        (Type.TQ1_0, "ternary", 2.125),
        (Type.TQ2_0, "ternary", 2.125),
        (Type.Q2_K, "q2_k", 2.625),
        (Type.Q3_K, "q3_k", 3.5625),
    ],
)
def test_weights_of_2_and_3_bits_are_those_of_the_file(kind, encoding, bits):
    """Each input alone is multiplied by 127 steps of 1, so that a product is 127 weights, rounded once or twice."""
    num_rows, width = 64, 512
    blocks = random_blocks(kind, num_rows, width, seed=1).reshape(num_rows, 2, -1)
    at = {Type.Q2_K: slice(80, 84)}.get(kind, slice(-2, None))
    blocks[..., at] = (
        np.random.default_rng(0)
        .uniform(-1, 1, (*blocks.shape[:2], 2))
        .astype("<f2")
        .view(np.uint8)[..., : len(range(*at.indices(blocks.shape[-1])))]
    )
    rows = blocks.reshape(num_rows, -1)
    exact = quants.dequantize(rows, kind)
    data = ternary_rows(rows, kind) if encoding == "ternary" else rows
    np.testing.assert_array_equal(decode(RawTensor(Encoding(encoding), num_rows, width, data)), exact)

    slot, arena = slot_of(encoding, num_rows, width)
    assert slot.num_bytes * 8 == num_rows * width * bits
    options = {"first_row": 0, "interleaved": False, "num_threads": 2}
    _native.pack_tensor(arena, slot, encoding, np.ascontiguousarray(data), num_rows, width, **options)
    panels = arena.view()[slot.offset : slot.offset + slot.num_bytes]
    inputs = np.eye(width, dtype=np.float32) * 127
    products = _native.multiply(FORMAT_OF[encoding], panels, inputs, terms=1, isa=ISAS[0])
    np.testing.assert_allclose(products.T, exact * 127, rtol=3e-7, atol=3e-7 * 127 * np.abs(exact).max())


FORMAT_OF = {"ternary": "ternary", "q2_k": "w2", "q3_k": "w3"}


def slot_of(encoding, num_rows, width):
    """Return the slot of a matrix in the format that keeps an encoding, and its arena."""
    spec = small_spec(num_layers=1, hidden_size=num_rows, num_heads=1, num_kv_heads=1, head_dim=width)
    formats = {"layers.0.o": FORMAT_OF[encoding]}
    config = native_config(spec, dtype="w4a8", kv_dtype="int8", max_context_tokens=64, layer_formats=formats)
    slot = next(slot for slot in _native.layout(config) if slot.name == "layers.0.o")
    return slot, _native.Arena(_native.layout_bytes(config))


def test_v_of_another_format_is_a_matrix_of_its_own(tmp_path):
    weights = BlockWeights(random_weights(WIDE).arrays, Encoding.Q2_K, {"v": Encoding.Q3_K, "o": Encoding.Q4_1})
    formats = layer_formats_of(WIDE, weights)
    assert {name: formats.get(f"layers.0.{name}") for name in (*MATRICES, "v")} == {
        **dict.fromkeys(("qkv", "gate_up", "down"), "w2"),
        "o": None,
        "v": "w3",
    }
    slots = slots_of(WIDE, weights)
    assert [slots[f"layers.0.{name}"].num_rows for name in ("qkv", "v")] == [320, 64]
    step = make_step((np.arange(20), 0, [1, 2]), all_rows=True)
    expected = ReferenceRunner(WIDE, weights, LIMITS).logits(step)
    for dtype, tolerance in (("w4a8", 0.04), ("w4a16", 0.02)):
        assert relative_error(load_runner(WIDE, weights, tmp_path, dtype=dtype).logits(step), expected) < tolerance


def test_ternary_weights_beside_others_are_the_same_in_4_bits():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (96, 128), np.uint8)
    scales = rng.uniform(-1, 1, (96, 1)).astype(np.float16)
    config = config_of(small_spec(hidden_size=96, intermediate_size=128), "w4a8")
    slot = next(slot for slot in _native.layout(config) if slot.name == "layers.0.down")
    arena = _native.Arena(_native.layout_bytes(config))
    options = {"first_row": 0, "interleaved": False, "num_threads": 1}
    _native.pack_tensor(arena, slot, "ternary", pack_ternary(codes, scales), 96, 128, **options)
    panels = arena.view()[slot.offset : slot.offset + slot.num_bytes]
    products = _native.multiply("w4", panels, np.eye(128, dtype=np.float32) * 127, terms=1, isa=ISAS[0])
    np.testing.assert_array_equal(products.T, 127 * (codes.astype(np.float32) - 1) * scales.astype(np.float32))


def test_a_matrix_with_one_tensor_of_another_encoding_keeps_its_minima():
    class Mixed(BlockWeights):
        def encoding(self, name):
            return Encoding.Q4_1 if name.endswith(".k") else super().encoding(name)

    spec = small_spec()
    weights = Mixed(random_weights(spec).arrays, Encoding.Q4_0)
    formats = layer_formats_of(spec, weights)
    others = [f"layers.{layer}.{name}" for layer in range(spec.num_layers) for name in MATRICES[1:]]
    assert formats == dict.fromkeys(others, "w4_symmetric")


@pytest.mark.parametrize("encoding", [Encoding.Q4_0, Encoding.FP4])
def test_floats_where_blocks_without_minima_were_declared_are_rounded_to_them(encoding, tmp_path):
    class Decoded(BlockWeights):
        def load(self, name):
            raw = super().load(name)
            values = decode(raw).astype(np.float32)
            return RawTensor(Encoding.F32, *values.shape, np.ascontiguousarray(values).view(np.uint8))

    spec = small_spec()
    arrays = random_weights(spec).arrays
    step = make_step((np.arange(20), 0, [1, 2]), all_rows=True)
    exact = load_runner(spec, BlockWeights(arrays, encoding), tmp_path, dtype="w4a8").logits(step)
    rounded = load_runner(spec, Decoded(arrays, encoding), tmp_path / "decoded", dtype="w4a8").logits(step)
    assert 0 < relative_error(rounded, exact) < 0.2


def test_an_unknown_format_of_a_matrix_is_refused():
    config = native_config(
        small_spec(), dtype="w4a8", kv_dtype="int8", max_context_tokens=64, layer_formats={"layers.0.o": "w5"}
    )
    with pytest.raises(ValueError, match=r"layers\.0\.o is w5; expected .*, ternary, w2 or w3"):
        _native.layout(config)
