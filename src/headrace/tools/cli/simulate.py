"""`headrace simulate`: simulate one or two scaling policies, whose files are checked as AWS would, on a trace."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import InvalidRequest
from headrace.platform.autoscaling.simulation.fleet import FleetModel
from headrace.platform.autoscaling.simulation.plan import scenario_from_json
from headrace.platform.autoscaling.simulation.simulator import Scenario, SimulationResult, simulate
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import ABOVE_0, AT_LEAST_0, AT_LEAST_1
from headrace.tools.cli.simulate_files import example_trace, html_page, read_trace, result_csv, terminal_chart
from headrace.tools.cli.tables import table

EXAMPLES = """
headrace simulate --example > day.csv                  write a trace to try
headrace simulate day.csv --target 4 --min 0 --max 20  4 requests on each copy
headrace simulate day.csv --policy a.json --html day.html   draw charts
headrace simulate day.csv --policy a.json --compare b.json  compare policies
headrace simulate day.csv --target 4 --csv out.csv --json   for programs
"""

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
CONCURRENCY = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
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
ROWS = (
    ("hours", "hours", ".1f"),
    ("requests", "requests", ",.0f"),
    ("lost", "lost (no copy, or waited too long)", ",.0f"),
    ("held", "held until a copy was ready", ",.0f"),
    ("longest_hold_s", "longest hold, s", ".1f"),
    ("woken", "times woken", ",.0f"),
    ("copy_hours", "copy-hours (the cost)", ",.1f"),
    ("most_copies", "most copies", ",.0f"),
    ("activities", "scalings", ",.0f"),
    ("latency_p50_s", "latency p50, s", ".1f"),
    ("latency_p95_s", "latency p95, s", ".1f"),
    ("latency_p99_s", "latency p99, s", ".1f"),
    ("longest_queue", "longest queue", ",.0f"),
)
"""Name, label and number format of each figure."""


@click.command("simulate", cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("trace", required=False, type=EXISTING)
@click.option("--example", is_flag=True, help="Print a synthetic trace of one day and exit.")
@click.option("--policy", type=EXISTING, help="Policy file: JSON in the format of the AWS CLI.")
@click.option("--target", type=ABOVE_0, help="Track this many concurrent requests per copy.")
@click.option("--compare", type=EXISTING, help="File of a second policy to run on the same trace.")
@click.option("--min", "minimum", type=AT_LEAST_0, help="Minimum copies.  [default: the policy's, or 1]")
@click.option("--max", "maximum", type=AT_LEAST_0, help="Maximum copies.  [default: the policy's, or 10]")
@click.option(
    "--copy-concurrency", "concurrency", default=8, type=AT_LEAST_1, help="Requests that a copy runs at the same time."
)
@click.option("--service-s", default=2.0, type=click.FloatRange(min=0.001), help="Seconds that one answer takes.")
@click.option("--start-s", default=30.0, type=click.FloatRange(min=0), help="Seconds until a new copy is ready.")
@click.option(
    "--timeout-s", default=60.0, type=click.FloatRange(min=0.1), help="Longest time that a request waits, in seconds."
)
@click.option(
    "--at-zero",
    default="wake",
    type=click.Choice(["wake", "fail", "wait"]),
    help="Handling of requests while there is no copy: wake one and wait for it; fail, as on AWS; wait, as in the "
    "queue of an asynchronous endpoint.",
)
@click.option("--csv", "csv_path", type=FILE, help="Write every 10 s as CSV (of the first policy).")
@click.option("--html", "html_path", type=FILE, help="Write a page with charts; it needs no network.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, by policy if two.")
def simulate_day(  # noqa: PLR0913 -- its options
    *,
    trace: Path | None,
    example: bool,
    policy: Path | None,
    target: float | None,
    compare: Path | None,
    minimum: int | None,
    maximum: int | None,
    csv_path: Path | None,
    html_path: Path | None,
    as_json: bool,
    **fleet: Any,
) -> None:
    """
    Simulate the requests of TRACE (CSV: time,requests) under a scaling policy; show copies, queue and latency.

    It starts nothing: it models the fleet, and the platform's own scaling code decides every 10 s.
    """
    if example:
        click.echo(example_trace(), nl=False)
        return
    if trace is None:
        raise click.UsageError("TRACE is missing. `headrace simulate --example > day.csv` writes one.")
    read = read_trace(trace)
    if (policy is None) == (target is None):
        raise click.UsageError("Give either --policy or --target.")
    bounds = {"start_s": read.start_s, "minimum": minimum, "maximum": maximum}
    if policy is not None:
        plans = [(policy.stem, _plan(read_policy(policy), policy, bounds))]
    else:
        tracking = {"TargetValue": target, "PredefinedMetricSpecification": {"PredefinedMetricType": CONCURRENCY}}
        plans = [(f"--target {target:g}", _plan(tracking, "--target", bounds))]
    if compare is not None:
        name = compare.stem if compare.stem != plans[0][0] else f"{compare.stem} (2)"
        plans.append((name, _plan(read_policy(compare), compare, bounds)))
    model = FleetModel(**fleet)
    runs = [(name, simulate(read.requests, plan, model, start_s=read.start_s)) for name, plan in plans]
    if csv_path:
        csv_path.write_text(result_csv(runs[0][1]), encoding="utf-8")
    rows = figure_rows(runs)
    if html_path:
        html_path.write_text(html_page(runs, title=f"Simulation of {trace.name}", rows=rows), encoding="utf-8")
    if as_json:
        by_policy = {name: figures(result) for name, result in runs}
        click.echo(json.dumps(by_policy if compare else figures(runs[0][1])))
        return
    click.echo(terminal_chart(runs, width=shutil.get_terminal_size((100, 24)).columns))
    click.echo(f"\n{table(rows)}")


def _plan(document: Any, source: Path | str, bounds: Mapping[str, Any]) -> Scenario:
    try:
        return scenario_from_json(document, **bounds)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidRequest(f"{source}: {exc}") from exc


def figures(result: SimulationResult) -> dict[str, float | int | None]:
    shares = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
    latencies = {name: result.latency_s(share) if result.latencies else None for name, share in shares.items()}
    return {
        "hours": len(result.ticks) / 360,
        "requests": result.requests,
        "lost": result.lost,
        "held": result.held,
        "woken": result.num_woken,
        "longest_hold_s": result.longest_hold_s,
        "copy_hours": result.copy_hours,
        "most_copies": max(tick.serving for tick in result.ticks),
        "longest_queue": max(tick.queue for tick in result.ticks),
        "activities": len(result.activities),
        **latencies,
    }


def figure_rows(runs: list[tuple[str, SimulationResult]]) -> list[tuple[str, ...]]:
    columns = [figures(result) for _, result in runs]
    rows = [(label, *(_formatted(values[key], form) for values in columns)) for key, label, form in ROWS]
    return [("", *(name for name, _ in runs)), *rows]


def _formatted(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


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
    from botocore.validate import ParamValidator

    from headrace.serving.wire.aws import services

    for where, service, operation, request in _requests(document, path):
        report = ParamValidator().validate(request, services.operation(service, operation).input_shape)
        if report.has_errors():
            raise InvalidRequest(f"{where}: {' '.join(report.generate_report().split())}")
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
