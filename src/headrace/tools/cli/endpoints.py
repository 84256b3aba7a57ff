"""`headrace ls` and `headrace describe`: show what runs on a platform."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from headrace.tools.cli.components import (
    HEADS,
    component_row,
    component_rows,
    components_of,
    described_component,
    whole_component,
)
from headrace.tools.cli.deployed import notes_of, state_lines
from headrace.tools.cli.failures import cause_first
from headrace.tools.cli.group import Examples, UserFailed
from headrace.tools.cli.platform_client import Platform, find_platform, is_not_found, platform_option, translate_errors
from headrace.tools.cli.tables import age, labelled, table, wrapped


@click.command("ls", cls=Examples, examples="headrace ls\nheadrace ls --json | jq -r '.[].EndpointName'")
@platform_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_endpoints(*, url: str | None, as_json: bool) -> None:
    """
    List endpoints: name, status, workers and age.

    A second table lists inference components: status, current and desired copies, endpoint, variant and age.
    """
    platform = find_platform(url)
    with translate_errors():
        pages = platform.sagemaker.get_paginator("list_endpoints").paginate(SortBy="Name", SortOrder="Ascending")
        names = [entry["EndpointName"] for page in pages for entry in page["Endpoints"]]
        endpoints = [endpoint for name in names if (endpoint := _described(platform, name)) is not None]
        components = components_of(platform)
    if as_json:
        click.echo(json.dumps([_whole(endpoint, components) for endpoint in endpoints], default=str))
    elif not endpoints:
        click.echo("There are no endpoints. `headrace deploy smollm2` creates one.", err=True)
    else:
        click.echo(table([("NAME", "STATUS", "WORKERS", "AGE"), *(_row(endpoint) for endpoint in endpoints)]))
        if components:
            click.echo("\n" + table([HEADS, *(component_row(component) for component in components)]))


@click.command(cls=Examples, examples="headrace describe smollm2\nheadrace describe smollm2 --json")
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
    platform = find_platform(url)
    with translate_errors():
        endpoint = _described(platform, name)
        components = components_of(platform, name) if endpoint is not None else []
        component = described_component(platform, name) if endpoint is None else None
    if component is not None:
        shown = (
            json.dumps(_plain(component), indent=2, default=str) if as_json else labelled(whole_component(component))
        )
        click.echo(shown)
        return
    if endpoint is None:
        raise UserFailed(f"There is no endpoint or inference component called {name}. `headrace ls` lists them.")
    if as_json:
        click.echo(json.dumps(_whole(endpoint, components), indent=2, default=str))
        return
    rows: list[tuple[str, object]] = [
        ("name", endpoint["EndpointName"]),
        ("status", endpoint["EndpointStatus"]),
        *reason_rows(endpoint.get("FailureReason", "")),
        ("config", endpoint.get("EndpointConfigName", "")),
        ("created", f"{endpoint['CreationTime']:%Y-%m-%d %H:%M:%S %Z}"),
        ("arn", endpoint["EndpointArn"]),
    ]
    for variant in endpoint.get("ProductionVariants", ()):
        rows += variant_rows(variant, is_in_service=endpoint["EndpointStatus"] == "InService")
    rows += [row for component in components for row in component_rows(component)]
    click.echo(labelled(rows))
    if notes := notes_of(endpoint):
        click.echo("\nnotes\n" + "\n".join(wrapped(f"  {note}", 2) for note in notes))


def _described(platform: Platform, name: str) -> dict[str, Any] | None:
    from botocore.exceptions import ClientError

    try:
        endpoint: dict[str, Any] = platform.sagemaker.describe_endpoint(EndpointName=name)
    except ClientError as error:
        if is_not_found(error):
            return None
        raise
    return endpoint


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


def variant_rows(variant: Mapping[str, Any], *, is_in_service: bool) -> list[tuple[str, str]]:
    """Return the rows of a variant; each line about its workers is a row without a label."""
    rows = [
        ("variant", variant["VariantName"]),
        (
            f"  {_unit(variant)}",
            f"{variant.get('CurrentInstanceCount', 0)} of {variant.get('DesiredInstanceCount', 0)}",
        ),
        ("  weight", f"{variant.get('CurrentWeight', 1.0):g}"),
    ]
    rows += [("  image", image.get("SpecifiedImage", "")) for image in variant.get("DeployedImages") or ()]
    for state in variant.get("VariantStatus") or ():
        if not is_in_service:  # in service the status only carries the message
            rows.append(("  status", state["Status"]))
        rows += [("" if number else "  where", line) for number, line in enumerate(state_lines(state))]
    return rows


def reason_rows(reason: str) -> list[tuple[str, object]]:
    """Return the rows of a `FailureReason`, the cause first; none if there is none."""
    lines = cause_first(reason).splitlines() if reason else []
    return [("" if number else "reason", line) for number, line in enumerate(lines)]


def _unit(variant: Mapping[str, Any]) -> str:
    """Return the unit of a variant's counts: without a model it hosts components and has no workers itself."""
    return "workers" if variant.get("DeployedImages") or "CurrentServerlessConfig" in variant else "instances"


def _whole(endpoint: Mapping[str, Any], components: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the platform's description of an endpoint with those of its components."""
    own = [_plain(component) for component in components if component["EndpointName"] == endpoint["EndpointName"]]
    return {**_plain(endpoint), "InferenceComponents": own}


def _plain(response: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "ResponseMetadata"}
