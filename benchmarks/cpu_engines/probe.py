"""How fast this machine reads memory right now: a figure beside every measurement, as neighbours change it."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PROBE_BYTES = 256 * 2**20
"""Far more than any cache."""
_PASSES = 5


class BandwidthProbe:
    """Reads one large array with all threads."""

    def __init__(self, threads: int) -> None:
        whole = np.ones(PROBE_BYTES // 8, np.uint64)
        self._parts = np.array_split(whole, threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure_gb_s(self) -> float:
        """Return the best of a few passes, 10^9 bytes a second; takes some 50 ms."""
        best_s = min(self._pass_s() for _ in range(_PASSES))
        return PROBE_BYTES / best_s / 1e9

    def _pass_s(self) -> float:
        started_s = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return time.perf_counter() - started_s
