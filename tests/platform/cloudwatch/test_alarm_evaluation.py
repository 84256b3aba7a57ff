import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.cloudwatch.alarms.rules import (
    AlarmRule,
    AlarmState,
    Datapoint,
    evaluate_rule,
    rule_from_json,
    samples_needed,
)
from headrace.platform.cloudwatch.evaluator import evaluate_alarm

STATES: list[AlarmState] = ["OK", "ALARM", "INSUFFICIENT_DATA"]
SPEC = {
    "Namespace": "n",
    "MetricName": "m",
    "Threshold": 10.0,
    "ComparisonOperator": "GreaterThanThreshold",
    "EvaluationPeriods": 3,
    "Period": 60,
}


def points(drawing: str) -> list[Datapoint]:
    """`0 - X`: fine, missing, breaching; the newest on the right, ending at 300 s."""
    marks = drawing.split()
    first_s = 300 - 60 * len(marks)
    return [
        Datapoint(start_s=first_s + 60 * i, value=20.0 if mark == "X" else 5.0)
        for i, mark in enumerate(marks)
        if mark != "-"
    ]


def state_of(drawing: str, missing: str, needed: int, state: AlarmState = "INSUFFICIENT_DATA") -> AlarmState:
    rule = rule_from_json({**SPEC, "TreatMissingData": missing, "DatapointsToAlarm": needed})
    return evaluate_rule(rule, points(drawing), state=state, end_s=300.0).state


@pytest.mark.parametrize(
    ("drawing", "needed", "missing", "ignore", "breaching", "not_breaching"),
    [
        ("0 - X - X", 3, "OK", "OK", "OK", "OK"),
        ("0 - - - -", 3, "OK", "OK", "OK", "OK"),
        ("- - - - -", 3, "INSUFFICIENT_DATA", None, "ALARM", "OK"),
        ("0 X X - X", 3, "ALARM", "ALARM", "ALARM", "ALARM"),
        ("- - X - -", 3, "ALARM", None, "ALARM", "OK"),
        ("0 - X - X", 2, "ALARM", "ALARM", "ALARM", "ALARM"),
        ("0 0 X 0 X", 2, "ALARM", "ALARM", "ALARM", "ALARM"),
        ("0 - X - -", 2, "OK", "OK", "ALARM", "OK"),
        ("- - - - 0", 2, "OK", "OK", "ALARM", "OK"),
        ("- - - X -", 2, "ALARM", None, "ALARM", "OK"),
    ],
)
def test_the_tables_of_the_user_guide(drawing, needed, missing, ignore, breaching, not_breaching):
    """CloudWatch user guide, "How alarm state is evaluated when data is missing"; None: the state is retained."""
    for before in STATES:
        assert state_of(drawing, "missing", needed, before) == missing
        assert state_of(drawing, "ignore", needed, before) == (ignore or before)
        assert state_of(drawing, "breaching", needed, before) == breaching
        assert state_of(drawing, "notBreaching", needed, before) == not_breaching


@pytest.mark.parametrize("drawing", ["- - - - X", "- - - X -", "- - - X X"])
def test_no_alarm_is_raised_too_early(drawing):
    """The state stays, and no text calls a breaching value fine."""
    for before in STATES:
        assert state_of(drawing, "missing", 3, before) == before


def test_too_few_samples_keep_the_state_of_a_percentile_alarm():
    spec = {**SPEC, "ExtendedStatistic": "p99", "EvaluateLowSampleCountPercentile": "ignore"}
    rule = rule_from_json(spec)
    assert evaluate_rule(rule, points("X X X X X"), state="OK", end_s=300.0).state == "OK"
    assert samples_needed("p99") == pytest.approx(1000)
    assert samples_needed("p10") == pytest.approx(100)
    assert samples_needed("Average") == 0


@given(st.lists(st.sampled_from("0X-"), min_size=5, max_size=5), st.integers(1, 3), st.sampled_from(STATES))
def test_an_alarm_always_has_a_state_and_full_data_needs_no_treatment(marks, needed, before):
    drawing = " ".join(marks)
    found = {
        state_of(drawing, missing, needed, before) for missing in ("missing", "ignore", "breaching", "notBreaching")
    }
    assert found <= set(STATES)
    if len(points(drawing)) >= 3:
        assert len(found) == 1


def test_the_reason_is_worded_like_cloudwatch():
    def read(rule: AlarmRule, *, start_s: float, end_s: float) -> list[Datapoint]:
        assert (start_s, end_s) == (0.0, 300.0)
        return points("0 0 X X X")

    found = evaluate_alarm(rule_from_json(SPEC), read, state="OK", now_s=309.5)
    assert found.state == "ALARM"
    assert found.values[-1] == 20.0
    assert found.reason == (
        "Threshold Crossed: 3 out of the last 3 datapoints [20.0 (01/01/70 00:04:00), 20.0 (01/01/70 00:03:00), "
        "20.0 (01/01/70 00:02:00)] were greater than the threshold (10.0) "
        "(minimum 3 datapoints for OK -> ALARM transition)."
    )
    data = json.loads(found.reason_data)
    assert data["recentDatapoints"] == [20.0, 20.0, 20.0]
    assert data["startDate"] == "1970-01-01T00:02:00.000+0000"


@pytest.mark.parametrize(
    ("drawing", "missing", "needed", "state", "reason"),
    [
        ("- - - - X", "notBreaching", 2, "OK", "no datapoints were received for 2 periods and 2 missing datapoints"),
        ("- - - - 0", "breaching", 2, "ALARM", "no datapoints were received for 2 periods and 2 missing datapoints"),
        ("- - - - -", "breaching", 3, "ALARM", "no datapoints were received for 3 periods and 3 missing datapoints"),
        ("- - X X 0", "missing", 3, "OK", "1 out of the last 3 datapoints [5.0 (01/01/70 00:04:00)] was not greater"),
        ("- - - 0 0", "notBreaching", 3, "OK", "2 out of the last 2 datapoints [5.0 (01/01/70 00:04:00), 5.0 "),
    ],
)
def test_the_reason_names_what_led_to_the_state(drawing, missing, needed, state, reason):
    rule = rule_from_json({**SPEC, "TreatMissingData": missing, "DatapointsToAlarm": needed})
    before = "INSUFFICIENT_DATA"
    found = evaluate_alarm(rule, lambda rule, *, start_s, end_s: points(drawing), state=before, now_s=300.0)
    assert found.state == state
    assert reason in found.reason


def test_missing_measurements_are_the_reason_for_insufficient_data():
    found = evaluate_alarm(rule_from_json(SPEC), lambda rule, *, start_s, end_s: [], state="OK", now_s=300.0)
    assert (found.state, found.values) == ("INSUFFICIENT_DATA", ())
    assert found.reason == "Insufficient Data: 3 datapoints were unknown."


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ComparisonOperator": "LessThanLowerThreshold"}, "ComparisonOperator"),
        ({"TreatMissingData": "maybe"}, "TreatMissingData"),
        ({"DatapointsToAlarm": 4}, "DatapointsToAlarm"),
        ({"MetricName": None}, "MetricName"),
        ({"Threshold": None}, "Threshold"),
    ],
)
def test_an_invalid_rule_is_refused(change, word):
    with pytest.raises(ValueError, match=word):
        rule_from_json({**SPEC, **change})
