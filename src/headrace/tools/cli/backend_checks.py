"""The checks of `headrace doctor` about backends: those that are installed, and the one that `auto` takes."""

import os
from collections.abc import Iterator

from headrace.core.engine_names import BACKENDS
from headrace.core.errors import UnsupportedModel
from headrace.inference.backends.choice import HostFacts, ModelFacts, Request, choose_backend, install_command
from headrace.inference.backends.facts import PACKAGES, host_facts
from headrace.inference.backends.libraries import package_version
from headrace.tools.cli.finding import Finding

_OTHER_MODEL = ModelFacts(architecture="other networks", native_error="not native", torch_error="not native")


def check_backends() -> Iterator[Finding]:
    """Report the installed backends with their versions, and the choice of `--backend auto`."""
    host = host_facts(os.environ)
    for name in BACKENDS:
        if PACKAGES[name]:
            found = _versions(name) if name in host.installed else f"not installed ({install_command(name)})"
            yield Finding(name=f"backend {name}", status="ok", found=found)
    yield from judge_choice(host)


def judge_choice(host: HostFacts) -> Iterator[Finding]:
    """Report what `auto` takes on a host for a network that the native backend runs, and for another one."""
    choice = choose_backend(Request(), ModelFacts(), host)
    found = f"{choice.name} on {choice.device}: {choice.reason}"
    is_idle = host.num_gpus > 0 and choice.device == "cpu"
    advice = f"No backend here uses the GPU: {install_command('vllm')} or {install_command('torch')}."
    yield Finding(
        name="backend auto", status="warning" if is_idle else "ok", found=found, advice=advice if is_idle else ""
    )
    try:
        other = f"{choose_backend(Request(), _OTHER_MODEL, host).name} runs them"
    except UnsupportedModel:
        other = f"none runs them ({install_command('transformers')} or {install_command('vllm')})"
    yield Finding(name="other networks", status="ok", found=other)


def _versions(backend: str) -> str:
    return ", ".join(f"{package} {package_version(package)}" for package in PACKAGES[backend])
