import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headrace.models.rope import inverse_frequencies, resolve_dynamic
from headrace.models.spec import RopeSpec

HEAD_DIM = 64
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def transformers_frequencies(kind, parameters, *, max_positions=2048, seq_len=None):
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **parameters},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seq_len)
    assert factor == 1.0
    return frequencies.numpy()


def test_linear_scaling_matches_transformers():
    rope = RopeSpec(theta=500000.0, kind="linear", factor=4.0)

    expected = transformers_frequencies("linear", {"factor": 4.0})
    assert np.allclose(inverse_frequencies(rope, HEAD_DIM), expected, rtol=1e-6)


def test_llama_3_scaling_matches_transformers():
    rope = RopeSpec(
        theta=500000.0,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )

    expected = transformers_frequencies("llama3", LLAMA3, max_positions=131072)
    assert np.allclose(inverse_frequencies(rope, HEAD_DIM), expected, rtol=1e-5)


@pytest.mark.parametrize("context_tokens", [512, 2048, 5000, 8192])
def test_dynamic_scaling_matches_transformers_at_one_length(context_tokens):
    rope = RopeSpec(theta=500000.0, kind="dynamic", factor=4.0, original_max_positions=2048)

    resolved = resolve_dynamic(rope, HEAD_DIM, context_tokens)
    expected = transformers_frequencies("dynamic", {"factor": 4.0}, seq_len=context_tokens)
    assert resolved.kind == "default"
    assert np.allclose(inverse_frequencies(resolved, HEAD_DIM), expected, rtol=1e-5)


def test_other_kinds_do_not_depend_on_the_context():
    rope = RopeSpec(theta=500000.0, kind="linear", factor=4.0)

    assert resolve_dynamic(rope, HEAD_DIM, 100000) is rope
