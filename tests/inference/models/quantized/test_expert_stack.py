"""Experts that are stacked in one tensor have the values of their formula; malformed stacks end in errors."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_hf_weights
from headrace.inference.models.weights import Encoding
from headrace.inference.runner.packing import layer_formats_of
from tests.inference.models.quantized import writers
from tests.inference.runner.native_models import GuidedReference, load, relative_error
from tests.inference.runner.steps import make_step
from tests.parity.checkpoints import write_checkpoint

EXPERTS, SIZE, HIDDEN = 6, 96, 64
EIGHT_BITS_ERROR = 0.015
"""Of logits, from matrices of floats in 8 bits; the experts add none."""
STACKS = {"gate_up_proj": (2 * SIZE, HIDDEN), "down_proj": (HIDDEN, SIZE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    write_checkpoint("gpt oss", folder)
    return folder


@pytest.fixture
def quantized(folder, tmp_path):
    """Write the experts in MXFP4 as OpenAI did; returns the folder and the values by layer and stack."""
    tensors, values = load_file(folder / "model.safetensors"), {}
    rng = np.random.default_rng(0)
    for layer in range(3):
        for name, (rows, columns) in STACKS.items():
            stored = f"model.layers.{layer}.mlp.experts.{name}"
            written = writers.mxfp4(rng, EXPERTS * rows, columns)
            del tensors[stored]
            tensors[f"{stored}_blocks"] = written.tensors["weight_packed"].reshape(EXPERTS, rows, columns // 32, 16)
            tensors[f"{stored}_scales"] = written.tensors["weight_scale"].reshape(EXPERTS, rows, columns // 32)
            values[layer, name] = written.values.reshape(EXPERTS, rows, columns)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path, tensors, values


def test_stacks_of_mxfp4_have_the_values_of_the_format(quantized):
    folder, _, values = quantized
    weights = read_hf_weights(folder)
    for layer in range(3):
        for expert in range(EXPERTS):
            prefix = f"layers.{layer}.experts.{expert}."
            gate_up = values[layer, "gate_up_proj"][expert]
            expected = {"gate": gate_up[0::2], "up": gate_up[1::2], "down": values[layer, "down_proj"][expert]}
            for part, matrix in expected.items():
                np.testing.assert_array_equal(decode(weights.load(prefix + part)), matrix)
                assert weights.stored_bits(prefix + part) == 4


def test_the_kernels_compute_with_these_values_in_4_bits(quantized, tmp_path):
    folder, weights = quantized[0], read_hf_weights(quantized[0])
    spec = from_config(Fields(json.loads((folder / "config.json").read_text()), "config.json"))[1]
    assert layer_formats_of(spec, weights) == {
        f"layers.{layer}.{name}": "fp4" if name in {"gate_up", "down"} else "w8"
        for layer in range(3)
        for name in ("qkv", "o", "gate_up", "down")
    }
    runner = load(spec, weights, tmp_path / "cache", dtype="w4a16")
    step = make_step((np.arange(60) % spec.vocab_size, 0, [0, 3]), all_rows=True)
    reference = GuidedReference(runner, weights, EIGHT_BITS_ERROR)
    assert relative_error(runner.logits(step), reference.logits(step)) < EIGHT_BITS_ERROR


def test_stacks_of_floats_keep_their_type_and_are_transposed(folder):
    weights = read_hf_weights(folder)
    tensors = load_file(folder / "model.safetensors")
    stored = "model.layers.1.mlp.experts."
    assert weights.load("layers.1.experts.2.up").encoding is Encoding.F32
    for part, expected in {
        "gate": tensors[stored + "gate_up_proj"][2, :, 0::2].T,
        "up": tensors[stored + "gate_up_proj"][2, :, 1::2].T,
        "down": tensors[stored + "down_proj"][2].T,
        "gate_bias": tensors[stored + "gate_up_proj_bias"][2, None, 0::2],
        "up_bias": tensors[stored + "gate_up_proj_bias"][2, None, 1::2],
        "down_bias": tensors[stored + "down_proj_bias"][2, None],
    }.items():
        np.testing.assert_array_equal(decode(weights.load(f"layers.1.experts.2.{part}")), expected.numpy())


def test_an_exponent_that_means_nan_is_refused(quantized):
    folder, tensors, _ = quantized
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file(tensors | {name: torch.full_like(tensors[name], 255)}, folder / "model.safetensors")
    weights = read_hf_weights(folder)
    with pytest.raises(BrokenModel, match=r"down_proj_scales.* not finite"):
        weights.load("layers.0.experts.3.down")


@pytest.mark.parametrize(
    ("suffix", "change", "named"),
    [
        ("_blocks", lambda tensor: tensor[:, :-1], r"expected \[6, 64, 3, 16\]"),
        ("_scales", lambda tensor: tensor[:-1], r"expected \[6, 64, 3\]"),
        ("_blocks", lambda tensor: tensor.to(torch.int8), "expected bytes"),
    ],
)
def test_a_malformed_stack_is_refused(suffix, change, named, quantized):
    folder, tensors, _ = quantized
    name = f"model.layers.0.mlp.experts.down_proj{suffix}"
    save_file(tensors | {name: change(tensors[name]).contiguous()}, folder / "model.safetensors")
    with pytest.raises(BrokenModel, match=named):
        read_hf_weights(folder)
