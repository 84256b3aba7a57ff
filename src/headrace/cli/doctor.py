"""`headrace doctor`: check whether this machine can serve, how fast, and what is missing."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from headrace.cli.checks import run_checks
from headrace.cli.finding import Finding
from headrace.cli.group import EXIT_FAILED, Examples

EXAMPLES = """
headrace doctor          check this machine
headrace doctor --json   for scripts; exit code 1 if serving cannot work
"""

MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failed": ("FAIL", "red")}


@click.command(cls=Examples, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool) -> None:
    """
    Check what this machine can do: CPU and memory bandwidth, backends, models and formats, port, disk.

    The exit code is 1 if serving cannot work, and 0 otherwise.
    """
    findings = run_checks()
    can_serve = all(finding.status != "failed" for finding in findings)
    if as_json:
        click.echo(json.dumps({"can_serve": can_serve, "findings": [asdict(finding) for finding in findings]}))
    else:
        print_findings(findings)
    ctx.exit(0 if can_serve else EXIT_FAILED)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, its advice below it, and a verdict at the end."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, colour = MARKS[finding.status]
        click.echo(f"{click.style(f'{mark:<4}', fg=colour)}  {finding.name:<{width}}  {finding.found}")
        if finding.advice:
            click.echo(f"{'':<{width + 8}}{finding.advice}")
    failed = [finding.name for finding in findings if finding.status == "failed"]
    click.echo(f"\nServing cannot work here: {', '.join(failed)}." if failed else "\nThis machine can serve.")
