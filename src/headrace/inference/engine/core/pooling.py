"""
Pooling: the hidden states of a prompt, collected over its chunks, become one vector or one vector per token.

Sums are taken token by token in double precision, so the result does not depend on how a prompt was cut into chunks.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.core.generation import Pooled, PoolingMethod, PoolingParams
from headrace.inference.models.pooling import Pooler

Float32 = npt.NDArray[np.float32]

_LEAST_NORM: Final = 1e-12
"""Shorter vectors are divided by this instead of their length, as in PyTorch's `normalize`."""


class SequencePool:
    """The hidden states of one sequence that its pooling needs, collected in order."""

    def __init__(self, method: PoolingMethod, num_tokens: int) -> None:
        self.method = method
        self._next = num_tokens - 1 if method == "last" else 0
        self._stop = 1 if method == "cls" else num_tokens
        self._num_tokens = num_tokens
        self._rows: list[Float32] = []
        self._sum: npt.NDArray[np.float64] | None = None

    def needed(self, first: int, count: int) -> range:
        """Return the positions within `count` tokens from `first` on whose hidden states are not collected yet."""
        start = max(first, self._next)
        return range(start, max(start, min(first + count, self._stop)))

    def add(self, hidden: Float32) -> None:
        """Collect the hidden states of the next needed positions."""
        self._next += len(hidden)
        if self.method != "mean":
            self._rows.append(hidden)
            return
        rows = hidden.astype(np.float64)
        self._sum = np.add.reduce(rows if self._sum is None else np.concatenate([self._sum[None], rows]), axis=0)

    def result(self) -> Float32:
        """Return the vector (H,), or (T, H) of all tokens, once every needed position was added."""
        assert self._next == self._stop
        if self._sum is not None:
            return (self._sum / self._num_tokens).astype(np.float32)
        rows = np.concatenate(self._rows)
        return rows if self.method == "all" else rows[0]


def pool_result(pool: SequencePool, pooler: Pooler, params: PoolingParams) -> Pooled | None:
    """Return the vectors that a request asked for, or None if a number is not finite."""
    vectors = pool.result()
    if params.task != "embed_tokens":
        vectors = pooler.project(vectors)
    if params.dimensions is not None:
        vectors = vectors[..., : params.dimensions]
    if params.normalize:
        lengths = np.sqrt(np.sum(vectors * vectors, axis=-1, keepdims=True, dtype=np.float64))
        vectors = (vectors / np.maximum(lengths, _LEAST_NORM)).astype(np.float32)
    if not np.isfinite(vectors).all():
        return None
    return Pooled(data=np.ascontiguousarray(vectors, "<f4").tobytes(), size=vectors.shape[-1])
