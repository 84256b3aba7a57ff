"""
Prediction of the next tokens of a sequence that repeats itself: the match model of lossless compressors, on tokens.

A match is an earlier occurrence of the latest tokens; the tokens after it are the prediction. While predictions are
right the match grows; after a wrong one the next match is looked up by the last 4 tokens, else by the last 2. The
matcher learns from every token, so it knows how reliable its matches are before a sequence drafts at all.

Hash tables of positions, overwritten on collision and verified on lookup: about 50 bytes and a few operations per
token; a whole prompt is indexed by a few numpy calls. Pure: it only reads the tokens that it is given.

Sources: prompt lookup decoding (Saxena 2023; `ngram` in vLLM, `lookup` in llama.cpp), the match model of PAQ (Mahoney
2005), the hash table of LZ4.
"""

from operator import mul

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

NGRAMS = (4, 2)
"""Lengths of the n-grams that begin a match, in the order of lookup."""
_LONGEST = 32
"""Longer matches count as this long."""
_SLOTS_PER_TOKEN = 4
_MAX_TABLE_BITS = 16
_MAX_STEPS = 128
"""More new tokens than this are indexed at once, without learning from them."""
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95)
"""Odd and random: the high bits of a sum of products are a universal hash (Dietzfelbinger 1996)."""
_WORD = 2**64 - 1
_PRIOR_TRUST = (0.0, 0.0, 0.25, 0.45, 0.65, 0.8, 0.9)
"""Prior probability that a match is right, by the bit length of its length: 2-3, 4-7, 8-15, 16-31, 32 tokens."""
_LEARNING_RATE = 1 / 8


class TokenMatcher:
    """Predicts the next tokens of one sequence: call `follow`, then `guess`."""

    __slots__ = ("_bits", "_length", "_num_seen", "_place", "_tables", "_trust")

    def __init__(self, max_tokens: int) -> None:
        self._bits = min(_MAX_TABLE_BITS, (_SLOTS_PER_TOKEN * max_tokens).bit_length())
        self._tables = tuple(np.zeros(1 << self._bits, np.int32).data for _ in NGRAMS)
        self._trust = list(_PRIOR_TRUST)
        self._num_seen = 0
        self._place = 0  # position of the guessed token; 0: no match
        self._length = 0

    def follow(self, tokens: Int32, num_tokens: int) -> None:
        """Index the tokens up to `num_tokens`; those of the last call must not have changed."""
        if num_tokens - self._num_seen > _MAX_STEPS:
            for table, size in zip(self._tables, NGRAMS, strict=True):
                self._index(table, size, tokens[:num_tokens])
            self._find(tokens, num_tokens)
        else:
            for end in range(self._num_seen + 1, num_tokens + 1):
                self._judge(int(tokens[end - 1]), tokens)
                self._find_and_index(tokens, end)
        self._num_seen = num_tokens

    def guess(self, tokens: Int32, count: int) -> Int32:
        """Return the predicted `count` tokens; a match that reaches the end of the sequence wraps around."""
        return np.resize(tokens[self._place : self._num_seen], count)

    def trust(self, depth: int) -> float:
        """Return the probability that prediction `depth` (from 0) is right if those before are; 0 without a match."""
        return self._trust[_kind(self._length + depth)] if self._place else 0.0

    def _judge(self, token: int, tokens: Int32) -> None:
        """Update the match and the probabilities by a new token."""
        if not self._place:
            return
        is_right = bool(tokens[self._place] == token)
        kind = _kind(self._length)
        self._trust[kind] += _LEARNING_RATE * (is_right - self._trust[kind])
        self._place, self._length = (self._place + 1, self._length + 1) if is_right else (0, 0)

    def _find_and_index(self, tokens: Int32, end: int) -> None:
        """Look for a match if there is none, and index the n-grams that end here."""
        recent = tokens[max(0, end - NGRAMS[0]) : end].tolist()
        for table, size in zip(self._tables, NGRAMS, strict=True):
            if len(recent) < size:
                continue
            slot = self._slot(recent[-size:])
            if not self._place:
                self._try(table[slot], size, tokens, end)
            table[slot] = end

    def _find(self, tokens: Int32, end: int) -> None:
        self._place = self._length = 0
        self._find_and_index(tokens, end)

    def _try(self, place: int, size: int, tokens: Int32, end: int) -> None:
        """Begin a match at `place` if the tokens before it equal those before `end`."""
        if not place:
            return
        reach = min(_LONGEST, place)
        differs = np.flatnonzero(tokens[place - reach : place] != tokens[end - reach : end])
        length = reach - 1 - int(differs[-1]) if len(differs) else reach
        if length >= size:
            self._place, self._length = place, length

    def _slot(self, ngram: list[int]) -> int:
        word: int = sum(map(mul, ngram, _FACTORS)) & _WORD
        return word >> (64 - self._bits)

    def _index(self, table: "memoryview[int]", size: int, tokens: Int32) -> None:
        """Index every n-gram except the last, which is looked up first; the latest of equal ones wins."""
        count = len(tokens) - size
        if count <= 0:
            return
        words = np.zeros(count, np.uint64)
        for offset in range(size):
            words += tokens[offset : offset + count].astype(np.uint64) * np.uint64(_FACTORS[offset])
        np.asarray(table)[words >> np.uint64(64 - self._bits)] = np.arange(size, size + count)


def _kind(length: int) -> int:
    return min(length, _LONGEST).bit_length()
