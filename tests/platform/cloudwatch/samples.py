"""Alarms for tests of other packages."""

import msgspec

from headrace.platform.cloudwatch.alarms.records import ALARM, AlarmRecord, AlarmSpec, AlarmStatus
from headrace.platform.cloudwatch.alarms.rules import AlarmState
from headrace.platform.state.store import Store

SPEC = AlarmSpec(
    metric_name="Invocation5XXErrors",
    namespace="AWS/SageMaker",
    evaluation_periods=1,
    threshold=0.0,
    comparison_operator="GreaterThanThreshold",
)


def create_alarm(store: Store, name: str, state: AlarmState = "OK") -> AlarmRecord:
    """Create the record of an alarm in a state."""
    spec = msgspec.structs.replace(SPEC, alarm_name=name)
    return store.create(ALARM, name, spec=spec, status=AlarmStatus(state=state))
