"""This machine: its description for result files, its memory bandwidth right now, and its peak of multiplications."""

import math
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_FLAGS_THAT_COUNT = (
    *("avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16"),
)
PROBE_BYTES = 256 * 2**20
"""Much larger than any cache."""
_PASSES = 5
_MATRIX = 1536
_OPERATIONS_PER_FLOAT_OPERATION = {"int8": ("avx512_vnni", 4.0), "bf16": ("avx512_bf16", 2.0)}
"""Operations per instruction relative to a float32 fused multiply-add of the same width, and the CPU flag needed."""


def cpu_info() -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def cpu_flags() -> list[str]:
    """Return the names of the instruction sets and features of this CPU."""
    return cpu_info().get("flags", "").split()


def physical_cores() -> int:
    """Return how many physical cores this process may use."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)


def describe_machine() -> dict[str, object]:
    """Return the facts that determine speed."""
    cpu, flags = cpu_info(), set(cpu_flags())
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cpu_family_model": f"{cpu.get('cpu family')}/{cpu.get('model')}",
        "cpu_flags": [flag for flag in _FLAGS_THAT_COUNT if flag in flags],
        "physical_cores": physical_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


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
    """Reads one large array with all threads: neighbours change the bandwidth, so each figure has its own."""

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
