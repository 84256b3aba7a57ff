"""All kinds of records of a platform, and the refusal of records that a newer Headrace wrote."""

from collections.abc import Mapping
from typing import Final

from headrace.autoscaling.planning.policies import SCALING_POLICY
from headrace.autoscaling.planning.targets import SCALABLE_TARGET, SCHEDULED_ACTION
from headrace.autoscaling.records.activities import SCALING_ACTIVITY
from headrace.cloudwatch.alarms.records import ALARM
from headrace.control.model.component import INFERENCE_COMPONENT
from headrace.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.control.model.endpoint import ENDPOINT
from headrace.control.model.worker import WORKER
from headrace.core.errors import SettingsError
from headrace.platform.access_keys import ACCESS_KEY
from headrace.state.records import AnyKind
from headrace.state.routes import ROUTE

KINDS: Final[Mapping[str, AnyKind]] = {
    kind.name: kind
    for kind in (
        ACCESS_KEY,
        ALARM,
        ENDPOINT,
        ENDPOINT_CONFIG,
        INFERENCE_COMPONENT,
        MODEL,
        ROUTE,
        SCALABLE_TARGET,
        SCALING_ACTIVITY,
        SCALING_POLICY,
        SCHEDULED_ACTION,
        WORKER,
    )
}
"""All kinds of records, by name."""


def refuse_newer(versions: Mapping[str, int], *, what: str) -> None:
    """
    Refuse records that this version of Headrace cannot read.

    Args:
        versions: the newest schema version of each kind's records.
        what: the store or the file that has them, as the subject of a sentence.

    Raises:
        SettingsError: a newer Headrace wrote some.
    """
    remedy = "Use the version of Headrace that wrote them, or restore a backup that is older."
    for name, version in sorted(versions.items()):
        if name not in KINDS:
            raise SettingsError(f"{what} has records of the kind {name}, which this Headrace does not have. {remedy}")
        if version > KINDS[name].version:
            raise SettingsError(
                f"{what} has records of the kind {name} with schema version {version}; this Headrace expects at most "
                f"version {KINDS[name].version}. {remedy}"
            )
