"""Configs of networks with the gated delta rule."""

from copy import deepcopy

import pytest
from transformers import OlmoHybridConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from headrace.core.errors import BrokenModel, UnsupportedModel
from tests.inference.models.test_families import spec_of

SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "vocab_size": 300,
    "intermediate_size": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
}
CONFIGS = (Qwen3NextConfig, Qwen3_5TextConfig, Qwen3_5MoeTextConfig, OlmoHybridConfig)


def values_of(config_class):
    """Return a config as it is saved."""
    sizes = {key: value for key, value in SIZES.items() if key != "intermediate_size" or hasattr(config_class(), key)}
    return config_class(**deepcopy(sizes), pad_token_id=0).to_dict()


@pytest.mark.parametrize("config_class", CONFIGS)
def test_a_missing_key_means_the_default_of_transformers(config_class):
    whole = values_of(config_class)
    short = {key: value for key, value in whole.items() if key in {"model_type", *SIZES}}
    spec = spec_of(short)

    assert spec == spec_of(whole)
    assert spec.mixers == ("delta", "delta", "delta", "attention") * 2


def test_the_text_part_keeps_a_quarter_of_each_head_turning_and_its_sizes():
    spec = spec_of({"model_type": "qwen3_5", "text_config": values_of(Qwen3_5TextConfig), "vision_config": {}})

    assert (spec.ropes[0].rotary_dim, spec.head_dim, spec.attention_gate) == (64, 256, "element")
    shape = spec.state_shape(0)
    assert shape is not None
    assert (shape.channels, shape.scan, spec.state_shape(3)) == (8192, (32, 128, 128), None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["linear_attention"] * 7}, "7 entries for 8 layers"),
        ({"linear_num_value_heads": 24}, "a multiple of 16 key heads"),
        ({"linear_conv_kernel_dim": 1}, "2 to 64 taps"),
        ({"linear_value_head_dim": 1 << 20}, "at most 1048576 channels"),
    ],
)
def test_a_wrong_value_is_named(change, named):
    with pytest.raises(BrokenModel, match=named):
        spec_of(values_of(Qwen3_5TextConfig) | change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["chunked_attention"] * 8}, "chunked_attention"),
        ({"attn_output_gate": False}, "attention without gates"),
    ],
)
def test_an_unsupported_part_is_named(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        spec_of(values_of(Qwen3_5TextConfig) | change)
