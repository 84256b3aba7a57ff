"""Threads of a step: physical cores, within what the container may use; why kernels were chosen."""

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from headrace import _native
from headrace.inference.runner.cpu import _mismatch, _reason, default_threads

VNNI_OBJECTS = sorted(Path(__file__).parents[3].glob("build/*/CMakeFiles/_native.dir/csrc/isa_avx_vnni*.o"))
CPUS = sorted(os.sched_getaffinity(0))


def machine(tmp_path, siblings, files=()):
    for cpu, text in siblings.items():
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    for path, text in files:
        file = tmp_path / "fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return default_threads(tmp_path)


def test_every_core_counts_if_the_topology_is_unknown(tmp_path):
    assert machine(tmp_path, {}) == len(CPUS)


def test_hyperthreads_of_one_core_count_once(tmp_path):
    assert machine(tmp_path, dict.fromkeys(CPUS, "0-1\n")) == 1


@pytest.mark.parametrize(
    "files",
    [
        [("cpu.max", "50000 100000\n")],
        [("cpu/cpu.cfs_quota_us", "100000\n"), ("cpu/cpu.cfs_period_us", "100000\n")],
    ],
)
def test_a_quota_of_one_cpu_or_less_is_one_thread(files, tmp_path):
    assert machine(tmp_path, {cpu: str(cpu) for cpu in CPUS}, files) == 1


@pytest.mark.parametrize(
    "files", [[("cpu.max", "max 100000\n")], [("cpu/cpu.cfs_quota_us", "-1\n"), ("cpu/cpu.cfs_period_us", "100000\n")]]
)
def test_no_quota_is_no_limit(files, tmp_path):
    assert machine(tmp_path, {cpu: str(cpu) for cpu in CPUS}, files) == len(CPUS)


def test_a_build_of_another_cpu_is_named():
    assert _mismatch("avx2", ["avx512", "portable"]).endswith("for avx512 and portable; this CPU can run avx2")


def test_the_reason_for_portable_kernels_is_that_of_the_architecture():
    assert "dotprod" in _reason("portable", "aarch64")
    assert "AVX2" in _reason("portable", "x86_64")
    assert "AVX-VNNI" in _reason("avx_vnni", "x86_64")
    assert "riscv64" in _reason("portable", "riscv64")


def test_the_reason_for_the_kernels_of_arm_names_its_extensions():
    assert "i8mm" in _reason("neon_i8mm", "aarch64")
    assert _reason("neon", "aarch64").endswith("but not i8mm")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")
def test_features_are_those_that_the_kernel_lists():
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    assert set(_native.cpu_features()) <= flags
    assert ("avx_vnni" in _native.cpu_features()) == ("avx_vnni" in flags)


@pytest.mark.skipif(
    len(VNNI_OBJECTS) < 2 or not shutil.which("objdump"), reason="needs objdump and the objects of a build"
)
def test_kernels_of_avx_vnni_differ_from_those_that_tests_run_in_the_encoding_only():
    """The CPUs of the tests need not know the encoding of AVX-VNNI (VEX): its twin has that of AVX-512 (EVEX)."""
    listings = {}
    for path in VNNI_OBJECTS:
        command = ["objdump", "-d", "--no-show-raw-insn", path]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        listings[path.name] = Counter(re.findall(r"(?:\{vex\} )?vpdp\w+ +%\w{3}|%zmm", listing))
    vex, evex = (listings[f"isa_avx_vnni{suffix}.cpp.o"] for suffix in ("", "_evex"))
    assert {name.partition("%")[0].strip() for name in vex} == {"{vex} vpdpbusd", "{vex} vpdpwssd"}
    assert vex == {f"{{vex}} {name}": count for name, count in evex.items()}
