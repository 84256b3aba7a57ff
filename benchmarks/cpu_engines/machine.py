"""Description of this machine for result files."""

import os
import platform
from pathlib import Path

_FLAGS_THAT_COUNT = (
    "avx2",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
)


def cpu_info() -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def physical_cores() -> int:
    """Return how many physical cores this process may use."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)


def describe_machine() -> dict[str, object]:
    """Return the facts that determine speed."""
    cpu = cpu_info()
    flags = set(cpu.get("flags", "").split())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cpu_family_model": f"{cpu.get('cpu family')}/{cpu.get('model')}",
        "cpu_flags": [flag for flag in _FLAGS_THAT_COUNT if flag in flags],
        "physical_cores": physical_cores(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
