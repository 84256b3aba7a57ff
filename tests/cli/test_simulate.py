import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.simulate import simulate_day
from headrace.cli.simulate_files import example_trace, read_trace
from headrace.core.errors import InvalidRequest


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
def test_what_is_no_trace_is_refused_by_line(tmp_path, text):
    with pytest.raises(InvalidRequest):
        read_trace(write(tmp_path, text))


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


@pytest.mark.parametrize("policy", ["{", "[]", "{}"])
def test_a_bad_policy_is_named(tmp_path, policy):
    file = tmp_path / "policy.json"
    file.write_text(policy, encoding="utf-8")
    path = write(tmp_path, "time\n1\n")
    result = CliRunner().invoke(simulate_day, [str(path), "--policy", str(file)])
    assert isinstance(result.exception, InvalidRequest)
    assert "policy.json" in str(result.exception)
