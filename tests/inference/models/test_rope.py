import numpy as np
import pytest

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.families.rope_config import rope_from_config, rope_from_gguf
from headrace.inference.models.fields import Fields
from headrace.inference.models.rope import inverse_frequencies, resolve
from headrace.inference.models.spec import RopeSpec

HEAD_DIM = 64
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.01 * pair for pair in range(HEAD_DIM // 2)],
    "long_factor": [2.0 + 0.5 * pair for pair in range(HEAD_DIM // 2)],
}
KINDS = {
    "linear": ("linear", {"factor": 4.0}),
    "llama 3": ("llama3", LLAMA3),
    "dynamic": ("dynamic", {"factor": 4.0}),
    "yarn": ("yarn", YARN),
    "yarn, other ramp": ("yarn", YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "truncate": False}),
    "yarn, factor of its own": ("yarn", YARN | {"attention_factor": 1.5}),
    "yarn, as in DeepSeek": ("yarn", YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}),
    "yarn, as in Ministral": ("yarn", YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "longrope": ("longrope", LONGROPE),
    "longrope, factor": ("longrope", LONGROPE | {"factor": 16.0}),
    "longrope, attention factor": ("longrope", LONGROPE | {"attention_factor": 1.25}),
    "proportional": ("proportional", {"partial_rotary_factor": 0.25}),
}


@pytest.mark.parametrize("context_tokens", [400, 2048, 5000])
@pytest.mark.parametrize("case", KINDS)
def test_frequencies_and_attention_factor_match_transformers(case, context_tokens):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, parameters = KINDS[case]
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **parameters},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=context_tokens)

    rope = rope_from_config(Fields(config.to_dict(), "config.json"), HEAD_DIM)
    assert rope.attention_factor == pytest.approx(factor)
    assert np.allclose(inverse_frequencies(rope, HEAD_DIM, context_tokens), expected.numpy(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic"])
def test_a_partial_rope_has_the_frequencies_of_a_small_head_and_pairs_that_do_not_turn(kind):
    rope = RopeSpec(kind=kind, factor=4.0, rotary_dim=48, original_max_positions=512)
    small = RopeSpec(kind=kind, factor=4.0, original_max_positions=512)

    frequencies = inverse_frequencies(rope, HEAD_DIM, 4096)
    assert np.array_equal(frequencies[:24], inverse_frequencies(small, 48, 4096))
    assert not frequencies[24:].any()


def test_longrope_takes_the_short_factors_up_to_the_original_context():
    rope = RopeSpec(kind="longrope", original_max_positions=512, short_factors=(1.0,) * 32, long_factors=(2.0,) * 32)

    short, long = inverse_frequencies(rope, HEAD_DIM, 512), inverse_frequencies(rope, HEAD_DIM, 513)
    assert np.array_equal(short, 2 * long)


def test_other_kinds_do_not_depend_on_the_context():
    rope = RopeSpec(theta=500000.0, kind="linear", factor=4.0)

    assert resolve(rope, HEAD_DIM, 100000) is rope


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_theta": 1.0}, "rope_theta is 1.0; expected a number above 1"),  # yarn divides by its logarithm
        ({"mscale": -10.0, "mscale_all_dim": -10.0, "factor": np.e}, "mscale is -10"),  # a factor of 0 to divide by
        ({"partial_rotary_factor": 0.9}, "expected an even number from 4 to 64"),
    ],
)
def test_settings_that_have_no_frequencies_are_named(parameters, named):
    config = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4} | YARN | parameters}
    with pytest.raises(BrokenModel, match=named):
        rope_from_config(Fields(config, "config.json"), HEAD_DIM)


@pytest.mark.parametrize(
    ("values", "tensors", "named"),
    [
        ({"rope.freq_base": 1.0}, {}, "freq_base is 1.0"),
        ({"rope.dimension_count": 128}, {}, "dimension_count is 128"),
        ({"rope.dimension_count": 7}, {}, "dimension_count is 7"),
        ({"rope.dimension_count": 32}, {"rope_freqs.weight": (1.0,) * 32}, "hold 16 numbers"),
        ({}, {"rope_freqs.weight": (1.0,) * 31 + (np.inf,)}, "hold 32 numbers"),
        ({}, {"rope_factors_long.weight": (np.inf,) * 32, "rope_factors_short.weight": (1.0,) * 32}, "long factors"),
        ({"rope.scaling.yarn_log_multiplier": np.ones(2, np.float32)}, {}, None),
    ],
)
def test_metadata_that_has_no_frequencies_is_named(values, tensors, named):
    fields = Fields({"context_length": 2048} | values, "m.gguf")
    with pytest.raises(UnsupportedModel if named is None else BrokenModel, match=named or "yarn_log_multiplier"):
        rope_from_gguf(fields, HEAD_DIM, tensors)
