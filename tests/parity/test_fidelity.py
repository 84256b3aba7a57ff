"""Quality of each weight format on the real model: the bounds that we promise. Method: benchmarks/fidelity."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.fidelity.measure import native_runner, predict_native, predict_torch, torch_model

from headrace.models.loading import load_model
from headrace.models.weights import Encoding, RawTensor
from headrace.runner.decoding import decode
from tests.runner.weights import round_to_w8

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
    return predict_torch(torch_model(model.spec, model.weights, torch.float32), tokens)


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
def test_a_weight_format_costs_little_perplexity(dtype, allowed, predict, expected):
    change = predict(dtype, "bf16").perplexity / expected.perplexity - 1
    assert abs(change) <= allowed if dtype == "bf16" else change <= allowed


@pytest.mark.parametrize("dtype", ["bf16", "w8a8", "w4a8"])
def test_an_int8_kv_cache_costs_little_perplexity(dtype, predict):
    assert predict(dtype, "int8").perplexity / predict(dtype, "bf16").perplexity - 1 <= 0.005


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("bf16", 0.95), ("w8a16", 0.93), ("w8a8", 0.92), ("w4a16", 0.95), ("w4a8", 0.92)]
)
def test_a_weight_format_chooses_the_same_tokens(dtype, wanted, predict, expected):
    assert predict(dtype, "bf16").agreement(expected) >= wanted


class EightBits:
    """The weights of a checkpoint with its embedding, and perhaps the matrices of its layers, as W8 packs them."""

    def __init__(self, weights, *, layers):
        self._weights, self._layers = weights, layers
        self.fingerprint = f"{weights.fingerprint}, 8 bits, layers: {layers}"
        self.dominant_encoding = weights.dominant_encoding
        self.names, self.stored_bits, self.encoding = weights.names, weights.stored_bits, weights.encoding

    def load(self, name):
        raw = self._weights.load(name)
        if raw.num_rows == 1 or (name != "embed" and not self._layers):
            return raw
        values = np.ascontiguousarray(round_to_w8(decode(raw)))
        return RawTensor(Encoding.F32, *values.shape, values.view(np.uint8))


@pytest.mark.parametrize("dtype", ["w4a16", "w8a16"])
def test_two_bytes_for_each_activation_are_as_good_as_bf16_on_the_same_weights(dtype, model, tokens, predict, tmp_path):
    same = replace(model, weights=EightBits(model.weights, layers=dtype == "w8a16"))
    runner = native_runner(same, "bf16", "bf16", isa=None, cache_dir=tmp_path)
    expected = predict_native(runner, tokens).perplexity
    runner.close()
    assert abs(predict(dtype, "bf16").perplexity / expected - 1) <= 0.0015
