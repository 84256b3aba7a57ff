"""`headrace quantize --bits 4` writes folders that Headrace and the package compressed-tensors read alike."""

import json

import numpy as np
import pytest

from headrace.inference.models.decoding import decode
from headrace.inference.models.loading import load_model
from headrace.inference.models.weights import Encoding
from tests.parity.checkpoints import write_checkpoint
from tests.parity.networks import NETWORKS
from tests.tools.cli.test_quantize import can_be_quantized, logits, quantize


def divides_by_groups(name):
    settings = NETWORKS[name][1]
    return settings.get("hidden_size", 64) % 32 == 0 and settings.get("intermediate_size", 64) % 32 == 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_checkpoint("llama", folder)
    return folder


@pytest.fixture
def int4(headrace, llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized") / "int4"
    quantize(headrace, llama, folder, "--bits", 4)
    return folder


SMOOTHED = [name for name in NETWORKS if can_be_quantized(name) and divides_by_groups(name)]
ONLY_ROUNDED = ["gpt neox", "olmo", "olmo 2", "command r", "phi 2", "llama, biases everywhere"]
"""Biased norms, none, only after, one for both halves, plain MLPs, biased MLPs: 8 bits refuse these."""


EXPERTS = ["mixtral", "qwen 2 moe", "qwen 3 moe", "olmoe", "laguna"]
STATES = [
    *("qwen 3 next", "qwen 3.5", "qwen 3.5 vl", "qwen 3.5 moe", "lfm 2, with images", "lfm 2 moe", "lfm 3"),
    *("granite 4 h", "bamba", "mamba 2", "nemotron h", "nemotron 3"),
    "nemotron 3, latent",
]
SHAPES = ["gemma 4"]
"""Heads by layer, keys and values of other layers, an input of each layer."""


@pytest.mark.parametrize("name", [*SMOOTHED, *ONLY_ROUNDED, *EXPERTS, *STATES, *SHAPES])
def test_every_family_computes_about_the_same_from_its_4_bit_folder(headrace, tmp_path, name):
    write_checkpoint(name, tmp_path / "source")
    quantize(headrace, tmp_path / "source", tmp_path / "out", "--bits", 4)
    before, after = logits(tmp_path / "source"), logits(tmp_path / "out")
    assert np.abs(after - before).std() < 0.2 * before.std()
    source, model = load_model(str(tmp_path / "source")), load_model(str(tmp_path / "out"))
    assert model.spec == source.spec
    assert model.weights.dominant_encoding is Encoding.Q4_1
    for part in source.weights.names():
        expected = decode(source.weights.load(part))
        assert np.linalg.norm(decode(model.weights.load(part)) - expected) < 0.15 * np.linalg.norm(expected), part


@pytest.mark.parametrize(
    "name", ["qwen 3.5", "qwen 3.5 vl", "lfm 2, with images", "granite 4 h", "nemotron h", "gemma 4"]
)
def test_a_folder_has_the_tensors_of_transformers_and_names_the_layers_in_floating_point(headrace, tmp_path, name):
    import torch
    import transformers
    from safetensors.torch import load_file

    write_checkpoint(name, tmp_path / "source")
    quantize(headrace, tmp_path / "source", tmp_path / "out", "--bits", 4)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    (architecture,) = config.architectures
    ignored = set(config.quantization_config["ignore"])
    with torch.device("meta"):
        network = getattr(transformers, architecture)(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    written = load_file(tmp_path / "out" / "model.safetensors")
    packed = {key.removesuffix("_packed") for key in written if key.endswith("_packed")}
    shapes = {
        key: tuple(value.shape)
        for key, value in written.items()
        if not any(key.startswith(f"{name}_") for name in packed)
    }
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items() if key not in tied}
    assert packed | set(shapes) == set(expected)
    assert shapes.items() <= expected.items()
    linear = {key for key, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    assert {f"{key}.weight" for key in linear - ignored} == packed


def test_the_package_decompresses_the_values_that_headrace_reads(int4):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    config = json.loads((int4 / "config.json").read_text())["quantization_config"]
    (scheme,) = QuantizationConfig.model_validate(config).config_groups.values()
    stored = load_file(int4 / "model.safetensors")
    package = BaseCompressor.get_value_from_registry("pack-quantized")
    weights = load_model(str(int4)).weights
    for part, name in (("q", "self_attn.q_proj"), ("gate", "mlp.gate_proj"), ("down", "mlp.down_proj")):
        prefix = f"model.layers.1.{name}."
        state = {key.removeprefix(prefix): tensor for key, tensor in stored.items() if key.startswith(prefix)}
        assert set(state) == {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape"}
        expected = package.decompress(state, scheme)["weight"]
        ours = weights.load(f"layers.1.{part}")
        assert ours.encoding is Encoding.Q4_1
        largest = expected.abs().max().item()
        np.testing.assert_allclose(decode(ours), expected.float().numpy(), rtol=0, atol=2.0**-8 * largest)


def test_each_expert_is_a_matrix_of_its_own_and_the_router_stays_as_it_is(headrace, tmp_path):
    import torch
    from safetensors.torch import load_file

    write_checkpoint("mixtral", tmp_path / "source")
    quantize(headrace, tmp_path / "source", tmp_path / "out", "--bits", 4)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    router = "model.layers.1.block_sparse_moe.gate"
    assert {"lm_head", router} <= set(config["ignore"])
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored[f"{router}.weight"].dtype is torch.bfloat16
    parts = {
        name.rpartition(".")[2] for name in stored if name.startswith("model.layers.1.block_sparse_moe.experts.5.w2")
    }
    assert parts == {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.count("gate ") == 1


def test_codes_scales_and_zero_points_are_read_back_as_they_were_written(int4):
    import torch
    from safetensors.torch import load_file

    stored = load_file(int4 / "model.safetensors")
    prefix = "model.layers.0.mlp.down_proj.weight"
    raw = load_model(str(int4)).weights.load("layers.0.down")
    blocks = raw.data.reshape(raw.num_rows, -1, 20)
    scales = blocks[..., :2].copy().view("<f2")[..., 0].astype(np.float32)
    np.testing.assert_array_equal(scales, stored[prefix + "_scale"].float().numpy())
    words = stored[prefix + "_packed"].numpy().view(np.uint32)
    codes = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(raw.num_rows, -1, 32)
    np.testing.assert_array_equal(np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=2), codes)
    assert stored["model.embed_tokens.weight"].dtype is torch.bfloat16


def test_the_card_names_the_format_and_the_errors(int4):
    card = (int4 / "README.md").read_text()
    assert "--bits 4" in card
    assert "w4a16" in card
    assert "outputs of   error\nq " in card


def test_a_strength_of_smoothing_a_4_bit_model_and_odd_sizes_are_refused(headrace, llama, int4, tmp_path):
    alpha = headrace("quantize", llama, tmp_path / "out", "--bits", 4, "--alpha", 0.5)
    assert (alpha.exit_code, "--alpha has no effect with --bits 4" in alpha.stderr) == (2, True)
    twice = headrace("quantize", int4, tmp_path / "out", "--bits", 4)
    assert (twice.exit_code, "stored in 4 bits already" in twice.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
