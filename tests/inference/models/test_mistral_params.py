"""Folders in Mistral's own format: what `params.json` means, what is refused, which files are fetched."""

import json

import numpy as np
import pytest

from headrace.core.errors import UnsupportedModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.families.mistral_params import MISTRAL_PARAMS, config_of_params
from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.hf_checkpoint import read_hf_weights
from headrace.inference.models.places import stored_name
from headrace.inference.models.snapshots import choose_files
from tests.inference.models.model_files import random_weights

PARAMS = {
    "dim": 64,
    "n_layers": 2,
    "head_dim": 16,
    "hidden_dim": 96,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": 320,
    "rope_theta": 1e6,
}


def spec_of(**changes):
    return from_config(config_of_params(Fields(PARAMS | changes, "params.json")))[1]


def test_sizes_and_the_context_are_those_of_the_file():
    spec = spec_of(sliding_window=4096)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_kv_heads, spec.head_dim) == (64, 96, 2, 16)
    assert (spec.max_positions, spec.windows, spec.tie_embeddings) == (32_768, (4096, 4096), False)
    assert spec_of(max_seq_len=131_072, tied_embeddings=True).max_positions == 131_072
    assert spec_of(vision_encoder={"hidden_size": 1024}).num_layers == 2


def test_the_context_ends_where_queries_are_scaled_by_position():
    yarn = {"factor": 16, "original_max_position_embeddings": 16_384, "apply_scale": False, "beta": 32, "alpha": 1}
    scaling = {"beta": 0.1, "original_max_position_embeddings": 16_384}
    spec = spec_of(max_position_embeddings=262_144, yarn=yarn, llama_4_scaling=scaling)
    assert (spec.max_positions, spec.ropes[0].kind, spec.ropes[0].attention_factor) == (16_384, "yarn", 1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"multiple_of": 256}, "in the format of Meta"),
        ({"model_type": "mamba"}, "mamba"),
        ({"qk_nope_head_dim": 128}, "latent attention"),
        ({"multimodal": {"whisper_model_args": {"encoder_args": {}}}}, "an audio encoder"),
        ({"sliding_window": [None, 4096]}, "a window on some layers only"),
        ({"moe": {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1}}, "shared experts"),
        ({"quantization": {"qformat_weight": "fp4"}}, "fp4"),
        ({"activation": "gelu"}, "gelu"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, named):
    with pytest.raises(UnsupportedModel, match=named):
        spec_of(**changes)


def test_fp8_weights_are_read_with_mistrals_names_of_scales(tmp_path):
    import torch
    from safetensors.torch import save_file

    from tests.inference.models.quantized import writers

    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"quantization": {"qformat_weight": "fp8_e4m3"}}))
    rng, tensors, expected = np.random.default_rng(0), {}, {}
    for name, weight in random_weights(spec_of()).items():
        stored = stored_name(name, MISTRAL_PARAMS.tensors)
        tensors[stored] = torch.from_numpy(weight)
        if ".attention." in stored or ".feed_forward." in stored:
            written = writers.fp8(name="qscale_weight")(rng, *weight.shape)
            module = stored.removesuffix(".weight")
            tensors |= {f"{module}.{part}": tensor for part, tensor in written.tensors.items()}
            tensors[f"{module}.qscale_act"] = torch.tensor(0.5)
            expected[name] = written.values
    save_file(tensors, tmp_path / "consolidated.safetensors")

    weights = read_hf_weights(tmp_path)
    np.testing.assert_allclose(decode(weights.load("layers.1.down")), expected["layers.1.down"], rtol=1e-6)
    pairs = expected["layers.0.q"].reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    np.testing.assert_allclose(decode(weights.load("layers.0.q")), pairs, rtol=1e-6)
    assert weights.stored_bits("layers.0.q") == 8


def test_consolidated_files_are_fetched_only_where_there_is_no_config_json():
    own = ["params.json", "tekken.json", "consolidated.safetensors", "README.md"]
    both = [*own, "config.json", "model.safetensors"]
    assert choose_files(own, "here") == ["consolidated.safetensors", "params.json", "tekken.json"]
    assert choose_files(both, "here") == ["config.json", "model.safetensors", "params.json", "tekken.json"]
