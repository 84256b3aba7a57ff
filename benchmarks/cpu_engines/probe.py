"""
The memory bandwidth right now (measured beside every figure, because neighbours change it), and the peak of
multiplications.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PROBE_BYTES = 256 * 2**20
"""Much larger than any cache."""
_PASSES = 5
_MATRIX = 1536
_OPERATIONS_PER_FLOAT_OPERATION = {"int8": ("avx512_vnni", 4.0), "bf16": ("avx512_bf16", 2.0)}
"""Operations per instruction relative to a float32 fused multiply-add of the same width, and the CPU flag needed."""


def measure_operations_per_s(flags: Sequence[str]) -> dict[str, float]:
    """
    Return operations a second by type: a float32 matrix product of numpy's BLAS, times what the CPU's dot product
    instructions do in place of one fused multiply-add.
    """
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    best_s = math.inf
    for _ in range(2 * _PASSES):
        started_s = time.perf_counter()
        matrix @ matrix
        best_s = min(best_s, time.perf_counter() - started_s)
    rate = 2 * _MATRIX**3 / best_s
    rates = {"float32": rate}
    for name, (flag, factor) in _OPERATIONS_PER_FLOAT_OPERATION.items():
        rates[name] = rate * factor if flag in flags else rate
    return rates


class BandwidthProbe:
    """Reads one large array with all threads."""

    def __init__(self, threads: int) -> None:
        whole = np.ones(PROBE_BYTES // 8, np.uint64)
        self._parts = np.array_split(whole, threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure_gb_s(self) -> float:
        """Return the best of a few passes, 10^9 bytes a second; takes about 50 ms."""
        best_s = min(self._pass_s() for _ in range(_PASSES))
        return PROBE_BYTES / best_s / 1e9

    def _pass_s(self) -> float:
        started_s = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return time.perf_counter() - started_s
