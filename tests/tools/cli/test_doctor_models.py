"""The checks of `headrace doctor` of models, formats and optional parts."""

import pytest

from headrace.core.engine_names import BACKENDS
from headrace.core.installing import pip_install
from headrace.inference.backends.choice import HostFacts
from headrace.tools.cli import doctor_models
from headrace.tools.cli.doctor_models import check_formats, judge_choice, judge_extra

NATIVE = frozenset({"native"})


@pytest.mark.parametrize(
    ("installed", "num_gpus", "status", "found", "others"),
    [
        (NATIVE, 0, "ok", "native on cpu: the first choice on a CPU", "not installed"),
        (frozenset(BACKENDS), 0, "ok", "native on cpu: the first choice on a CPU", "ok"),
        (frozenset(BACKENDS), 1, "ok", "vllm on cuda: the first choice on a GPU", "ok"),
        (NATIVE, 1, "warning", "native on cpu: vllm is not installed", "not installed"),
    ],
)
def test_the_choice_of_auto_is_reported(installed, num_gpus: int, status: str, found: str, others: str) -> None:
    auto, other = judge_choice(HostFacts(installed=installed, num_gpus=num_gpus))

    assert (auto.name, auto.status) == ("backend", status)
    assert auto.found.startswith(found)
    assert (pip_install("headrace[vllm]") in auto.advice) == (status == "warning")
    assert (other.status, bool(other.advice)) == (others, others != "ok")


@pytest.mark.parametrize(
    ("versions", "status", "found"),
    [
        ({"ray": "2.60"}, "ok", "workers on a Ray cluster: ray 2.60"),
        ({"ray": "2.60", "x": None}, "not installed", "workers on a Ray cluster: not installed"),
    ],
)
def test_an_extra_is_installed_with_all_its_packages(versions, status: str, found: str) -> None:
    finding = judge_extra("ray", versions)
    assert (finding.status, finding.found) == (status, found)
    assert finding.advice == ("" if status == "ok" else pip_install("headrace[ray]"))


def test_requirements_of_an_extra_are_not_required() -> None:
    requirements = ["click>=8.1", "uvloop>=0.21; sys_platform != 'win32'", "ray>=2; extra == 'ray'"]
    assert doctor_models._of_extra(requirements, None) == requirements[:2]
    assert doctor_models._of_extra(requirements, "ray") == requirements[2:]
    assert [doctor_models._package(text) for text in requirements] == ["click", "uvloop", "ray"]


def test_formats_are_summarized_and_detailed() -> None:
    findings = list(check_formats())
    assert [finding.name for finding in findings if not finding.is_detail] == ["0.5 B model", "3 B model"]
    assert "for 16-bit files" in findings[0].found
    assert sum(finding.is_detail for finding in findings) == 6
