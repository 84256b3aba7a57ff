"""The checks of `headrace doctor` of this machine: CPU, memory, GPUs, disk and ports."""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace import __version__
from headrace.core.errors import SettingsError
from headrace.core.gpus import Gpu, visible_gpus
from headrace.core.sizes import format_size
from headrace.core.threads import usable_cpus
from headrace.inference.engine.loading.formats import BYTES_PER_WEIGHT, WEIGHTS_SHARE
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.platform_settings import data_folder, load_platform_settings
from headrace.tools.cli.doctor_finding import Finding, Status
from headrace.tools.cli.tables import count_of

LOW_MEMORY_BYTES = 2 << 30
TOO_LITTLE_MEMORY_BYTES = 512 << 20
LOW_DISK_BYTES = 5 << 30
LARGE_MODEL_PARAMETERS = 8_000_000_000
_BUSY_SHARE = 0.5
"""Load average per CPU above which a finding about speed names it."""


def check_versions() -> Iterator[Finding]:
    found = f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    yield Finding(name="Headrace", status="ok", found=found)


def check_native() -> Iterator[Finding]:
    """Check the native runtime, and report the kernels that it takes."""
    try:
        from headrace.inference.runner.cpu import cpu_report

        report = cpu_report()
    except ImportError as error:
        advice = "Reinstall headrace, or build it: pip install . (needs a C++17 compiler)."
        yield Finding(name="native runtime", status="failed", found=f"does not load: {error}", advice=advice)
        return
    slow = "The portable kernels run anywhere but are slow; x86-64 with AVX2 is many times faster."
    rebuild = "Install Headrace from its source on this machine, or build it with CMAKE_ARGS=-DHEADRACE_KERNELS=all."
    advice = (slow if report.isa == "portable" else "") if report.is_built_for_cpu else rebuild
    threads = f"{count_of(report.threads, 'thread')} on {count_of(len(usable_cpus()), 'logical CPU')}"
    found = f"{report.isa} kernels, {threads}: {report.reason}"
    yield Finding(name="CPU", status="warning" if advice else "ok", found=found, advice=advice)
    features = ", ".join(report.features) or "none that affect the kernels"
    yield Finding(name="CPU features", status="ok", found=features, is_detail=True)
    yield Finding(name="kernels", status="ok", found=f"available: {', '.join(report.isas)}", is_detail=True)


def check_sandbox() -> Iterator[Finding]:
    """Report the parts of the sandbox of models' own code that this kernel allows."""
    import headrace_handler

    program = Path(headrace_handler.__file__).with_name("__main__.py")
    done = subprocess.run(  # noqa: S603 -- this package's own program
        [sys.executable, "-I", "-S", str(program), "--survey"], capture_output=True, text=True, check=False
    )
    try:
        seen = json.loads(done.stdout)
    except ValueError:
        seen = {"found": f"none: {done.stderr.strip()[-200:]}", "missing": ["no part of it works"]}
    advice = (
        "Models' own code runs with the rest; docs/sandbox.md says what each part keeps out. --sandbox require "
        "refuses to run it so."
    )
    status: Status = "warning" if seen["missing"] else "ok"
    yield Finding(name="code sandbox", status=status, found=seen["found"], advice=advice if seen["missing"] else "")


def check_memory() -> Iterator[Finding]:
    """Check the memory that this process may use, including cgroup limits."""
    try:
        from headrace.core.host_memory import available_memory_bytes
    except ImportError:
        return
    yield judge_memory(available_memory_bytes())


def judge_memory(available: int) -> Finding:
    found = f"{format_size(available)} available, within the limits of machine and container"
    if available < TOO_LITTLE_MEMORY_BYTES:
        advice = "Even the smallest models need half a gigabyte. Free some memory or raise the container's limit."
        return Finding(name="memory", status="failed", found=found, advice=advice)
    billions = available * WEIGHTS_SHARE / BYTES_PER_WEIGHT["w4"] / 1e9
    largest = f"{billions:{'.2g' if billions < 100 else '.0f'}} B parameters"
    headline = f"models up to about {largest} in 4 bits ({format_size(available)} of memory)"
    is_low = available < LOW_MEMORY_BYTES
    advice = "Enough for small models only; `headrace fit MODEL` shows if a model fits." if is_low else ""
    status: Status = "warning" if is_low else "ok"
    return Finding(name="memory", status=status, found=found, advice=advice, headline=headline)


def check_bandwidth() -> Iterator[Finding]:
    """Measure how fast the threads of a step read memory, which bounds the speed of decoding."""
    try:
        from headrace.inference.runner.cpu import default_threads
        from headrace.inference.runner.decode_speed import measure_bandwidth
    except ImportError:
        return
    load = os.getloadavg()[0]
    is_busy = load > _BUSY_SHARE * len(usable_cpus())
    yield judge_bandwidth(measure_bandwidth(), num_threads=default_threads(), load=load if is_busy else None)


