"""`headrace doctor`: check whether this machine can serve, how fast, and what is missing."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import click

from headrace.tools.cli.checks import run_checks
from headrace.tools.cli.finding import Finding
from headrace.tools.cli.group import EXIT_FAILED, Examples
from headrace.tools.cli.tables import wrapped

EXAMPLES = """
headrace doctor          check this machine
headrace doctor --json   for scripts; exit code 1 if serving cannot work
"""

_MARK_COLUMNS = 6
_NAME_COLUMNS = 22
"""Columns of the longest name, `backend transformers`, and of the space after it."""
MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failed": ("FAIL", "red")}


@click.command(cls=Examples, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool) -> None:
    """
    Check what this machine can do: CPU and memory bandwidth, backends, models and formats, port, disk.

    The exit code is 1 if serving cannot work, and 0 otherwise.
    """
    found = run_checks()
    findings = list(found if as_json else printed(found))
    failed = [finding.name for finding in findings if finding.status == "failed"]
    if as_json:
        click.echo(json.dumps({"can_serve": not failed, "findings": [asdict(finding) for finding in findings]}))
    else:
        click.echo(f"\nServing cannot work here: {', '.join(failed)}." if failed else "\nThis machine can serve.")
    ctx.exit(EXIT_FAILED if failed else 0)


def printed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Print each finding as soon as its check has ended, its advice below it, and yield it."""
    indent = _MARK_COLUMNS + _NAME_COLUMNS
    for finding in findings:
        mark, colour = MARKS[finding.status]
        line = wrapped(f"{mark:<{_MARK_COLUMNS}}{finding.name:<{_NAME_COLUMNS - 2}}  {finding.found}", indent)
        click.echo(click.style(line[:_MARK_COLUMNS], fg=colour) + line[_MARK_COLUMNS:])
        if finding.advice:
            click.echo(wrapped(f"{'':<{indent}}{finding.advice}", indent))
        yield finding
