"""`headrace simulate`: simulate one or two scaling policies on a trace of requests."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import click

from headrace.core.errors import InvalidRequest
from headrace.platform.autoscaling.simulation.fleet import AtZero, FleetModel
from headrace.platform.autoscaling.simulation.plan import scenario_from_json
from headrace.platform.autoscaling.simulation.simulator import Scenario, SimulationResult, simulate
from headrace.tools.cli.group import Examples
from headrace.tools.cli.simulate_chart import html_page, terminal_chart
from headrace.tools.cli.simulate_files import example_trace, read_trace, result_csv
from headrace.tools.cli.simulate_policy import read_policy
from headrace.tools.cli.tables import table

EXAMPLES = """
headrace simulate --example > day.csv
headrace simulate day.csv --target 4 --min 0 --max 20          target 4 concurrent requests on each copy
headrace simulate day.csv --policy policy.json --html day.html  a policy in the AWS CLI's format, with charts
headrace simulate day.csv --policy a.json --compare b.json     compare two policies
headrace simulate day.csv --target 4 --csv out.csv --json      for programs
"""

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
CONCURRENCY = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"


@click.command("simulate", cls=Examples, examples=EXAMPLES)
@click.argument("trace", required=False, type=EXISTING)
@click.option("--example", is_flag=True, help="Print a synthetic trace of one day and exit.")
@click.option("--policy", type=EXISTING, help="Policy file: JSON in the format of the AWS CLI.")
@click.option(
    "--target", type=click.FloatRange(min=0, min_open=True), help="Track this many concurrent requests per copy."
)
@click.option("--compare", type=EXISTING, help="File of a second policy to run on the same trace.")
@click.option("--min", "minimum", type=click.IntRange(min=0), help="Minimum copies.  [default: the policy's, or 1]")
@click.option("--max", "maximum", type=click.IntRange(min=0), help="Maximum copies.  [default: the policy's, or 10]")
@click.option(
    "--concurrency",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="Requests that a copy runs at the same time.",
)
@click.option(
    "--service-s",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Seconds that one answer takes.",
)
@click.option(
    "--start-s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds until a new copy is ready.",
)
@click.option(
    "--timeout-s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Longest time that a request waits, in seconds.",
)
@click.option(
    "--at-zero",
    default="wake",
    show_default=True,
    type=click.Choice(["wake", "fail", "wait"]),
    help="Handling of requests while there is no copy: wake one and wait for it; fail, as on AWS; wait, as in the "
    "queue of an asynchronous endpoint.",
)
@click.option("--csv", "csv_path", type=FILE, help="Write every 10 s as CSV (of the first policy).")
@click.option("--html", "html_path", type=FILE, help="Write a page with charts; it needs no network.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, by policy if two.")
def simulate_day(
    *, trace: Path | None, example: bool, compare: Path | None, at_zero: AtZero, as_json: bool, **options: Any
) -> None:
    """
    Simulate the requests of TRACE (CSV: time,requests) under a scaling policy; show copies, queue and latency.

    Nothing is started: the fleet is modelled, and the platform's own scaling code decides every 10 s.
    """
    if example:
        click.echo(example_trace(), nl=False)
        return
    if trace is None:
        raise click.UsageError("TRACE is missing. `headrace simulate --example > day.csv` writes one.")
    read = read_trace(trace)
    model = FleetModel(
        concurrency=options["concurrency"],
        service_s=options["service_s"],
        start_s=options["start_s"],
        timeout_s=options["timeout_s"],
        at_zero=at_zero,
    )
    plans = _plans(options, compare, read.start_s)
    runs = [(name, simulate(read.requests, plan, model, start_s=read.start_s)) for name, plan in plans]
    if options["csv_path"]:
        options["csv_path"].write_text(result_csv(runs[0][1]), encoding="utf-8")
    rows = figure_rows(runs)
    if options["html_path"]:
        page = html_page(runs, title=f"Simulation of {trace.name}", rows=rows)
        options["html_path"].write_text(page, encoding="utf-8")
    if as_json:
        by_policy = {name: figures(result) for name, result in runs}
        click.echo(json.dumps(by_policy if compare else figures(runs[0][1])))
        return
    click.echo(terminal_chart(runs, width=shutil.get_terminal_size((100, 24)).columns))
    click.echo(f"\n{table(rows)}")


def _plans(options: dict[str, Any], compare: Path | None, start_s: float) -> list[tuple[str, Scenario]]:
    """Return the policy, and the one to compare it with, by name."""
    path, target = options["policy"], options["target"]
    if (path is None) == (target is None):
        raise click.UsageError("Give either --policy or --target.")
    if path is None:
        tracking = {"TargetValue": target, "PredefinedMetricSpecification": {"PredefinedMetricType": CONCURRENCY}}
        plans = [(f"--target {target:g}", _plan(tracking, "--target", options, start_s))]
    else:
        plans = [(path.stem, _plan(read_policy(path), path, options, start_s))]
    if compare is not None:
        name = compare.stem if compare.stem != plans[0][0] else f"{compare.stem} (2)"
        plans.append((name, _plan(read_policy(compare), compare, options, start_s)))
    return plans


def _plan(document: Any, source: Path | str, options: dict[str, Any], start_s: float) -> Scenario:
    try:
        return scenario_from_json(document, start_s=start_s, minimum=options["minimum"], maximum=options["maximum"])
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidRequest(f"{source}: {exc}") from exc


def figures(result: SimulationResult) -> dict[str, float | int | None]:
    """Return the figures by which policies are compared."""
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


def figure_rows(runs: list[tuple[str, SimulationResult]]) -> list[tuple[str, ...]]:
    """Return the figures as a table with a column for each policy."""
    columns = [figures(result) for _, result in runs]
    rows = [(label, *(_formatted(values[key], form) for values in columns)) for key, label, form in ROWS]
    return [("", *(name for name, _ in runs)), *rows]


def _formatted(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)
