"""`headrace ls` and `headrace describe`, and the texts of all commands about endpoints and inference components."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.platform_client import opened_platform, platform_option, unknown_name
from headrace.tools.cli.tables import age, count_of, labelled, table, wrapped

BUSY = frozenset({"Creating", "Updating", "RollingBack", "SystemUpdating"})
"""States of an endpoint or component that end without the user."""
_NOTE = "Note: "
"""Prefix of the lines of a variant's message that are not part of its state."""
_CAUSE = " Reason: "
_LOG = "\nIts log ("
_LOG_TAIL = " ends with:\n"
_NUM_JOBS = 10
_HEADS = ("COMPONENT", "STATUS", "COPIES", "ENDPOINT", "VARIANT", "AGE")
_FACTS_OF_HOSTED = ("status", "reason", "model", "copies", "needs", "base", "adapter")
"""Facts about a component in the description of its endpoint."""
_NEEDS = (
    ("NumberOfCpuCoresRequired", "CPU core", "CPU cores"),
    ("NumberOfAcceleratorDevicesRequired", "accelerator", "accelerators"),
    ("MinMemoryRequiredInMb", "MB of memory", "MB of memory"),
)


@click.command("ls", cls=HelpfulCommand, examples="headrace ls\nheadrace ls --json | jq -r '.[].EndpointName'")
@platform_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_endpoints(*, url: str | None, as_json: bool) -> None:
    """
    List endpoints: name, status, workers and age.

    A second table lists inference components: status, current and desired copies, endpoint, variant and age; a third
    one the newest batch transform jobs.
    """
    with opened_platform(url) as platform:
        names = [entry["EndpointName"] for entry in platform.listed("list_endpoints", "Endpoints")]
        endpoints = [endpoint for name in names if (endpoint := platform.endpoint(name)) is not None]
        components = platform.components()
        jobs = [] if as_json else platform.sagemaker.list_transform_jobs(MaxResults=_NUM_JOBS)["TransformJobSummaries"]
    if as_json:
        click.echo(json.dumps([_whole(endpoint, components) for endpoint in endpoints], default=str))
    elif not endpoints:
        click.echo("There are no endpoints. `headrace deploy smollm2` creates one.", err=True)
    else:
        click.echo(table([("NAME", "STATUS", "WORKERS", "AGE"), *map(_row, endpoints)]))
        if components:
            click.echo("\n" + table([_HEADS, *map(_component_row, components)]))
    if jobs:
        click.echo("\n" + table([("TRANSFORM JOB", "STATUS", "AGE"), *map(_job_row, jobs)]))


@click.command(cls=HelpfulCommand, examples="headrace describe smollm2\nheadrace describe smollm2 --json")
@click.argument("name")
@platform_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the platform's response as JSON, including the endpoint's components.",
)
def describe(*, name: str, url: str | None, as_json: bool) -> None:
    """Show an endpoint (status and reason, variants, images, inference components) or an inference component."""
    with opened_platform(url) as platform:
        endpoint = platform.endpoint(name)
        components = platform.components(name) if endpoint is not None else []
        component = platform.component(name) if endpoint is None else None
    found = endpoint or component
    if found is None:
        raise unknown_name(name)
    if as_json:
        shown = _plain(found) if endpoint is None else _whole(endpoint, components)
        click.echo(json.dumps(shown, indent=2, default=str))
        return
    click.echo(labelled(_component_rows(found) if endpoint is None else _endpoint_rows(endpoint, components)))
    if notes := notes_of(found):
        click.echo("\nnotes\n" + "\n".join(wrapped(f"  {note}", 2) for note in notes))


def _row(endpoint: Mapping[str, Any]) -> tuple[str, ...]:
    variants = endpoint.get("ProductionVariants") or ()
    current = sum(variant.get("CurrentInstanceCount") or 0 for variant in variants)
    desired = sum(variant.get("DesiredInstanceCount") or 0 for variant in variants)
    is_asleep = endpoint["EndpointStatus"] == "InService" and variants and not (current or desired)
    return (
        endpoint["EndpointName"],
        "InService (asleep)" if is_asleep else endpoint["EndpointStatus"],
        f"{current}/{desired}" + (" instances" if all(_unit(variant) == "instances" for variant in variants) else ""),
        age(endpoint["CreationTime"], datetime.now(UTC)),
    )


