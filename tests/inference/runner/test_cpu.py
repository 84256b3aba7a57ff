"""Threads of a step: physical cores, within what the container may use; why kernels were chosen."""

import os

import pytest

from headrace.inference.runner.cpu import _mismatch, _reason, default_threads

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
    assert "aarch64" in _reason("portable", "aarch64")
    assert "AVX2" in _reason("portable", "x86_64")
