"""Smoothing a layer does not change what it computes."""

import dataclasses

import numpy as np
import pytest

from headrace.core.errors import BrokenModel
from headrace.inference.models.decoding import decode
from headrace.inference.models.safetensors_writer import encode_floats
from headrace.inference.models.weights import Encoding, as_float32
from headrace.inference.runner.calibration import trace_layers
from headrace.inference.runner.reference import ReferenceRunner
from headrace.inference.runner.smoothing import divided, smooth_layer
from tests.inference.runner.native_models import LIMITS, small_spec
from tests.inference.runner.steps import make_step
from tests.inference.runner.weights import ArrayWeights, random_weights

SAMPLES = [[7, 3, 49, 0, 12, 12, 5, 21, 8], [1, 2, 3, 4]]
NETWORKS = {
    "plain": {},
    "biases, tied": {"qkv_bias": True, "o_bias": True, "tie_embeddings": True},
    "one group": {"num_kv_heads": 6},
    "gemma": {"qk_norm": "head", "norms": "both", "activation": "gelu_tanh", "embedding_scale": 9.8},
}


def bf16(values):
    return as_float32(encode_floats(values, Encoding.BF16), Encoding.BF16)


def with_outliers(spec):
    """A few large norm weights, which make a few large channels."""
    arrays = {name: array.copy() for name, array in random_weights(spec).arrays.items()}
    for name, array in arrays.items():
        if name.endswith(("attn_norm", "mlp_norm")):
            array[0, ::17] *= 50
        if name.endswith(("_norm", "_bias")):
            arrays[name] = bf16(array).reshape(array.shape)
    return arrays


def smoothed(spec, arrays, rounding):
    new = dict(arrays)
    for layer in trace_layers(spec, ArrayWeights(arrays), SAMPLES):
        done = smooth_layer(spec, layer, alphas=(0.6,), norm_rounding=rounding, bias_rounding=rounding)
        new |= {f"layers.{layer.index}.{part}": values for part, values in done.weights.items()}
    return new


def logits(spec, arrays):
    step = make_step((SAMPLES[0], 0, [0]), all_rows=True)
    return ReferenceRunner(spec, ArrayWeights(arrays), LIMITS).logits(step)


@pytest.mark.parametrize("rounding", [np.positive, bf16], ids=["as they are", "stored as bf16"])
@pytest.mark.parametrize("changes", NETWORKS.values(), ids=NETWORKS)
def test_a_smoothed_network_computes_the_same(changes, rounding):
    spec = small_spec(**changes)
    arrays = with_outliers(spec)
    new = smoothed(spec, arrays, rounding)
    assert not np.allclose(new["layers.0.attn_norm"].ravel(), arrays["layers.0.attn_norm"].ravel(), rtol=0.01)
    before = logits(spec, arrays)
    np.testing.assert_allclose(logits(spec, new), before, atol=1e-4 * np.abs(before).max())


def test_norms_stay_exact_in_the_type_that_they_are_stored_in():
    spec = small_spec()
    new = smoothed(spec, with_outliers(spec), bf16)
    assert np.array_equal(bf16(new["layers.1.mlp_norm"]), new["layers.1.mlp_norm"])


def test_division_gives_numbers_that_can_be_stored_and_scales_that_fit_them():
    rng = np.random.default_rng(1)
    vector, scales = rng.standard_normal((2, 200)).astype(np.float32)
    vector[::10], scales = 0, np.exp(scales)
    kept, exact = divided(vector, scales, bf16)
    np.testing.assert_array_equal(kept, bf16(kept))
    np.testing.assert_allclose(kept * exact, vector, rtol=1e-6)
    np.testing.assert_allclose(exact, scales, rtol=2**-8)


def test_a_norm_weight_that_would_be_rounded_to_zero_is_kept():
    def coarse(values):
        return np.rint(values)

    kept, exact = divided(np.array([2.0], np.float32), np.array([8.0], np.float32), coarse)
    assert (kept[0], exact[0]) == (2.0, 1.0)


def test_activations_that_are_not_finite_are_a_broken_model():
    spec = small_spec()
    arrays = with_outliers(spec)
    arrays["layers.1.up"] = arrays["layers.1.up"] * np.float32(np.nan)
    with pytest.raises(BrokenModel, match="Layer 1 produces numbers that are not finite"):
        list(trace_layers(spec, ArrayWeights(arrays), SAMPLES))


def test_tracing_gives_the_inputs_of_every_matrix():
    spec = dataclasses.replace(small_spec(), num_layers=1)
    weights = ArrayWeights(with_outliers(spec))
    (layer,) = trace_layers(spec, weights, SAMPLES)
    assert set(layer.inputs) == {"q", "k", "v", "o", "gate", "up", "down"}
    x = decode(weights.load("embed"))[[token for sample in SAMPLES for token in sample]]
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(spec.norm_eps))
    normed *= decode(weights.load("layers.0.attn_norm"))
    np.testing.assert_allclose(layer.inputs["q"].maxima, np.abs(normed).max(axis=0), rtol=1e-5)
    assert layer.inputs["down"].tokens.shape[1] == spec.intermediate_size
