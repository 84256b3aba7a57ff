"""Configs of networks with the gated delta rule."""

from copy import deepcopy

import pytest
from transformers import KimiLinearConfig, OlmoHybridConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

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
KIMI_LAYERS = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}
KIMI_SIZES = {"head_dim": 64, "num_heads": 16, "short_conv_kernel_size": 5}
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


@pytest.mark.parametrize("linear", [{}, KIMI_LAYERS | KIMI_SIZES])
def test_kimi_linear_is_read_as_in_transformers_whether_its_layers_are_named_or_counted_from_one(linear):
    released = {**deepcopy(SIZES), "model_type": "kimi_linear", "hidden_act": "silu", "linear_attn_config": linear}
    saved = KimiLinearConfig(**released | {"pad_token_id": 0}).to_dict()
    spec = spec_of(released)

    assert spec == spec_of(saved)
    attends = [layer for layer, mixer in enumerate(spec.mixers) if mixer == "attention"]
    assert attends == ([3, 7] if linear else [4])
    assert spec.rope(attends[0]) is None
    assert spec.delta is not None
    assert (spec.delta.by_channel, spec.delta.key_heads, spec.delta.taps) == (True, *((16, 5) if linear else (32, 4)))


@pytest.mark.parametrize("layer", [0, 9])
def test_a_layer_that_kimi_linear_does_not_have_is_named(layer):
    config = {**SIZES, "model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4, layer]}}
    with pytest.raises(BrokenModel, match="numbers from 1 to 8"):
        spec_of(config)


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
