import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.core.errors import InvalidRequest
from headrace.tools.cli.simulate import simulate_day
from headrace.tools.cli.simulate_files import example_trace, read_trace


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_row_is_spread_until_the_next_one(tmp_path):
    trace = read_trace(write(tmp_path, "time,requests\n0,60\n60,30\n"))
    assert trace.requests == pytest.approx((10.0,) * 6 + (5.0,) * 6)


def test_a_row_without_a_count_is_one_request_at_its_time(tmp_path):
    trace = read_trace(write(tmp_path, "time\n2026-11-21T12:00:01Z\n2026-11-21T12:00:25Z\n2026-11-21T12:00:02Z\n"))
    assert trace.requests == (2.0, 0.0, 1.0)
    assert trace.start_s == 1_795_262_400


@pytest.mark.parametrize(
    "text",
    ["", "when\n1\n", "time\n", "time\nnoon\n", "time,requests\n1,-1\n", "time,requests\n1,nan\n", "time\n1\n9e9\n"],
)
def test_an_invalid_trace_is_refused_with_the_line(tmp_path, text):
    with pytest.raises(InvalidRequest):
        read_trace(write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"time;requests\n0;1\n", "'time;requests'; expected time and, optionally, requests, separated by commas"),
        (b"\xff\xfet\x00i\x00m\x00e\x00", "is not UTF-8 text"),
        (b"time,requests\n0,5\n60,\n", "line 3 has time '60', requests ''; expected"),
        (b"time,requests\n0,5\n60\n", "line 3 has time '60', requests None; expected"),
        (b"time\n1764000000000\n1764006000000\n", "milliseconds"),
    ],
)
def test_a_malformed_trace_is_refused_with_the_reason(tmp_path, content, words):
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words):
        read_trace(path)


