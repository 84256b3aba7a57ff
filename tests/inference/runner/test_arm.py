"""The kernels of Arm, cross-compiled and run by QEMU: each CPU runs those that it has, and they pass their tests."""

import os
import subprocess

import pytest

from tests.needs import ROOT

pytestmark = pytest.mark.timeout(1800)  # the first run downloads Python for arm64 and compiles everything

REPORT = "import tests.native_build; from headrace import _native; print(*_native.available_isas(), _native.best_isa())"


def run(*arguments, cpu="max"):
    environment = os.environ | {"HEADRACE_QEMU_CPU": cpu}
    return subprocess.check_output([ROOT / "scripts" / "arm", *arguments], env=environment, text=True)


@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("max", ["neon_i8mm", "neon", "portable"]),
        ("neoverse-n1", ["neon", "portable"]),
        ("cortex-a72", ["portable"]),
    ],
)
def test_each_cpu_of_arm_has_the_kernels_of_its_extensions(cpu, isas):
    assert run("-c", REPORT, cpu=cpu).split() == [*isas, isas[0]]


def test_the_kernels_of_arm_pass_their_tests():
    assert " passed" in run()
