"""The limits of a device, measured: the bandwidth of a copy and the rate of a large matrix product."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 10


@dataclass(frozen=True)
class Limits:
    """The best of some runs."""

    copy_bytes_per_s: float
    """Bytes read and written."""
    flops_per_s: float
    """Of a bf16 product."""


def measure_limits(device: str, *, is_small: bool) -> Limits:
    """Measure both on tensors larger than any cache, or on small ones."""
    size, side = (1 << 20, 128) if is_small else (1 << 30, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    copy_s = best_s(lambda: target.copy_(source), device)
    product_s = best_s(lambda: left @ right, device)
    return Limits(copy_bytes_per_s=2 * size / copy_s, flops_per_s=2 * side**3 / product_s)


def best_s(work: Callable[[], object], device: str) -> float:
    """Return the shortest of some runs, after one that does not count."""
    return min(timed_s(work, device) for _ in range(REPEATS + 1))


def timed_s(work: Callable[[], object], device: str) -> float:
    """Return the seconds until the device has done some work."""
    wait(device)
    start_s = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start_s


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
