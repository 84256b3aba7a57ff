"""The resource that a call is about, for the audit log."""

import re
from collections.abc import Mapping
from typing import Any

_VERB = re.compile(r"[A-Z][a-z]+")
_NAMES = (
    *("InferenceComponentName", "EndpointName", "EndpointConfigName", "ModelName"),
    *("ResourceArn", "ResourceId", "AlarmName", "AlarmNames", "DashboardName", "logGroupName", "Namespace"),
    *("RoleName", "RoleArn", "PolicyName"),
)
"""Members that name a resource, the most specific first."""


def resource_of(operation: str, params: Mapping[str, Any]) -> str:
    """
    Return the name of the resource of a call, or several with commas; empty if it names none.

    The member `EndpointConfigName` of CreateEndpointConfig comes first, then the known names. No other member is read:
    it may be a secret.
    """
    noun = _VERB.sub("", operation, count=1)
    for name in (f"{noun}Name", f"{noun}Arn", *_NAMES):
        value = params.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return ",".join(str(item) for item in value)
    return ""