def _job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    return job["TransformJobName"], job["TransformJobStatus"], age(job["CreationTime"], datetime.now(UTC))


def _endpoint_rows(endpoint: Mapping[str, Any], components: Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("name", endpoint["EndpointName"]),
        ("status", endpoint["EndpointStatus"]),
        *reason_rows(endpoint.get("FailureReason", "")),
        ("config", endpoint.get("EndpointConfigName", "")),
        ("created", f"{endpoint['CreationTime']:%Y-%m-%d %H:%M:%S %Z}"),
        ("arn", endpoint["EndpointArn"]),
    ]
    is_in_service = endpoint["EndpointStatus"] == "InService"
    for label, group in (("variant", "ProductionVariants"), ("shadow", "ShadowProductionVariants")):
        for variant in endpoint.get(group, ()):
            rows += variant_rows(variant, label, is_in_service=is_in_service)
    for component in components:
        title, *facts = _component_rows(component)
        rows += [title, *((f"  {label}", value) for label, value in facts if label in _FACTS_OF_HOSTED)]
    return rows


def variant_rows(variant: Mapping[str, Any], label: str = "variant", *, is_in_service: bool) -> list[tuple[str, str]]:
    """Return the rows of a variant; each line about its workers is a row without a label."""
    counts = f"{variant.get('CurrentInstanceCount', 0)} of {variant.get('DesiredInstanceCount', 0)}"
    rows = [
        (label, variant["VariantName"]),
        (f"  {_unit(variant)}", counts),
        ("  weight", f"{variant.get('CurrentWeight', 1.0):g}"),
    ]
    rows += [("  image", image.get("SpecifiedImage", "")) for image in variant.get("DeployedImages") or ()]
    for state in variant.get("VariantStatus") or ():
        if not is_in_service:  # in service the status only carries the message
            rows.append(("  status", state["Status"]))
        rows += [("" if number else "  where", line) for number, line in enumerate(_state_lines(state))]
    return rows


def reason_rows(reason: str) -> list[tuple[str, object]]:
    """Return the rows of a `FailureReason`, the cause first; none if there is none."""
    lines = cause_first(reason).splitlines() if reason else []
    return [("" if number else "reason", line) for number, line in enumerate(lines)]


def cause_first(reason: str) -> str:
    """
    Return the cause in a `FailureReason`, which opens with AWS's general sentence.

    The end of the worker's log follows unless it only repeats the cause.
    """
    summary, _, log = reason.partition(_LOG)
    cause = summary.partition(_CAUSE)[2] or summary or "no reason given"
    lines = log.partition(_LOG_TAIL)[2].splitlines()
    if not lines or cause in lines[-1]:
        return cause
    return "\n".join([cause, "Its log ends with:", *(f"  {line}" for line in lines)])


def failure_text(name: str, status: str, reason: str, option: str) -> str:
    """Return what failed and why; if a worker ran, with the command for its log (`option` names the platform)."""
    hint = f"\n`headrace logs {name}{option}` shows the logs of its workers." if _LOG in reason else ""
    return f"{name} is {status}: {cause_first(reason)}{hint}"


def _unit(variant: Mapping[str, Any]) -> str:
    """Return the unit of a variant's counts: without a model it hosts components and has no workers itself."""
    return "workers" if variant.get("DeployedImages") or "CurrentServerlessConfig" in variant else "instances"