def test_a_trace_that_excel_wrote_is_read(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbftime,requests\r\n0,60\r\n60,30\r\n")
    assert sum(read_trace(path).requests) == pytest.approx(90)


def test_a_day_is_simulated_shown_and_written(tmp_path):
    path = write(tmp_path, example_trace())
    page, table = tmp_path / "day.html", tmp_path / "day-out.csv"
    options = ["--target", "4", "--min", "0", "--max", "20", "--html", str(page), "--csv", str(table)]
    result = CliRunner().invoke(simulate_day, [str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "copies" in result.output
    assert "copy-hours" in result.output
    html = page.read_text(encoding="utf-8")
    assert "<svg" in html
    assert "http" not in html
    with table.open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 8640


def test_a_policy_file_and_json_out(tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps(
            {
                "TargetValue": 60,
                "PredefinedMetricSpecification": {
                    "PredefinedMetricType": "SageMakerVariantInvocationsPerInstance",
                },
            }
        ),
        encoding="utf-8",
    )
    path = write(tmp_path, "time,requests\n0,600\n600,600\n")
    options = [str(path), "--policy", str(policy), "--json"]
    result = CliRunner().invoke(simulate_day, options, catch_exceptions=False)
    assert json.loads(result.output)["requests"] == pytest.approx(1200)


def test_the_example_is_a_trace(tmp_path):
    text = CliRunner().invoke(simulate_day, ["--example"]).output
    assert len(read_trace(write(tmp_path, text)).requests) == 8640


FAST = {"PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"}
STEPS = {
    "AdjustmentType": "ExactCapacity",
    "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("{", "line 1"),
        ("[]", "contains a list"),
        ({}, "Policies"),
        ({"TargetValue": 4, "PredefinedMetricSpecification": FAST, "ScaleOutColdown": 3}, "ScaleOutColdown"),
        ({"TargetValue": "4", "PredefinedMetricSpecification": FAST}, "TargetValue"),
        ({"TargetValue": 4, "PredefinedMetricSpecification": FAST, "MinCapacity": "1"}, "MinCapacity"),
        ({"TargetValues": 4}, "TargetValues"),
        ({"Policies": {}}, "Policies is a dict"),
        ({"Policies": [3]}, "Policies[0]"),
        ({"Policies": [{"PolicyName": "p", "StepScalingPolicyConfiguration": {"Adjustment": 1}}]}, "Adjustment"),
        ({"Policies": [{"PolicyName": "p", "StepScalingPolicyConfiguration": STEPS}]}, "needs one of Alarms"),
        ({"ScheduledActions": [{"Schedule": "daily", "ScalableTargetAction": {"MinCapacity": 1}}]}, "daily"),
        (
            {"ScheduledActions": [{"Schedule": "rate(1 day)", "ScalableTargetAction": {"Min": 1}}]},
            "ScheduledActions[0]",
        ),
    ],
)
def test_an_invalid_policy_names_the_file_and_the_member(tmp_path, policy, words):
    file = tmp_path / "policy.json"
    file.write_text(policy if isinstance(policy, str) else json.dumps(policy), encoding="utf-8")
    path = write(tmp_path, "time\n1\n")
    result = CliRunner().invoke(simulate_day, [str(path), "--policy", str(file)])
    assert isinstance(result.exception, InvalidRequest)
    assert "policy.json" in str(result.exception)
    assert words in str(result.exception)


def test_two_policies_are_compared_on_one_trace(tmp_path):
    cheap, quick = tmp_path / "cheap.json", tmp_path / "quick.json"
    cheap.write_text(json.dumps({"TargetValue": 8, "PredefinedMetricSpecification": FAST}), encoding="utf-8")
    quick.write_text(json.dumps({"TargetValue": 2, "PredefinedMetricSpecification": FAST}), encoding="utf-8")
    path, page = write(tmp_path, "time,requests\n0,600\n600,2400\n1200,600\n"), tmp_path / "page.html"
    options = [str(path), "--policy", str(cheap), "--compare", str(quick)]
    found = json.loads(CliRunner().invoke(simulate_day, [*options, "--json"], catch_exceptions=False).output)
    assert found["quick"]["copy_hours"] > found["cheap"]["copy_hours"]
    assert found["quick"]["latency_p50_s"] < found["cheap"]["latency_p50_s"]
    output = CliRunner().invoke(simulate_day, [*options, "--html", str(page)], catch_exceptions=False).output
    head = next(line for line in output.splitlines() if "cheap" in line)
    assert head.split() == ["cheap", "quick"]
    assert "copies 1" in output
    assert "copies 2" in output
    html = page.read_text(encoding="utf-8")
    assert html.count("<polyline") == 7, "one line for the requests, two for each of the others"


@pytest.mark.parametrize(("at_zero", "lost", "held"), [("wake", 0, 3), ("fail", 4, 0), ("wait", 0, 4)])
def test_the_handling_of_requests_at_zero_can_be_chosen(tmp_path, at_zero, lost, held):
    """Four requests, ten seconds apart; a copy that is woken serves after thirty."""
    path = write(tmp_path, "time\n0\n10\n20\n30\n")
    options = [str(path), "--target", "4", "--min", "0", "--at-zero", at_zero, "--json"]
    found = json.loads(CliRunner().invoke(simulate_day, options, catch_exceptions=False).output)
    assert (found["lost"], found["held"]) == (lost, held)


def test_large_numbers_are_written_out_and_the_step_length_is_shown(tmp_path):
    path, page, table = tmp_path / "t.csv", tmp_path / "page.html", tmp_path / "out.csv"
    path.write_text("time,requests\n0,2000000000\n600,4000000000\n", encoding="utf-8")
    options = [str(path), "--target", "4", "--html", str(page), "--csv", str(table)]
    output = CliRunner().invoke(simulate_day, options, catch_exceptions=False).output
    assert "max 6,666,667/s" in output
    assert "in steps of 10 s; the autoscaler decides once per step" in output
    drawn = page.read_text(encoding="utf-8")
    assert ">6,666,667<" in drawn
    assert "in steps of 10 s" in drawn
    assert not any("e+" in text for text in (output, drawn, table.read_text(encoding="utf-8")))
