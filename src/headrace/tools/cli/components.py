"""Inference components as `headrace ls` and `describe` show them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.tools.cli.platform_client import Platform, is_not_found
from headrace.tools.cli.tables import age, count_of

HEADS = ("COMPONENT", "STATUS", "COPIES", "ENDPOINT", "VARIANT", "AGE")


def described_component(platform: Platform, name: str) -> dict[str, Any] | None:
    """Return the response of DescribeInferenceComponent, or None if there is no such component."""
    from botocore.exceptions import ClientError

    try:
        description: dict[str, Any] = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
    except ClientError as error:
        if is_not_found(error):
            return None
        raise
    return description


def components_of(platform: Platform, endpoint: str | None = None) -> list[dict[str, Any]]:
    """Return the components of an endpoint, or of all endpoints, sorted by name."""
    only = {} if endpoint is None else {"EndpointNameEquals": endpoint}
    pages = platform.sagemaker.get_paginator("list_inference_components").paginate(
        SortBy="Name", SortOrder="Ascending", **only
    )
    names = [entry["InferenceComponentName"] for page in pages for entry in page["InferenceComponents"]]
    return [found for name in names if (found := described_component(platform, name)) is not None]


def component_row(component: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of a component in `headrace ls`."""
    return (
        component["InferenceComponentName"],
        component["InferenceComponentStatus"],
        f"on {base}" if (base := base_name(component)) else "{}/{}".format(*copies_of(component)),
        component["EndpointName"],
        component["VariantName"],
        age(component["CreationTime"], datetime.now(UTC)),
    )


def component_rows(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about a component in `headrace describe ENDPOINT`."""
    return [
        ("component", component["InferenceComponentName"]),
        *(
            (f"  {label}", value)
            for label, value in _facts(component)
            if label in ("status", "reason", "model", "copies", "needs", "base", "adapter")
        ),
    ]


def whole_component(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of `headrace describe COMPONENT`."""
    return [("component", component["InferenceComponentName"]), *_facts(component)]


def base_name(component: Mapping[str, Any]) -> str:
    """Return the base of an adapter component; empty for any other component."""
    return str(_specification(component).get("BaseInferenceComponentName") or "")


def copies_of(component: Mapping[str, Any]) -> tuple[int, int]:
    """Return the current and the desired number of copies."""
    config = component.get("RuntimeConfig") or {}
    return config.get("CurrentCopyCount", 0), config.get("DesiredCopyCount", 0)


def _facts(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    specification = _specification(component)
    image = ((specification.get("Container") or {}).get("DeployedImage") or {}).get("SpecifiedImage", "")
    current, desired = copies_of(component)
    placed = (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()
    types = ", ".join(status["InstanceType"] for status in placed if status.get("CurrentCopyCount"))
    strategy = (specification.get("SchedulingConfig") or {}).get("PlacementStrategy", "SPREAD")
    own = [
        ("model", specification.get("ModelName") or image),
        ("copies", f"{current} of {desired}" + (f", on {types}" if types else "")),
        ("needs", needs_text(specification.get("ComputeResourceRequirements") or {})),
        ("placement", strategy),
    ]
    if base := base_name(component):
        own = [("base", base), ("adapter", (specification.get("Container") or {}).get("ArtifactUrl", ""))]
    return [
        ("status", component["InferenceComponentStatus"]),
        ("reason", component.get("FailureReason", "")),
        ("endpoint", component["EndpointName"]),
        ("variant", component["VariantName"]),
        *own,
        ("created", f"{component['CreationTime']:%Y-%m-%d %H:%M:%S %Z}"),
        ("arn", component["InferenceComponentArn"]),
    ]


def _specification(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the deployed specification: of several, the one for the instance type that hosts the copies."""
    specifications = component.get("Specifications") or []
    placed = {status["InstanceType"] for status in (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()}
    fitting = [specification for specification in specifications if specification.get("InstanceType") in placed]
    found: Mapping[str, Any] = component.get("Specification") or next(iter(fitting or specifications), {})
    return found


def needs_text(need: Mapping[str, float]) -> str:
    """Format `ComputeResourceRequirements` for people."""
    parts = (
        ("NumberOfCpuCoresRequired", "CPU core", "CPU cores"),
        ("NumberOfAcceleratorDevicesRequired", "accelerator", "accelerators"),
        ("MinMemoryRequiredInMb", "MB of memory", "MB of memory"),
    )
    return ", ".join(count_of(need[name], noun, plural) for name, noun, plural in parts if need.get(name))
