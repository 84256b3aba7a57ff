from datetime import UTC, datetime, timedelta

import pytest

from headrace.tools.cli.scale_report import policy_text, report

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TARGET = {"ResourceId": "inference-component/chat", "MinCapacity": 0, "MaxCapacity": 4}


def step_policy(kind: str, *adjustments: int) -> dict:
    steps = [{"ScalingAdjustment": adjustment} for adjustment in adjustments]
    return {
        "PolicyName": "p",
        "StepScalingPolicyConfiguration": {"AdjustmentType": kind, "StepAdjustments": steps},
        "Alarms": [],
    }


def shown(**changes) -> str:
    values = {"counts": (1, 2), "policies": [], "alarms": {}, "activities": [], "now": NOW}
    return report(changes.pop("target", TARGET), **{**values, **changes})


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (step_policy("ChangeInCapacity", 1, 3), "+1, +3"),
        (step_policy("PercentChangeInCapacity", -30), "-30 %"),
        (step_policy("ExactCapacity", 0), "to 0"),
        (
            {
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": 70.0,
                    "CustomizedMetricSpecification": {"MetricName": "GPUUtilization"},
                    "DisableScaleIn": True,
                }
            },
            "keeps GPUUtilization at 70, never in",
        ),
        (
            {
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": 2.5,
                    "CustomizedMetricSpecification": {
                        "Metrics": [{"Id": "m", "ReturnData": False}, {"Id": "e", "Expression": "m / 2"}]
                    },
                }
            },
            "keeps m / 2 at 2.5",
        ),
    ],
)
def test_a_policy_has_a_short_description(policy, text):
    assert policy_text(policy) == text


def test_capacity_and_bounds_come_first():
    assert shown() == "inference-component/chat: 1 of 2 copies in service, bounds 0 to 4"
    suspended = {**TARGET, "SuspendedState": {"DynamicScalingInSuspended": True, "ScheduledScalingSuspended": True}}
    assert shown(target=suspended).endswith("suspended: scaling in, schedules")


def test_a_step_policy_without_an_alarm_is_flagged():
    assert "no alarm: nothing triggers it" in shown(policies=[step_policy("ExactCapacity", 0)])


def test_alarms_are_shown_with_their_states():
    alarms = [{"AlarmName": "TargetTracking-x-AlarmHigh-1"}, {"AlarmName": "mine"}, {"AlarmName": "lost"}]
    text = shown(
        policies=[{**step_policy("ExactCapacity", 0), "Alarms": alarms}],
        alarms={"TargetTracking-x-AlarmHigh-1": "ALARM", "mine": "OK"},
    )
    assert "High ALARM, mine OK, lost deleted" in text


@pytest.mark.parametrize(
    ("activity", "words"),
    [
        (
            {"NotScaledReasons": [{"Code": "AlreadyAtMaxCapacity", "MaxCapacity": 4}]},
            "not scaled  already at the maximum, 4",
        ),
        ({"NotScaledReasons": [{"Code": "Unheard"}]}, "not scaled  Unheard"),
        ({"StatusMessage": "Failed to set it. Reason: no room"}, "Failed  Failed to set it. Reason: no room"),
        ({"StatusMessage": "Failed to set it.", "Details": "No memory."}, "Failed  Failed to set it. No memory."),
    ],
)
def test_an_activity_that_did_not_scale_has_its_reason(activity, words):
    done = {
        "StartTime": NOW - timedelta(minutes=3),
        "StatusCode": "Failed",
        "Description": "Attempting to scale due to alarm triggered",
        "Cause": "monitor alarm a in state ALARM triggered policy p",
        **activity,
    }
    row = shown(activities=[done]).splitlines()[-1]
    assert words in row
    assert row.startswith("3m")
    assert row.endswith("p: alarm a is in ALARM")


def test_a_cause_other_than_an_alarm_is_shown_verbatim():
    done = {
        "StartTime": NOW,
        "StatusCode": "Successful",
        "Description": "Setting desired copy count to 1.",
        "Cause": "a request arrived while capacity was 0",
    }
    assert shown(activities=[done]).endswith("Setting desired copy count to 1.  a request arrived while capacity was 0")
