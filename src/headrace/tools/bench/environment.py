"""The machine and the versions that a result was measured with."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.core.threads import usable_cpus


def describe_environment() -> dict[str, object]:
    """Return machine, operating system, versions, load average and time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "tool_version": _version("headrace"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cpus_usable": len(usable_cpus()),
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor if the system has it, else its architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
