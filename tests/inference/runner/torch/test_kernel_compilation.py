import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Shared memory that a block may have at most on an A100 and an H100."""
KERNELS = {"_attend", "_merge_segments", "_rotate", "_store", "_rms_norm", "_silu_mul", "_product", "_round_rows"}
EXACT = {"_sum_masses", "_pick", "_attend", "_merge_segments"}
"""Kernels whose bits must not depend on the compiler."""


def test_every_kernel_compiles_for_gpus():
    """
    Triton needs no GPU for that; it compiles in a process of its own, because this one has the interpreter.

    What is in Triton's cache was compiled from the same source by the same compiler for the same GPU.
    """
    command = [sys.executable, "-m", "tests.inference.runner.torch.compile_kernels", *map(str, SHARED_BYTES)]
    env = os.environ | {"TRITON_INTERPRET": "0"}
    result = subprocess.run(command, env=env, cwd=Path(__file__).parents[4], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kernels = [line.split() for line in result.stdout.splitlines()]
    for capability, shared_bytes in SHARED_BYTES.items():
        own = [(name, int(shared), int(fused)) for target, name, shared, fused in kernels if target == str(capability)]
        assert {name for name, _, _ in own} == KERNELS | {"_sum_masses", "_pick"}
        assert max(shared for _, shared, _ in own) <= shared_bytes
        assert not any(fused for name, _, fused in own if name in EXACT)
