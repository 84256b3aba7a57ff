"""int8 checkpoints in the format of compressed-tensors are read, and unsupported parts are refused by name."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.llama import LLAMA
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import stored_name
from headrace.inference.models.quantized.compressed_tensors import w8a8_config
from headrace.inference.models.safetensors_reader import SafetensorsWeights
from headrace.inference.models.weights import Encoding
from tests.inference.models.model_files import TINY_LLAMA, random_weights, write_folder

_, SPEC = from_config(Fields(TINY_LLAMA, "config.json"))
NAME = "model.layers.1.mlp.down_proj.weight"
ROWS = 32


def int8_folder(folder, scale):
    """A folder with one int8 matrix; -128 is among its values, as llm-compressor makes them."""
    tensors = {stored_name(name, LLAMA.tensors): values for name, values in random_weights(SPEC).items()}
    values = np.random.default_rng(0).integers(-128, 128, tensors[NAME].shape, np.int8)
    values[0, 0] = -128
    write_folder(folder, TINY_LLAMA, {})
    save_file(tensors | {NAME: values, f"{NAME}_scale": scale}, folder / "model.safetensors")
    return values


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS,), (1,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_int8_values_and_scales_are_read_as_they_are(tmp_path, shape, dtype):
    scale = np.linspace(0.5, 2, shape[0]).reshape(shape).astype(dtype)
    values = int8_folder(tmp_path, scale)

    raw = SafetensorsWeights(tmp_path, LLAMA, SPEC).load("layers.1.down")
    assert raw.encoding is Encoding.I8
    np.testing.assert_array_equal(raw.data[:, 4:].view(np.int8), values)
    np.testing.assert_array_equal(decode(raw), values * scale.astype(np.float32).reshape(-1, 1))


@pytest.mark.parametrize(
    "scale", [np.ones(3, np.float32), np.ones((ROWS, 1), np.int32), np.ones((ROWS, 3), np.float32)]
)
def test_scales_that_do_not_fit_are_named(tmp_path, scale):
    int8_folder(tmp_path, scale)
    with pytest.raises(
        BrokenModel, match=r"down_proj\.weight_scale .* expected (one number for each of 32|floating point numbers)"
    ):
        SafetensorsWeights(tmp_path, LLAMA, SPEC)


def config_with(**changes):
    quantization = w8a8_config(["lm_head"])
    group = quantization["config_groups"]["group_0"]
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            group[part][name] = value
        else:
            quantization[part] = value
    return Fields(TINY_LLAMA | {"quantization_config": json.loads(json.dumps(quantization))}, "config.json")


def test_the_config_that_is_written_can_be_read():
    assert from_config(config_with())[1] == SPEC


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quant_method": "exl2"}, "quantized with exl2"),
        ({"quant_method": "aqlm"}, "quantized with aqlm"),
        ({"format": "marlin-24"}, "marlin-24"),
        ({"weights__num_bits": 3}, "num_bits = 3"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        ({"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "rotation"),
    ],
)
def test_another_quantization_is_refused_by_name(changes, named):
    with pytest.raises(UnsupportedModel, match=named):
        from_config(config_with(**changes))
