"""Instruction sets of this CPU, and the default number of threads of a step."""

import math
import platform
from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.core.errors import SettingsError
from headrace.core.threads import usable_cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReport:
    """The CPU as the native runtime sees it, for `headrace doctor`."""

    features: tuple[str, ...]
    """Instruction sets that matter for the choice of kernels."""
    isas: tuple[str, ...]
    """Kernel variants that run here, best first."""
    isa: str
    """The default variant."""
    reason: str
    is_built_for_cpu: bool
    """Whether this build has the best kernels for this CPU; a build made on another machine may lack them."""
    threads: int
    """The default number of threads of a step."""


def cpu_report() -> CpuReport:
    """Detect the instruction sets of this CPU and the defaults that follow from them."""
    features, isas = tuple(_native.cpu_features()), tuple(_native.available_isas())
    best, built = _native.best_isa(), _native.built_isas()
    reason = _reason(isas[0], platform.machine()) if best in built else _mismatch(best, built)
    return CpuReport(
        features=features,
        isas=isas,
        isa=isas[0],
        reason=reason,
        is_built_for_cpu=best in built,
        threads=default_threads(),
    )


def has_native_bf16(isa: str | None = None) -> bool:
    """Return whether the kernels of `isa` multiply bf16 in hardware; raises `SettingsError` if it cannot run here."""
    try:
        return _native.has_native_bf16(isa or "")
    except ValueError as exc:
        raise SettingsError(f"The native runtime cannot run this model with these settings: {exc}.") from exc


def is_fastest_in_w4a8(isa: str | None = None) -> bool:
    """Return whether w4a8 is the fastest format of `isa` at every batch size: without VNNI, wide weights are slow."""
    return (isa or _native.available_isas()[0]) == "avx2"


def default_threads(sys_fs: Path = Path("/sys")) -> int:
    """Return the physical cores this process may use, by affinity and cgroup quota; hyperthreads do not help."""
    topology = "devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {_read(sys_fs / topology.format(cpu)) or cpu for cpu in usable_cpus()}
    quota = _cgroup_cpus(sys_fs / "fs/cgroup")
    return max(1, min(len(siblings), quota or len(siblings)))


def _mismatch(best: str, built: list[str]) -> str:
    return f"this copy was compiled on another CPU, for {' and '.join(built)}; this CPU can run {best}"


_REASONS = {
    "avx_vnni": "the CPU has AVX2 with AVX-VNNI, but not AVX-512 with VNNI",
    "avx2": "the CPU has AVX2, FMA and F16C, but no VNNI; w4a8 is its fastest format at every batch size",
    "neon_i8mm": "the CPU has NEON with dot products of signed and of mixed bytes (dotprod, i8mm)",
    "neon": "the CPU has NEON with dot products of bytes (dotprod), but not i8mm",
}
_REASONS_OF_PORTABLE = {
    **dict.fromkeys(("x86_64", "amd64"), "the CPU has neither AVX-512 with VNNI nor AVX2 with FMA and F16C"),
    **dict.fromkeys(("aarch64", "arm64"), "the CPU has no dot products of bytes (dotprod of Armv8.2)"),
}


def _reason(isa: str, machine: str) -> str:
    if isa == "avx512":
        bf16 = "native" if _native.has_native_bf16(isa) else "emulated (no AVX512_BF16)"
        return f"the CPU has AVX-512 with VNNI; bf16 products are {bf16}"
    if isa in _REASONS:
        return _REASONS[isa]
    return _REASONS_OF_PORTABLE.get(machine.lower(), f"there are no special kernels for {machine}")


def _cgroup_cpus(cgroup: Path) -> int | None:
    """Return the CPU quota rounded up, or None. Source: Linux cgroup-v2 `cpu.max`, cgroup-v1 `cpu.cfs_*`."""
    quota, _, period = (_read(cgroup / "cpu.max") or "").partition(" ")
    if not period:
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us") or "", _read(cgroup / "cpu/cpu.cfs_period_us") or ""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, math.ceil(int(quota) / int(period)))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
