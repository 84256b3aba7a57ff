import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Shared memory that a block may have at most on an A100 and an H100."""


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_kernel_compiles_for_gpus(capability, tmp_path):
    """Triton needs no GPU for that; it compiles in a process of its own, because this one has the interpreter."""
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.runner.torch.compile_kernels", str(capability)]
    root = Path(__file__).parents[3]
    result = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kernels = [line.split() for line in result.stdout.splitlines()]
    names = {name for name, _, _ in kernels}
    expected = {"_attend", "_merge_segments", "_rotate", "_store", "_rms_norm", "_silu_mul", "_product", "_round_rows"}
    assert names == expected | {"_sum_masses", "_pick"}
    assert max(int(shared) for _, shared, _ in kernels) <= SHARED_BYTES[capability]
    exact = {"_sum_masses", "_pick", "_attend", "_merge_segments"}
    assert not any(int(fused) for name, _, fused in kernels if name in exact), "the bits would depend on the compiler"
