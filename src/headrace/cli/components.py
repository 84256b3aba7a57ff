"""Inference components as `headrace ls` and `describe` show them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.cli.platform_client import Platform, is_not_found
from headrace.cli.tables import age

HEADS = ("COMPONENT", "STATUS", "COPIES", "ENDPOINT", "VARIANT", "AGE")


def described_component(platform: Platform, name: str) -> dict[str, Any] | None:
    """DescribeInferenceComponent; None if there is none of the name."""
    from botocore.exceptions import ClientError

    try:
        found: dict[str, Any] = platform.sagemaker.describe_inference_component(InferenceComponentName=name)
    except ClientError as error:
        if is_not_found(error):
            return None
        raise
    return found


def components_of(platform: Platform, endpoint: str | None = None) -> list[dict[str, Any]]:
    """The components of an endpoint, or of all, by name."""
    only = {} if endpoint is None else {"EndpointNameEquals": endpoint}
    pages = platform.sagemaker.get_paginator("list_inference_components").paginate(
        SortBy="Name", SortOrder="Ascending", **only
    )
    names = [entry["InferenceComponentName"] for page in pages for entry in page["InferenceComponents"]]
    return [found for name in names if (found := described_component(platform, name)) is not None]


def component_row(component: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of `headrace ls`."""
    return (
        component["InferenceComponentName"],
        component["InferenceComponentStatus"],
        "{}/{}".format(*copies_of(component)),
        component["EndpointName"],
        component["VariantName"],
        age(component["CreationTime"], datetime.now(UTC)),
    )


def component_rows(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `headrace describe` says of a component of the endpoint that it shows."""
    return [
        ("component", component["InferenceComponentName"]),
        *(
            (f"  {label}", value)
            for label, value in _facts(component)
            if label in ("status", "reason", "model", "copies", "needs")
        ),
    ]


def whole_component(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that `headrace describe` says of a component."""
    return [("component", component["InferenceComponentName"]), *_facts(component)]


def copies_of(component: Mapping[str, Any]) -> tuple[int, int]:
    """How many serve, and shall."""
    config = component.get("RuntimeConfig") or {}
    return config.get("CurrentCopyCount", 0), config.get("DesiredCopyCount", 0)


def _facts(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    specification = _specification(component)
    image = ((specification.get("Container") or {}).get("DeployedImage") or {}).get("SpecifiedImage", "")
    present, wanted = copies_of(component)
    placed = (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()
    types = ", ".join(one["InstanceType"] for one in placed if one.get("CurrentCopyCount"))
    strategy = (specification.get("SchedulingConfig") or {}).get("PlacementStrategy", "SPREAD")
    return [
        ("status", component["InferenceComponentStatus"]),
        ("reason", component.get("FailureReason", "")),
        ("endpoint", component["EndpointName"]),
        ("variant", component["VariantName"]),
        ("model", specification.get("ModelName") or image),
        ("copies", f"{present} of {wanted}" + (f", on {types}" if types else "")),
        ("needs", needs_text(specification.get("ComputeResourceRequirements") or {})),
        ("placement", strategy),
        ("created", f"{component['CreationTime']:%Y-%m-%d %H:%M:%S %Z}"),
        ("arn", component["InferenceComponentArn"]),
    ]


def _specification(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one that is deployed: of several, that for the instance type the copies are on."""
    several = component.get("Specifications") or []
    placed = {one["InstanceType"] for one in (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()}
    fitting = [one for one in several if one.get("InstanceType") in placed]
    found: Mapping[str, Any] = component.get("Specification") or next(iter(fitting or several), {})
    return found


def needs_text(need: Mapping[str, float]) -> str:
    """`ComputeResourceRequirements` in words."""
    parts = (
        ("NumberOfCpuCoresRequired", "CPU cores"),
        ("NumberOfAcceleratorDevicesRequired", "accelerators"),
        ("MinMemoryRequiredInMb", "MB of memory"),
    )
    return ", ".join(f"{need[name]:g} {words}" for name, words in parts if need.get(name))
