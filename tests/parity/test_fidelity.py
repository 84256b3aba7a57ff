"""Quality of each weight format on the real model: the bounds that we promise. Method: benchmarks/fidelity."""

import numpy as np
import pytest
from benchmarks.fidelity.measure import Predictions, native_runner, predict_native

from headrace.inference.models.loading import load_model
from tests.parity.checkpoints import REFERENCES

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_path):
    return load_model(str(smollm2_path))


@pytest.fixture(scope="module")
def references():
    with np.load(REFERENCES / "fidelity.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def tokens(references):
    return references["tokens"].tolist()


@pytest.fixture(scope="module")
def reference(references):
    """`reference(variant)`: what `transformers` predicts in float32 with the weights of a variant."""
    return lambda variant: Predictions(references[f"{variant}.best"], references[f"{variant}.losses"])


@pytest.fixture(scope="module")
def predict(model, tokens, tmp_path_factory):
    """`predict(dtype, kv_dtype)`; each pair runs once."""
    known = {}
    cache_dir = tmp_path_factory.mktemp("packed")

    def once(dtype, kv_dtype):
        if (dtype, kv_dtype) not in known:
            runner = native_runner(model, dtype, kv_dtype, isa=None, cache_dir=cache_dir)
            known[dtype, kv_dtype] = predict_native(runner, tokens)
            runner.close()
        return known[dtype, kv_dtype]

    return once


@pytest.mark.parametrize(
    ("dtype", "allowed"), [("bf16", 0.003), ("w8a16", 0.007), ("w8a8", 0.01), ("w4a16", 0.004), ("w4a8", 0.02)]
)
def test_a_weight_format_costs_little_perplexity(dtype, allowed, predict, reference):
    change = predict(dtype, "bf16").perplexity / reference("checkpoint").perplexity - 1
    assert abs(change) <= allowed if dtype == "bf16" else change <= allowed


@pytest.mark.parametrize("dtype", ["bf16", "w8a8"])
def test_an_int8_kv_cache_costs_little_perplexity(dtype, predict):
    """With exact weights, and with those whose errors are largest; `test_native` has the other formats, by logits."""
    assert predict(dtype, "int8").perplexity / predict(dtype, "bf16").perplexity - 1 <= 0.005


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("bf16", 0.95), ("w8a16", 0.93), ("w8a8", 0.92), ("w4a16", 0.95), ("w4a8", 0.92)]
)
def test_a_weight_format_chooses_the_same_tokens(dtype, wanted, predict, reference):
    assert predict(dtype, "bf16").agreement(reference("checkpoint")) >= wanted


@pytest.mark.parametrize(("dtype", "variant"), [("w4a16", "8-bit embedding"), ("w8a16", "8 bits")])
def test_two_bytes_for_each_activation_lose_nothing_on_the_same_weights(dtype, variant, predict, reference):
    """The errors of `w4a16` and `w8a16` are those of rounding the weights: 0.00003 and 0.02 were measured."""
    actual, expected = predict(dtype, "bf16"), reference(variant)
    assert abs(actual.perplexity / expected.perplexity - 1) <= 0.001
    assert np.sqrt(np.mean((actual.losses - expected.losses) ** 2)) <= 0.04


@pytest.mark.parametrize("variant", ["checkpoint", "8-bit embedding", "8 bits"])
def test_the_stored_predictions_are_those_of_transformers(variant, model, tokens, reference):
    from tests.parity.fidelity_references import predict_variant

    made, stored = predict_variant(model, variant, tokens[:128]), reference(variant)
    np.testing.assert_allclose(made.losses, stored.losses[:127], rtol=1e-3, atol=1e-3)
    assert (made.best == stored.best[:128]).mean() > 0.99
