"""
The merges that a SentencePiece BPE vocabulary implies: each way to put a piece together from two others.

A vocabulary has many ways to cut its pieces, 1.2 million for the 262,144 pieces of Gemma, so the halves are found by
numpy: the hash of each half is the difference of two sums over the text of all pieces.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_MAX_PIECE: Final = 1024
"""Characters of a merged piece: the number of cuts grows with it. Vocabularies have 128."""
_BASE: Final = 0x9E37_79B9_7F4A_7C15
"""Odd, so that it has an inverse modulo 2**64. Two different halves of any vocabulary collide once in 30 million."""


def merges_by_score(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """
    Return the merges whose result is a piece of `scores`, the best-scored result first, from ids by text.

    Ties are broken by the order of `scores`, then by the ids of the halves, as in the converter of transformers, so
    both give the same tokens. Raises `ValueError` for a piece that is too long.
    """
    texts = list(vocab)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ids = np.fromiter(vocab.values(), np.int64, len(texts))
    values = np.fromiter(scores.values(), np.float64, len(scores))
    listed = np.fromiter(map(vocab.__getitem__, scores), np.int64, len(scores))
    by_id = np.argsort(ids)
    ranked = by_id[np.searchsorted(ids, listed[np.argsort(-values, kind="stable")], sorter=by_id)]
    if (longest := int(lengths[ranked].max(initial=0))) > _MAX_PIECE:
        raise ValueError(f"a piece has {longest} characters; expected at most {_MAX_PIECE}")
    rank, left, right = _halves("".join(texts), lengths, ranked)
    order = np.argsort(rank << 32 | ids[left])  # a piece has one right half for each left one
    halves = (map(texts.__getitem__, places[order].tolist()) for places in (left, right))
    return list(zip(*halves, strict=True))


def _halves(text: str, lengths: Ints, ranked: Ints) -> tuple[Ints, Ints, Ints]:
    """
    Return the cuts of the ranked pieces into two pieces: the ranks of the pieces, and the places of both halves.

    `text` is that of all pieces in order; a place is a position in their order.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hash_spans = _span_hashes(text)
    find = _finder(hash_spans(starts, ends))
    num_cuts = np.maximum(lengths[ranked] - 1, 0)
    rank = np.repeat(np.arange(len(ranked)), num_cuts)
    pieces = ranked[rank]
    middles = starts[pieces] + np.arange(1, len(rank) + 1) - (np.cumsum(num_cuts) - num_cuts)[rank]
    left = find(hash_spans(starts[pieces], middles))
    is_known = left >= 0
    rank, pieces, middles, left = rank[is_known], pieces[is_known], middles[is_known], left[is_known]
    right = find(hash_spans(middles, ends[pieces]))
    is_known = right >= 0
    return rank[is_known], left[is_known], right[is_known]


def _span_hashes(text: str) -> Callable[[Ints, Ints], Hashes]:
    """Return a function that hashes the characters of spans of a text, given by their first and last positions."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64) + np.uint64(1)
    powers, inverses = (_powers(base, len(codes) + 1) for base in (_BASE, pow(_BASE, -1, 1 << 64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1])])
    return lambda first, last: (sums[last] - sums[first]) * inverses[first]


def _powers(base: int, count: int) -> Hashes:
    """Return the first powers of a base, modulo 2**64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _finder(known: Hashes) -> Callable[[Hashes], Ints]:
    """Return a function that finds the positions of hashes among the known ones; -1 for others."""
    order = np.argsort(known)
    known = known[order]

    def find(hashes: Hashes) -> Ints:
        by_value = np.argsort(hashes)  # a search in ascending order stays in the CPU's caches: a third of the time
        places = np.empty(len(hashes), np.int64)
        places[by_value] = np.minimum(np.searchsorted(known, hashes[by_value]), len(known) - 1)
        return np.where(known[places] == hashes, order[places], -1)

    return find
