"""
Compile every kernel for NVIDIA GPUs; none is needed.

Run it by `python -m tests.inference.runner.torch.compile_kernels 80 90`.

The host code runs with CPU tensors, and each launch is compiled instead of started. One line is printed for each: the
compute capability, the name of the kernel, its bytes of shared memory and the number of its fused multiply-adds.
"""

import re
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from headrace.inference.runner.torch.attention import attend
from headrace.inference.runner.torch.batch import interpreted
from headrace.inference.runner.torch.fused import add_rms_norm, rms_norm, rotate_and_store, silu_mul
from headrace.inference.runner.torch.kernels.sampling import draw_any
from headrace.inference.runner.torch.matmul import grouped_linear, linear, quantize_fp8, quantize_int4, quantize_int8
from tests.inference.runner.torch.cases import AttentionCase


class CompilingDriver:
    """A driver of a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # kernels are cached by device

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead(function, *args, grid, warmup, **kwargs):
    kernel = run(function, *args, grid=grid, warmup=True, **kwargs)
    fused = len(re.findall(r"\bfma\.rn", kernel.asm["ptx"]))
    print(driver.active.capability, function.__name__, kernel.metadata.shared, fused)
    return kernel


run = JITFunction.run


def launch_all(capability: int) -> None:
    """Launch each kernel with the shapes and types of a model of 8B."""
    shape = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16, "block_tokens": 32}
    for changes in ({}, {"windows": (128,), "sinks": True, "attention_softcap": 30.0}):
        case = AttentionCase((600, 1), (0, 40), **shape, **changes)
        attend(case.query, *case.cache.layer(0), case.batch, **case.options)
    keys, values = (torch.zeros(41, 8, 128, dtype=torch.bfloat16) for _ in range(2))
    cos = torch.zeros(1024, 64)
    rotate_and_store(case.query, keys, values, cos, cos, case.batch, *case.cache.layer(0))
    case.cache.store(keys, values, 0, case.batch.slots)
    x = torch.zeros(41, 4096, dtype=torch.bfloat16)
    add_rms_norm(x, x, x[0], 1e-5)
    rms_norm(case.query, x[0, :128], 1e-5)
    silu_mul(x)
    draw_any(torch.zeros(2, 128256), torch.ones(2), torch.zeros(2, dtype=torch.int64))
    matrix = torch.zeros(512, 4096, dtype=torch.bfloat16)
    linear(x, matrix, is_invariant=True)
    starts = torch.tensor([0, 20, 41], dtype=torch.int32)
    for rows in (x[:9], x):
        grouped_linear(rows, matrix, starts)
    for rows in (x[:1], x):
        linear(rows, quantize_int8(matrix))
    quantized = [quantize_int4, quantize_fp8] if capability >= 89 else [quantize_int4]
    for quantize in quantized:
        linear(x[:1], quantize(matrix))
        linear(x, quantize(matrix), is_invariant=True)
        grouped_linear(x, quantize(matrix), starts)


if __name__ == "__main__":
    JITFunction.run = compile_instead
    for capability in map(int, sys.argv[1:]):
        driver.set_active(CompilingDriver(capability))
        with interpreted():
            launch_all(capability)