def judge_bandwidth(bandwidth: float, *, num_threads: int, load: float | None) -> Finding:
    """Report a bandwidth and what it means for a large model; `load` of a busy machine, else None."""
    rates = {
        name: bandwidth / (LARGE_MODEL_PARAMETERS * BYTES_PER_WEIGHT[weights])
        for weights, name in (("bf16", "bf16"), ("w8", "w8a8"), ("w4", "w4a8"))
    }
    listed = ", ".join(f"{rate:.1f} in {name}" for name, rate in rates.items())
    found = (
        f"{bandwidth / 1e9:.1f} GB/s, the best of many short reads by {count_of(num_threads, 'thread')}; "
        f"an 8 B model decodes at most {listed} tokens/s"
    )
    headline = f"an 8 B model decodes at most {rates['w4a8']:.1f} tokens/s"
    busy = f"Measured at a load of {load:.1f}: an idle machine may read faster." if load is not None else ""
    return Finding(name="bandwidth", status="ok", found=found, advice=busy, headline=headline)


def check_gpus() -> Iterator[Finding]:
    """Report the GPUs that the workers of a platform started here would get."""
    yield judge_gpus(visible_gpus(os.environ))


def judge_gpus(gpus: Sequence[Gpu]) -> Finding:
    rows = [
        f"{gpu.index}: {gpu.name}" + (f", {format_size(gpu.memory_bytes)}" if gpu.memory_bytes else "") for gpu in gpus
    ]
    found = "; ".join(rows) or "none: models run on the CPU, also those of instance types with GPUs"
    return Finding(name="GPUs", status="ok", found=found)


def check_disk() -> Iterator[Finding]:
    from headrace.inference.models.sources import home_folder

    yield judge_disk(home_folder(os.environ))


def judge_disk(home: Path) -> Finding:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    found = f"{format_size(free)} free at {existing}"
    if not os.access(existing, os.W_OK):
        advice = "Set HEADRACE_HOME to a writable folder; without it each start downloads and packs again."
        return Finding(name="disk", status="warning", found=f"{found}, which is not writable", advice=advice)
    if free < LOW_DISK_BYTES:
        advice = "Free space with `headrace models rm`, or move the store with HEADRACE_HOME."
        return Finding(name="disk", status="warning", found=found, advice=advice)
    return Finding(name="disk", status="ok", found=found)


def check_ports() -> Iterator[Finding]:
    """Check the ports that the settings name, for a server and for a platform."""
    yield from judge_settings(os.environ)


def judge_settings(env: Mapping[str, str]) -> Iterator[Finding]:
    from headrace.platform.host.folders import Address, DataFolder
    from headrace.tools.cli.platform_client import platform_at

    try:
        # the key is for an address that other machines reach, which would be refused without one
        server, _ = load_settings({"model": "any", "api_key": "any"}, _own(env))
        platform_settings = load_platform_settings({}, env)
    except SettingsError as error:
        yield Finding(name="settings", status="warning", found=error.message, advice="No server starts with it.")
        return
    yield judge_port("headrace serve", server.host, server.port)
    folder = DataFolder(data_folder(platform_settings, env))
    running = folder.running_platform()
    if running is not None:
        machines = platform_at(folder.running_address() or Address(url=running.url), folder, env).machines()
        where = f", on {count_of(len(machines), 'machine')}: {', '.join(machines)}" if machines else ""
        yield Finding(name="headrace up", status="ok", found=f"your platform runs at {running.url}{where}")
    else:
        yield judge_port("headrace up", platform_settings.host, platform_settings.port)


def judge_port(command: str, host: str, port: int) -> Finding:
    """Report whether the port of a command is free."""
    if port == 0:
        return Finding(name=command, status="ok", found="takes any free port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            found = f"port {port} on {host} cannot be opened: {error.strerror or error}"
            advice = f"Choose another one: {command} --port 0 takes any free port."
            return Finding(name=command, status="warning", found=found, advice=advice)
    return Finding(name=command, status="ok", found=f"port {port} on {host} is free")


def _own(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("HEADRACE_")}


def check_worker_limits() -> Iterator[Finding]:
    """Report whether the kernel bounds the workers of a platform started here."""
    from headrace.platform.cluster.cgroups import delegated_group

    group = delegated_group()
    found = f"control groups in {group}" if group else "by threads and memory plans; no control group (v2) is delegated"
    yield Finding(name="worker limits", status="ok", found=found, is_detail=True)


def check_huge_pages(path: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> Iterator[Finding]:
    """Check huge pages, which make reading weights faster."""
    if sys.platform != "linux" or not path.exists():
        return
    chosen = re.search(r"\[(\w+)\]", path.read_text())
    mode = chosen[1] if chosen else "unknown"
    advice = f"echo madvise | sudo tee {path} makes decoding a little faster." if mode == "never" else ""
    status: Status = "warning" if advice else "ok"
    yield Finding(name="huge pages", status=status, found=mode, advice=advice, is_detail=True)


CHECKS = (
    check_versions,
    check_native,
    check_memory,
    check_bandwidth,
    check_gpus,
    check_disk,
    check_ports,
    check_huge_pages,
    check_worker_limits,
    check_sandbox,
)