def _whole(endpoint: Mapping[str, Any], components: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [_plain(component) for component in components if component["EndpointName"] == endpoint["EndpointName"]]
    return {**_plain(endpoint), "InferenceComponents": own}


def _plain(response: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "ResponseMetadata"}


def stage_of(description: Mapping[str, Any]) -> str:
    """Return a one-line summary: the status of the endpoint and of its variants, without notes."""
    is_in_service = description["EndpointStatus"] == "InService"
    parts = [str(description["EndpointStatus"])]
    for variant in description.get("ProductionVariants") or ():
        for state in variant.get("VariantStatus") or ():
            lines = [line.rstrip(".") for line in _state_lines(state)]
            parts += lines or ([] if is_in_service else [str(state["Status"])])
        desired, current = variant.get("DesiredInstanceCount"), variant.get("CurrentInstanceCount")
        if desired is not None and current is not None:
            parts.append(f"{current} of {desired} ready")
    return ", ".join(part for part in dict.fromkeys(parts) if part)


def _state_lines(state: Mapping[str, Any]) -> list[str]:
    """Return the lines of a variant's message that say where its workers run, or why they wait."""
    return [line for line in _message(state) if not line.startswith(_NOTE)]


def notes_of(description: Mapping[str, Any]) -> list[str]:
    """Return the notes in the messages of an endpoint's variants, each once."""
    variants = description.get("ProductionVariants") or ()
    messages = (_message(state) for variant in variants for state in variant.get("VariantStatus") or ())
    notes = (line.removeprefix(_NOTE) for lines in messages for line in lines if line.startswith(_NOTE))
    return list(dict.fromkeys(notes))


def _message(state: Mapping[str, Any]) -> list[str]:
    return str(state.get("StatusMessage") or "").splitlines()


def _component_row(component: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        component["InferenceComponentName"],
        component["InferenceComponentStatus"],
        f"on {base}" if (base := base_name(component)) else "{}/{}".format(*copies_of(component)),
        component["EndpointName"],
        component["VariantName"],
        age(component["CreationTime"], datetime.now(UTC)),
    )


def _component_rows(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of `headrace describe COMPONENT`."""
    specification = _specification(component)
    container = specification.get("Container") or {}
    current, desired = copies_of(component)
    placed = (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()
    types = ", ".join(status["InstanceType"] for status in placed if status.get("CurrentCopyCount"))
    own = [
        ("model", specification.get("ModelName") or (container.get("DeployedImage") or {}).get("SpecifiedImage", "")),
        ("copies", f"{current} of {desired}" + (f", on {types}" if types else "")),
        ("needs", needs_text(specification.get("ComputeResourceRequirements") or {})),
        ("placement", (specification.get("SchedulingConfig") or {}).get("PlacementStrategy", "SPREAD")),
    ]
    if base := base_name(component):
        own = [("base", base), ("adapter", container.get("ArtifactUrl", ""))]
    return [
        ("component", component["InferenceComponentName"]),
        ("status", component["InferenceComponentStatus"]),
        ("reason", component.get("FailureReason", "")),
        ("endpoint", component["EndpointName"]),
        ("variant", component["VariantName"]),
        *own,
        ("created", f"{component['CreationTime']:%Y-%m-%d %H:%M:%S %Z}"),
        ("arn", component["InferenceComponentArn"]),
    ]


def base_name(component: Mapping[str, Any]) -> str:
    """Return the base of an adapter component; empty for any other component."""
    return str(_specification(component).get("BaseInferenceComponentName") or "")


def copies_of(component: Mapping[str, Any]) -> tuple[int, int]:
    config = component.get("RuntimeConfig") or {}
    return config.get("CurrentCopyCount", 0), config.get("DesiredCopyCount", 0)


def _specification(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the deployed specification: of several, the one for the instance type that hosts the copies."""
    specifications = component.get("Specifications") or []
    placed = {status["InstanceType"] for status in (component.get("RuntimeConfig") or {}).get("PlacementStatus") or ()}
    fitting = [specification for specification in specifications if specification.get("InstanceType") in placed]
    found: Mapping[str, Any] = component.get("Specification") or next(iter(fitting or specifications), {})
    return found


def needs_text(need: Mapping[str, float]) -> str:
    return ", ".join(count_of(need[name], noun, plural) for name, noun, plural in _NEEDS if need.get(name))
