"""Quality of each weight format on the real model: the bounds that we promise. Method: benchmarks/fidelity."""

from pathlib import Path

import pytest
import torch
from benchmarks.fidelity.measure import native_runner, predict_native, predict_torch, torch_model

from headrace.models.loading import load_model

NUM_TOKENS = 2048
"""With half of them the standard error of a change of perplexity is as large as the bounds."""
TEXT = Path(__file__).parents[2] / "LICENSE"

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_path):
    return load_model(str(smollm2_path))


@pytest.fixture(scope="module")
def tokens(model):
    return model.tokenizer.encode(TEXT.read_text())[:NUM_TOKENS]


@pytest.fixture(scope="module")
def expected(model, tokens):
    return predict_torch(torch_model(model.spec, model.weights, torch.bfloat16), tokens)


@pytest.fixture(scope="module")
def predict(model, tokens, tmp_path_factory):
    """`predict(dtype, kv_dtype)`; each pair runs once."""
    known = {}

    def once(dtype, kv_dtype):
        if (dtype, kv_dtype) not in known:
            cache_dir = tmp_path_factory.mktemp("packed")
            runner = native_runner(model, dtype, kv_dtype, isa=None, cache_dir=cache_dir)
            known[dtype, kv_dtype] = predict_native(runner, tokens)
            runner.close()
        return known[dtype, kv_dtype]

    return once


@pytest.mark.parametrize(("dtype", "allowed"), [("bf16", 0.003), ("w8a8", 0.015), ("w4a8", 0.02)])
def test_a_weight_format_costs_little_perplexity(dtype, allowed, predict, expected):
    change = predict(dtype, "bf16").perplexity / expected.perplexity - 1
    assert abs(change) <= allowed if dtype == "bf16" else change <= allowed


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
def test_an_int8_kv_cache_costs_little_perplexity(dtype, predict):
    assert predict(dtype, "int8").perplexity / predict(dtype, "bf16").perplexity - 1 <= 0.005


@pytest.mark.parametrize(("dtype", "wanted"), [("bf16", 0.95), ("w8a8", 0.92), ("w4a8", 0.92)])
def test_a_weight_format_chooses_the_same_tokens(dtype, wanted, predict, expected):
    assert predict(dtype, "bf16").agreement(expected) >= wanted
