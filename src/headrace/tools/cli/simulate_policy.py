"""Read the policy files of `headrace simulate` and validate each member against AWS's operations."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import InvalidRequest

OWN_MEMBERS = ("MinCapacity", "MaxCapacity", "SuspendedState", "Policies", "Alarms", "ScheduledActions")
"""Members of a document with several policies."""

_TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/v",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
_SCALING = "application-autoscaling"
_LISTS: tuple[tuple[str, str, str, Mapping[str, Any]], ...] = (
    ("Policies", _SCALING, "PutScalingPolicy", _TARGET),
    ("Alarms", "cloudwatch", "PutMetricAlarm", {}),
    ("ScheduledActions", _SCALING, "PutScheduledAction", {"ScheduledActionName": "action", **_TARGET}),
)
"""Member, service and operation of its items, and values that a file may omit."""
_TRACKING, _STEPS = "TargetTrackingScalingPolicyConfiguration", "StepScalingPolicyConfiguration"


def read_policy(path: Path) -> dict[str, Any]:
    """
    Read a policy file.

    Raises:
        InvalidRequest: the file is not a JSON object, or has members or types that AWS's operations do not have; the
            message names file and member.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as exc:
        raise InvalidRequest(f"{path}, line {exc.lineno}, column {exc.colno}: {exc.msg}; expected JSON.") from exc
    except (OSError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc}.") from exc
    if not isinstance(document, dict):
        raise InvalidRequest(f"{path} contains a {type(document).__name__}; expected a JSON object.")
    for where, service, operation, request in _requests(document, path):
        _check(where, service, operation, request)
    return document


def _requests(document: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Yield each part of a document as a request: its location, service, operation and value."""
    bounds = {name: document[name] for name in OWN_MEMBERS[:3] if name in document}
    yield f"{path}", _SCALING, "RegisterScalableTarget", {**_TARGET, **bounds}
    rest = {name: value for name, value in document.items() if name not in bounds}
    if "TargetValue" in document:
        yield f"{path}", _SCALING, "PutScalingPolicy", {"PolicyName": "p", **_TARGET, _TRACKING: rest}
        return
    if _TRACKING in document or _STEPS in document:
        policy = {name: value for name, value in rest.items() if name not in ("Alarms", "ScheduledActions")}
        yield f"{path}", _SCALING, "PutScalingPolicy", {"PolicyName": "p", **_TARGET, **policy}
    else:
        unknown = [name for name in document if name not in OWN_MEMBERS]
        if unknown:
            raise InvalidRequest(
                f"{path}: {unknown[0]} is not a known member; expected {', '.join(OWN_MEMBERS)}, or a "
                f"target-tracking configuration (TargetValue, ...), or a PutScalingPolicy request ({_TRACKING}, ...)."
            )
    for member, service, operation, defaults in _LISTS:
        for number, request in enumerate(_listed(document, member, path)):
            yield f"{path}: {member}[{number}]", service, operation, {**defaults, **request}


def _listed(document: Mapping[str, Any], member: str, path: Path) -> list[dict[str, Any]]:
    listed = document.get(member, [])
    if not isinstance(listed, list):
        raise InvalidRequest(f"{path}: {member} is a {type(listed).__name__}; expected a list.")
    for number, request in enumerate(listed):
        if not isinstance(request, dict):
            raise InvalidRequest(f"{path}: {member}[{number}] is a {type(request).__name__}; expected an object.")
    return listed


def _check(where: str, service: str, operation: str, request: Mapping[str, Any]) -> None:
    from botocore.validate import ParamValidator

    from headrace.serving.wire.aws import services

    shape = services.operation(service, operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise InvalidRequest(f"{where}: {' '.join(report.generate_report().split())}")
