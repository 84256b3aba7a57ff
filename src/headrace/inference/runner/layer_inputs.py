"""Rows of the table from which each layer takes an input of its own; it stays in its file, mapped, as it is stored."""

import numpy as np

from headrace.inference.models.decoding import decode
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.weights import WeightSource
from headrace.inference.runner.step import Float32, Int32


class LayerTable:
    """The part of the inputs of layers that depends on the token alone: a step reads one row for each of its tokens."""

    def __init__(self, spec: ModelSpec, weights: WeightSource) -> None:
        self._weights = weights
        self._last = spec.vocab_size - 1
        # The embeddings are scaled by sqrt(size), and the sum with the projection by 2 ** -0.5.
        self._factor = np.float32((spec.layer_input_size / 2) ** 0.5)

    def rows(self, token_ids: Int32) -> Float32:
        """Return (T, layers * size) for tokens (T,); the runtime refuses those outside of the vocabulary."""
        tensor = self._weights.load_rows("layer_embed", token_ids.clip(0, self._last))
        rows: Float32 = decode(tensor) * self._factor
        return np.ascontiguousarray(rows)
