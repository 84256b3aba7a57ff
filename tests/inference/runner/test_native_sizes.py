"""Sizes and numbers that a file could name, far outside of any network, are refused or have a defined result."""

import numpy as np
import pytest

from headrace import _native

HUGE = 2**31 - 1
STATES = {"mixers": ["ssd"], "ssd_heads": 4, "ssd_head_dim": 16, "ssd_state_size": 16, "conv_taps": 3}


def config(**fields):
    made = _native.ModelConfig()
    usual = {"num_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 40, "head_dim": 16}
    usual |= {"num_heads": 2, "num_kv_heads": 2, "rope_frequencies": [[0.1] * 8], "rope_factors": [1.0]}
    for name, value in (usual | fields).items():
        setattr(made, name, value)
    return made


def latents(**fields):
    made = _native.Mla()
    for name, value in ({"rank": 32, "key_dim": 16, "rope_dim": 16, "value_dim": 16} | fields).items():
        setattr(made, name, value)
    return {"mla": made, "num_kv_heads": 1, "head_dim": 48}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_layers": HUGE}, "num_layers is 2147483647"),
        ({"hidden_size": HUGE}, "hidden_size is 2147483647"),
        ({"intermediate_size": 1 << 28}, "intermediate_size"),
        ({"intermediate_sizes": [HUGE]}, "width of an MLP"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_heads": 1 << 28}, "all heads"),
        ({"windows": [-(2**31)]}, "window"),
        ({"hidden_size": 1 << 20, "num_experts": 4096, "top_k": 1, "expert_size": 64}, "too large"),
        (latents(key_dim=HUGE), "latent attention"),
        (STATES | {"norms": "post"}, "need a norm"),
    ],
)
def test_a_network_of_absurd_sizes_is_refused_by_name(fields, named) -> None:
    assert _native.layout_bytes(config()) > 0
    with pytest.raises(ValueError, match=named):
        _native.layout_bytes(config(**fields))


def test_a_limit_beyond_all_memory_is_refused() -> None:
    limits = _native.Limits()
    for name in ("num_blocks", "max_step_tokens", "max_step_sequences", "max_step_rows"):
        setattr(limits, name, 1)
    limits.max_context_tokens = HUGE
    with pytest.raises(ValueError, match="between 1 and 16777216"):
        _native.workspace_bytes(config(), limits, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_become_four_bits(value) -> None:
    nibbles, _, zeros = _native.quantize_int4(np.full((1, 32), value, np.float32), None, num_threads=1)
    assert nibbles.max() <= 15
    assert zeros.max() <= 15


def array(*values, of=np.int32):
    return np.array(values, of)


@pytest.mark.parametrize(
    ("extras", "named"),
    [
        (([(0, array(40), 0)], [], []), "history"),
        (([(0, array(1), 2)], [], []), "num_prompt_tokens"),
        (([], [(0, array(-1), array(1, of=np.float32))], []), "bias"),
        (([], [(0, array(1), array(1, 2, of=np.float32))], []), "as many values as ids"),
        (([], [], [(0, array(1, of=np.uint32))]), "mask needs"),
    ],
)
def test_a_sampler_alone_refuses_ids_outside_the_vocabulary(extras, named) -> None:
    with pytest.raises(ValueError, match=named):
        _native.sample_rows(np.zeros((1, 40), np.float32), np.zeros((1, 56), np.uint8), *extras)
