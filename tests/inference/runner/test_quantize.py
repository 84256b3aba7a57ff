"""Quantized checkpoints of tiny random models: what is written, reported and refused."""

import json
from collections import defaultdict

import numpy as np
import pytest

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.loading import load_model
from headrace.inference.models.model import SMOOTHED_KEY
from headrace.inference.models.places import folder_places, merge
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.runner.quantize import check_can_quantize, write_quantized
from tests.inference.models.model_files import TINY_LLAMA, byte_level_tokenizer, random_weights, write_folder

GEMMA = TINY_LLAMA | {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "head_dim": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
SAMPLES = [[3, 99, 17, 255, 42, 42, 7, 130], [250, 12, 8]]


def write_model(folder, config):
    """Write random weights as the family stores them; return the model."""
    family, spec = from_config(Fields(config, "config.json"))
    weights = {name: 0.3 * values for name, values in random_weights(spec).items()}
    stored = defaultdict(list)
    for name, place in folder_places(family, spec).items():
        stored[place.stored].append((place, np.atleast_2d(weights[name])))
    tensors = {}
    for name, parts in stored.items():
        values = merge(parts)
        tensors[name] = np.ascontiguousarray(values.reshape(-1) if parts[0][0].shape[0] == 1 else values)
    write_folder(folder, config, tensors)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return load_model(str(folder))


def decoded(model):
    return {name: decode(model.weights.load(name)) for name in expected_shapes(model.spec)}


@pytest.mark.parametrize("config", [TINY_LLAMA, GEMMA], ids=["llama", "gemma"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_folder_holds_the_weights_within_a_step(tmp_path, config, bits):
    model = write_model(tmp_path / "source", config)
    (tmp_path / "out").mkdir()
    shown = []

    reports = write_quantized(
        model, tmp_path / "out", SAMPLES, bits=bits, alphas=(), progress=lambda *call: shown.append(call)
    )

    before, after = decoded(model), decoded(load_model(str(tmp_path / "out")))
    assert before.keys() == after.keys()
    for name, values in before.items():
        step = np.abs(values).max() / (60 if bits == 8 or name.endswith("norm") else 4)
        assert np.abs(after[name] - values).max() < step, name
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["quantization_config"]["format"] == {8: "int-quantized", 4: "pack-quantized"}[bits]
    assert SMOOTHED_KEY not in written
    stored = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = json.loads(stored[8 : 8 + int.from_bytes(stored[:8], "little")])
    assert header["model.norm.weight"]["shape"] == [config["hidden_size"]]
    assert header["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert shown == [("Quantizing", done, 2, "layers") for done in (0, 1, 2)]
    assert [report.index for report in reports] == [0, 1]
    for report in reports:
        parts = ("q", "k", "v", "o", "gate", "up", "down") if bits == 4 else ()
        assert tuple(sorted(report.errors)) == tuple(sorted(parts))
        assert all(0 < error < 0.1 for error in report.errors.values())


def test_norms_are_smoothed_as_they_are_stored(tmp_path):
    model = write_model(tmp_path / "source", GEMMA)
    (tmp_path / "out").mkdir()

    reports = write_quantized(model, tmp_path / "out", SAMPLES, alphas=(0.5,))

    assert json.loads((tmp_path / "out" / "config.json").read_text())[SMOOTHED_KEY] is True
    smoothed = load_model(str(tmp_path / "out"))
    for report in reports:
        name = f"layers.{report.index}.attn_norm"
        scales = report.joints["qkv"].scales
        expected = decode(model.weights.load(name)) / scales
        assert np.abs(decode(smoothed.weights.load(name)) - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model_type", "difference"),
    [
        ("starcoder2", "with attn_norm_bias, down_bias, mlp_norm_bias, up_bias,"),
        ("olmo2", "without attn_norm, mlp_norm,"),
        ("olmo", "with norms without weights,"),
    ],
)
def test_layers_that_cannot_be_smoothed_are_refused_by_their_parts(tmp_path, model_type, difference):
    model = write_model(tmp_path / "source", TINY_LLAMA | {"model_type": model_type})
    check_can_quantize(model, bits=4)
    with pytest.raises(UnsupportedModel, match=difference):
        check_can_quantize(model)
