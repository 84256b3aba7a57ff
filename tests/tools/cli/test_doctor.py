"""`headrace doctor`: its verdict, its groups and its exit code."""

import json
from types import SimpleNamespace

import click
import pytest

from headrace.tools.cli import doctor
from headrace.tools.cli.doctor import GROUPS, report, verdict
from headrace.tools.cli.doctor_finding import Finding

FINE = Finding(name="memory", status="ok", found="8 GiB", headline="small models")
LOW = Finding(name="disk", status="warning", found="one two three four five", advice="Free some space.", is_detail=True)
BROKEN = Finding(name="native runtime", status="failed", found="does not load", advice="Reinstall headrace.")
MISSING = Finding(name="vllm", status="not installed", found="not installed", advice="pip install vllm")
DETAIL = Finding(name="kernels", status="ok", found="avx2", is_detail=True)


def test_the_verdict_comes_first_then_the_groups(headrace) -> None:
    result = headrace("doctor", "-v")
    assert result.exit_code == 0, result.stdout
    first, *lines = result.stdout.splitlines()
    assert first.startswith("This machine can serve models up to about ")
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    for name in ("CPU", "memory", "bandwidth", "disk", "headrace serve", "headrace up", "qwen3_moe", "AWQ", "s3"):
        assert name in result.stdout


def test_doctor_for_scripts_is_one_json_object(headrace) -> None:
    value = json.loads(headrace("doctor", "--json").stdout)
    assert value["can_serve"] is True
    assert value["verdict"].startswith("This machine can serve")
    assert {finding["group"] for finding in value["findings"]} == set(GROUPS)
    assert {finding["status"] for finding in value["findings"]} <= {"ok", "warning", "failed", "not installed"}


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        ([FINE, MISSING], "This machine can serve small models."),
        ([FINE, LOW], "This machine can serve small models. There is 1 warning below."),
        ([FINE, LOW, LOW], "This machine can serve small models. There are 2 warnings below."),
        ([FINE, BROKEN], "This machine cannot serve: native runtime (does not load)."),
    ],
)
def test_the_verdict_is_a_sentence(findings: list[Finding], sentence: str) -> None:
    assert verdict(findings) == sentence


def test_details_are_shown_on_request_or_if_something_is_wrong() -> None:
    groups = {"This machine": [FINE, LOW, DETAIL]}
    brief, whole = (report(groups, verbose=verbose) for verbose in (False, True))
    assert "disk" in brief
    assert "kernels" not in brief
    assert brief.endswith("1 more check: headrace doctor -v")
    assert "kernels" in whole
    assert "headrace doctor -v" not in whole


def test_what_is_not_installed_is_neither_ok_nor_wrong() -> None:
    lines = click.unstyle(report({"Optional parts": [MISSING]}, verbose=False)).splitlines()
    assert lines[-2:] == [f"  -     {'vllm':18}  not installed", f"{'':28}pip install vllm"]


def test_findings_are_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tools.cli.tables.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setenv("COLUMNS", "40")
    assert click.unstyle(report({"This machine": [LOW]}, verbose=False)).splitlines()[-5:] == [
        "  warn  disk                one two",
        "                            three four",
        "                            five",
        "                            Free some",
        "                            space.",
    ]


@pytest.mark.parametrize(("finding", "code"), [(BROKEN, 1), (LOW, 0), (MISSING, 0)])
def test_only_a_failed_check_is_exit_code_1(headrace, monkeypatch: pytest.MonkeyPatch, finding, code: int) -> None:
    monkeypatch.setattr(doctor, "GROUPS", {"This machine": (lambda: iter([finding]),)})
    result = headrace("doctor")
    assert result.exit_code == code
    assert finding.advice in result.stdout
