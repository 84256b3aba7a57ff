"""The doctor's findings about backends."""

import pytest

from headrace.core.engine_names import BACKENDS
from headrace.core.installing import pip_install
from headrace.inference.backends.choice import HostFacts
from headrace.tools.cli.doctor import check_backends, judge_choice

TORCH = pip_install("headrace[torch]")
NATIVE = frozenset({"native"})


@pytest.mark.parametrize(
    ("installed", "num_gpus", "status", "found", "others"),
    [
        (
            NATIVE,
            0,
            "ok",
            "native on cpu: the first choice on a CPU",
            f"none runs them ({TORCH}",
        ),
        (frozenset(BACKENDS), 0, "ok", "native on cpu: the first choice on a CPU", "transformers runs them"),
        (frozenset(BACKENDS), 1, "ok", "vllm on cuda: the first choice on a GPU", "vllm runs them"),
        (NATIVE, 1, "warning", "native on cpu: vllm is not installed", "none runs them"),
    ],
)
def test_the_doctor_says_what_auto_takes(installed, num_gpus, status, found, others):
    auto, other = judge_choice(HostFacts(installed=installed, num_gpus=num_gpus))

    assert (auto.name, auto.status) == ("backend auto", status)
    assert auto.found.startswith(found)
    assert other.found.startswith(others)
    assert (pip_install("headrace[vllm]") in auto.advice) == (status == "warning")


def test_the_doctor_lists_each_backend_with_its_version_or_its_extra():
    findings = {finding.name: finding.found for finding in check_backends()}

    for name in BACKENDS[1:]:
        assert "(pip install " in findings[f"backend {name}"] or findings[f"backend {name}"][-1].isalnum()
