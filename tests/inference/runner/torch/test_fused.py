import numpy as np
import torch

from headrace.inference.models.spec import RopeSpec
from headrace.inference.runner import reference_norms
from headrace.inference.runner.reference import Rotation
from headrace.inference.runner.reference_activations import silu
from headrace.inference.runner.torch.fused import add_rms_norm, rms_norm, rotate_and_store, silu_mul
from tests.inference.runner.torch.cases import AttentionCase

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def rope_tables(head_dim, positions=64, **fields):
    """The cosines and sines that turn like the reference runner."""
    rotation = Rotation(RopeSpec(**fields), head_dim, 512)
    half = head_dim // 2
    ones = np.zeros((positions, 1, head_dim), np.float32)
    ones[..., :half] = 1
    turned = torch.from_numpy(rotation.turn(ones, np.arange(positions, dtype=np.int32))[:, 0])
    return turned[:, :half].contiguous(), turned[:, half:].contiguous()


def test_norms_agree_with_the_reference():
    x, residual, weight = normal(5, 48), normal(5, 48, seed=1), normal(48, seed=2)
    np.testing.assert_allclose(
        rms_norm(x, weight, 1e-5), reference_norms.rms_norm(x.numpy(), weight.numpy(), 1e-5), **CLOSE
    )
    total, normed = add_rms_norm(x, residual, weight, 1e-5)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_allclose(normed, reference_norms.rms_norm(total.numpy(), weight.numpy(), 1e-5), **CLOSE)


def test_queries_and_keys_turn_and_are_stored_like_in_the_reference():
    case = AttentionCase((0, 3), (6, 2))
    key, value = normal(5, 2, 16, seed=3), normal(5, 2, 16, seed=4)
    cos, sin = rope_tables(16, rotary_dim=8)
    found = rotate_and_store(case.query, key, value, cos, sin, case.batch, *case.cache.layer(0))
    rotation = Rotation(RopeSpec(rotary_dim=8), 16, 512)
    positions = case.batch.positions.numpy()
    np.testing.assert_allclose(found, rotation.turn(case.query.numpy(), positions), **CLOSE)
    slots = case.batch.slots.long()
    keys, values = (part.flatten(0, 1)[slots] for part in case.cache.layer(0))
    np.testing.assert_allclose(keys, rotation.turn(key.numpy(), positions), **CLOSE)
    np.testing.assert_array_equal(values, value)


def test_the_gate_is_activated():
    gate_up = normal(3, 20)
    expected = silu(gate_up[:, :10].numpy()) * gate_up[:, 10:].numpy()
    np.testing.assert_allclose(silu_mul(gate_up), expected, **CLOSE)


def test_half_precision_stays_what_it_is():
    x = normal(3, 20).to(torch.bfloat16)
    assert rms_norm(x, torch.ones(20), 1e-5).dtype == torch.bfloat16
    assert silu_mul(x).dtype == torch.bfloat16
