import json
import socket
from types import SimpleNamespace

import pytest

from headrace.core.engine_names import BACKENDS
from headrace.core.gpus import Gpu
from headrace.core.installing import pip_install
from headrace.inference.backends.choice import HostFacts
from headrace.tools.cli import doctor
from headrace.tools.cli.doctor import Finding, check_backends, judge_choice, judge_disk, judge_memory, printed

TORCH = pip_install("headrace[torch]")
NATIVE = frozenset({"native"})


def test_doctor_reports_kernels_memory_and_stores(headrace) -> None:
    result = headrace("doctor")
    assert result.exit_code == 0, result.stdout
    for name in ("CPU features", "kernels", "memory", "port", "packages", "packed weights", "disk", "bandwidth"):
        assert name in result.stdout
    assert "This machine can serve." in result.stdout
    assert "qwen3_moe" in result.stdout
    assert "AWQ" in result.stdout


def test_findings_are_wrapped_on_a_terminal(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tools.cli.tables.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setenv("COLUMNS", "40")
    finding = Finding(name="disk", status="warning", found="one two three four five", advice="Free some space.")
    assert list(printed([finding])) == [finding]
    assert capsys.readouterr().out.splitlines() == [
        "warn  disk                  one two",
        "                            three four",
        "                            five",
        "                            Free some",
        "                            space.",
    ]


def test_doctor_for_scripts_is_one_json_object(headrace) -> None:
    value = json.loads(headrace("doctor", "--json").stdout)
    assert value["can_serve"] is True
    assert {finding["status"] for finding in value["findings"]} <= {"ok", "warning", "failed"}


def test_a_failed_check_is_exit_code_1(headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding(name="native runtime", status="failed", found="does not load", advice="Reinstall headrace.")
    monkeypatch.setattr(doctor, "CHECKS", (doctor.check_versions, lambda: iter([broken])))
    result = headrace("doctor")
    assert result.exit_code == 1
    assert "Serving cannot work here: native runtime." in result.stdout
    assert "Reinstall headrace." in result.stdout


@pytest.mark.parametrize(("gib", "status"), [(0.25, "failed"), (1, "warning"), (4, "ok")])
def test_memory_is_judged_by_what_is_available(gib: float, status: str) -> None:
    finding = judge_memory(int(gib * 2**30))
    assert status == finding.status
    assert bool(finding.advice) == (status != "ok")


def test_a_port_in_use_is_a_warning_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        (finding,) = doctor.check_port()
    assert finding.status == "warning"
    assert "--port 0" in finding.advice


def test_a_store_that_does_not_exist_yet_is_judged_by_the_disk_below(tmp_path) -> None:
    finding = judge_disk(tmp_path / "not" / "yet")
    assert str(tmp_path) in finding.found


def test_requirements_of_an_extra_are_not_required() -> None:
    requirements = ["click>=8.1", "uvloop>=0.21; sys_platform != 'win32'", "ray>=2; extra == 'ray'"]
    assert doctor._of_extra(requirements, None) == requirements[:2]
    assert doctor._of_extra(requirements, "ray") == requirements[2:]
    assert [doctor._package(text) for text in requirements] == ["click", "uvloop", "ray"]


def test_doctor_lists_gpus() -> None:
    gpus = (Gpu(index=0, name="NVIDIA L4", memory_bytes=24 << 30), Gpu(index=1))
    assert doctor.judge_gpus(gpus).found == "0: NVIDIA L4, 24 GiB; 1: NVIDIA GPU"
    assert "run on the CPU" in doctor.judge_gpus(()).found


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
