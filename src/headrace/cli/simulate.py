"""`headrace simulate`: try a scaling policy on a day of requests before paying for it."""

import json
import shutil
from pathlib import Path
from typing import Any

import click

from headrace.cli.group import Examples
from headrace.cli.simulate_chart import html_page, terminal_chart
from headrace.cli.simulate_files import example_trace, read_trace, result_csv
from headrace.core.errors import InvalidRequest
from headrace.scaling.simulated_plan import plan_from_json
from headrace.scaling.simulation import FleetModel, Plan, Result, simulate

EXAMPLES = """
headrace simulate --example > day.csv
headrace simulate day.csv --target 4 --min 0 --max 20          4 requests at once on each copy
headrace simulate day.csv --policy policy.json --html day.html a policy as AWS's CLI takes it, and a picture
headrace simulate day.csv --target 4 --csv out.csv --json      for programs
"""

FILE = click.Path(dir_okay=False, path_type=Path)
CONCURRENCY = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"


@click.command("simulate", cls=Examples, examples=EXAMPLES)
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--example", is_flag=True, help="Print a made-up day of requests to start from, and end.")
@click.option("--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Policies, JSON.")
@click.option("--target", type=click.FloatRange(min=0, min_open=True), help="Track so many requests at once per copy.")
@click.option("--min", "minimum", type=click.IntRange(min=0), help="Fewest copies.  [default: the policy's, or 1]")
@click.option("--max", "maximum", type=click.IntRange(min=0), help="Most copies.  [default: the policy's, or 10]")
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(min=1), help="Requests a copy takes.")
@click.option("--service-s", default=2.0, show_default=True, type=click.FloatRange(min=0.001), help="Of one answer.")
@click.option("--start-s", default=30.0, show_default=True, type=click.FloatRange(min=0), help="Until a copy serves.")
@click.option("--timeout-s", default=60.0, show_default=True, type=click.FloatRange(min=0.1), help="Longest wait.")
@click.option("--strict", is_flag=True, help="As AWS: requests that find no copy fail, and wake none.")
@click.option("--csv", "csv_path", type=FILE, help="Write every 10 s as CSV.")
@click.option("--html", "html_path", type=FILE, help="Write a page with charts; it needs no network.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def simulate_day(*, trace: Path | None, example: bool, strict: bool, as_json: bool, **options: Any) -> None:
    """Run the requests of TRACE (CSV: time,requests) under a scaling policy; show copies, queue and latency."""
    if example:
        click.echo(example_trace(), nl=False)
        return
    if trace is None:
        raise click.UsageError("TRACE is missing. `headrace simulate --example > day.csv` makes one.")
    read = read_trace(trace)
    plan = _plan(options, read.start_s)
    model = FleetModel(
        concurrency=options["concurrency"],
        service_s=options["service_s"],
        start_s=options["start_s"],
        timeout_s=options["timeout_s"],
        wakes=not strict,
    )
    result = simulate(read.requests, plan, model, start_s=read.start_s)
    if options["csv_path"]:
        options["csv_path"].write_text(result_csv(result), encoding="utf-8")
    if options["html_path"]:
        page = html_page(result, title=f"Simulation of {trace.name}", summary=summary_text(result))
        options["html_path"].write_text(page, encoding="utf-8")
    if as_json:
        click.echo(json.dumps(summary(result)))
        return
    click.echo(terminal_chart(result, width=shutil.get_terminal_size((100, 24)).columns))
    click.echo(summary_text(result))


def _plan(options: dict[str, Any], start_s: float) -> Plan:
    path, target = options["policy"], options["target"]
    if (path is None) == (target is None):
        raise click.UsageError("Wanted: either --policy or --target.")
    document: Any = {
        "TargetValue": target,
        "PredefinedMetricSpecification": {"PredefinedMetricType": CONCURRENCY},
    }
    try:
        if path is not None:
            document = json.loads(path.read_text(encoding="utf-8"))
        return plan_from_json(document, start_s=start_s, minimum=options["minimum"], maximum=options["maximum"])
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidRequest(f"{path or '--target'}: {exc}") from exc


def summary(result: Result) -> dict[str, float | int | None]:
    """The figures that policies are compared by."""
    shares = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
    latencies = {name: result.latency_s(share) if result.latencies else None for name, share in shares.items()}
    return {
        "hours": len(result.ticks) / 360,
        "requests": result.requests,
        "lost": result.lost,
        "copy_hours": result.copy_hours,
        "most_copies": max(tick.serving for tick in result.ticks),
        "longest_queue": max(tick.queue for tick in result.ticks),
        "activities": len(result.activities),
        **latencies,
    }


def summary_text(result: Result) -> str:
    """The same in words."""
    found = summary(result)
    latencies = "/".join("-" if found[k] is None else f"{found[k]:.1f}" for k in found if k.startswith("latency"))
    return (
        f"{found['hours']:.1f} h, {found['requests']:,.0f} requests, {found['lost']:,.0f} lost; "
        f"{found['copy_hours']:.1f} copy-hours, at most {found['most_copies']} copies; {found['activities']} scalings; "
        f"latency p50/p95/p99 {latencies} s; longest queue {found['longest_queue']:,.0f}."
    )
