"""
Make `references/fidelity.npz`: the predictions of `transformers` in float32 for the weights of the real model.

    python -m tests.parity.fidelity_references SmolLM2-135M-Instruct.Q4_1.gguf

Needs torch and about a minute. `test_fidelity.py` makes the beginning again and compares.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from benchmarks.fidelity.measure import Predictions, predict_torch, torch_model

from headrace.inference.models.decoding import decode
from headrace.inference.models.loading import load_model
from headrace.inference.models.model import Model
from headrace.inference.models.weights import Encoding, RawTensor, WeightSource
from tests.inference.runner.weights import round_to_w8
from tests.parity.checkpoints import REFERENCES

NUM_TOKENS = 2048
"""With half of them the standard error of a change of perplexity is as large as the bounds."""
TEXT = Path(__file__).parents[2] / "LICENSE"


class EightBits:
    """The weights of a checkpoint with its embedding, and perhaps the matrices of its layers, as W8 packs them."""

    def __init__(self, weights: WeightSource, *, layers: bool) -> None:
        self._weights, self._layers = weights, layers

    def names(self) -> Iterable[str]:
        return self._weights.names()

    def load(self, name: str) -> RawTensor:
        raw = self._weights.load(name)
        if raw.num_rows == 1 or (name != "embed" and not self._layers):
            return raw
        values = np.ascontiguousarray(round_to_w8(decode(raw)))
        return RawTensor(Encoding.F32, *values.shape, values.view(np.uint8))


VARIANTS = {
    "checkpoint": lambda weights: weights,
    "8-bit embedding": lambda weights: EightBits(weights, layers=False),
    "8 bits": lambda weights: EightBits(weights, layers=True),
}


def predict_variant(model: Model, variant: str, tokens: Sequence[int]) -> Predictions:
    """Return what `transformers` predicts with the weights as stored, or rounded as W8 rounds them."""
    import torch

    return predict_torch(torch_model(model.spec, VARIANTS[variant](model.weights), torch.float32), tokens)


def main(path: str) -> None:
    model = load_model(path)
    tokens = model.tokenizer.encode(TEXT.read_text())[:NUM_TOKENS]
    arrays = {"tokens": np.array(tokens, np.uint16)}
    for variant in VARIANTS:
        predictions = predict_variant(model, variant, tokens)
        arrays |= {f"{variant}.best": predictions.best.astype(np.uint16), f"{variant}.losses": predictions.losses}
    np.savez_compressed(REFERENCES / "fidelity.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
