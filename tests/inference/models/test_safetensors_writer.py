"""Files written tensor by tensor are read by the library of the format."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inference.models.safetensors_writer import SafetensorsWriter, encode_floats
from headrace.inference.models.weights import Encoding, as_float32

PLAN = {"b": ("I8", (3, 5)), "a": ("F32", (3, 1)), "c.weight": ("BF16", (4,)), "d": ("F16", (2, 2))}


def test_the_library_reads_what_was_written(tmp_path):
    import torch
    from safetensors.torch import load_file

    rng = np.random.default_rng(0)
    whole, floats = rng.integers(-128, 128, (3, 5), np.int8), rng.standard_normal((3, 1), np.float32)
    with SafetensorsWriter(tmp_path / "m.safetensors", PLAN) as out:
        out.write("b", whole.view(np.uint8).reshape(-1))
        out.write("a", floats.view(np.uint8).reshape(-1))
        out.write("c.weight", encode_floats(np.arange(4, dtype=np.float32), Encoding.BF16))
        out.write("d", encode_floats(np.full(4, 0.5, np.float32), Encoding.F16))

    read = load_file(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(read["b"].numpy(), whole)
    np.testing.assert_array_equal(read["a"].numpy(), floats)
    assert read["c.weight"].tolist() == [0, 1, 2, 3]
    assert read["d"].dtype is torch.float16


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_are_rounded_to_bfloat16_as_torch_rounds_them(values):
    import torch

    array = np.array(values, np.float32)
    ours = as_float32(encode_floats(array, Encoding.BF16), Encoding.BF16)
    np.testing.assert_array_equal(ours, torch.from_numpy(array).bfloat16().float().numpy())


def test_tensors_out_of_order_or_missing_fail_an_assertion(tmp_path):
    with pytest.raises(AssertionError, match="not the next"), SafetensorsWriter(tmp_path / "one", PLAN) as out:
        out.write("a", np.zeros(12, np.uint8))
    with pytest.raises(AssertionError, match="missing"), SafetensorsWriter(tmp_path / "two", PLAN):
        pass
