"""
Detection of answers that repeat themselves. Pure: it sees the tokens of one answer, not what else is in the batch.

An answer repeats itself when it ends with one pattern of tokens, `min_count` times in a row. That is so for patterns
of `size` tokens exactly when each of the last `size * (min_count - 1)` tokens equals the one `size` tokens before it.
The detector counts these equal tokens for all sizes at once, so that a token costs one comparison per size.
"""

import numpy as np
import numpy.typing as npt

from headrace.core.generation import RepetitionDetection


class RepetitionDetector:
    """Detects the token at which an answer has repeated itself."""

    def __init__(self, rule: RepetitionDetection) -> None:
        self._min_size = rule.min_pattern_size
        self._max_size = rule.max_pattern_size
        sizes = np.arange(self._max_size, self._min_size - 1, -1, dtype=np.int64)
        self._needed = sizes * (rule.min_count - 1)
        self._num_equal = np.zeros_like(sizes)
        """By pattern size, longest first: the number of last tokens that equal the token `size` tokens before them."""

    def push(self, answer: npt.NDArray[np.int32]) -> bool:
        """Process the answer, one token longer than before; return whether it now repeats itself."""
        last = len(answer) - 1
        if last < self._min_size:
            return False
        equal = answer[max(0, last - self._max_size) : last - self._min_size + 1] == answer[last]
        counts = self._num_equal[-len(equal) :]
        counts += 1
        counts *= equal
        return bool((counts >= self._needed[-len(equal) :]).any())
