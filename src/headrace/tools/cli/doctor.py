"""`headrace doctor`: check whether this machine can serve, how fast, and what is missing."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

import click

from headrace.tools.cli import doctor_machine, doctor_models
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.doctor_finding import Finding
from headrace.tools.cli.group import EXIT_FAILED
from headrace.tools.cli.progress import watching
from headrace.tools.cli.tables import count_of, wrapped

GROUPS: dict[str, Sequence[Callable[[], Iterator[Finding]]]] = {
    "This machine": doctor_machine.CHECKS,
    "Models and formats": doctor_models.MODEL_CHECKS,
    "Optional parts": doctor_models.PART_CHECKS,
}
_MARK_COLUMNS = 8
_NAME_COLUMNS = 18
"""Columns of the longest name, `0.5 B 16-bit model`, whose line has two spaces after it."""
_MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failed": ("FAIL", "red"), "not installed": ("-", None)}

EXAMPLES = """
headrace doctor          check this machine
headrace doctor -v       show all that it checks
headrace doctor --json   for scripts; exit code 1 if serving cannot work
"""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.option("--verbose", "-v", is_flag=True, help="Show all checks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, /, *, verbose: bool, as_json: bool) -> None:
    """
    Show what this machine can do, which models and formats it runs, and what is missing.

    The exit code is 1 if serving cannot work, and 0 otherwise.
    """
    with watching("doctor", lambda: "measuring this machine"):
        groups = {title: [finding for check in checks for finding in check()] for title, checks in GROUPS.items()}
    findings = [finding for group in groups.values() for finding in group]
    failed = any(finding.status == "failed" for finding in findings)
    if as_json:
        values = [{"group": title, **asdict(finding)} for title, group in groups.items() for finding in group]
        click.echo(json.dumps({"can_serve": not failed, "verdict": verdict(findings), "findings": values}))
    else:
        click.echo(report(groups, verbose=verbose))
    ctx.exit(EXIT_FAILED if failed else 0)


def verdict(findings: Sequence[Finding]) -> str:
    """Return a sentence about what the machine can do, or why it cannot serve."""
    if failed := [f"{finding.name} ({finding.found})" for finding in findings if finding.status == "failed"]:
        return f"This machine cannot serve: {'; '.join(failed)}."
    num_warnings = sum(finding.status == "warning" for finding in findings)
    ending = f" There {'is' if num_warnings == 1 else 'are'} {count_of(num_warnings, 'warning')} below."
    headlines = "; ".join(finding.headline for finding in findings if finding.headline)
    return f"This machine can serve {headlines or 'models'}.{ending if num_warnings else ''}"


def report(groups: Mapping[str, Sequence[Finding]], *, verbose: bool) -> str:
    """Return the verdict and the findings by group; details that are fine only if `verbose`."""
    lines = [wrapped(verdict([finding for group in groups.values() for finding in group]))]
    num_hidden = 0
    for title, group in groups.items():
        shown = [finding for finding in group if verbose or not finding.is_detail or finding.status != "ok"]
        num_hidden += len(group) - len(shown)
        lines += ["", click.style(title, bold=True), *(line for finding in shown for line in _lines(finding))]
    if num_hidden:
        lines += ["", f"{count_of(num_hidden, 'more check', 'more checks')}: headrace doctor -v"]
    return "\n".join(lines)


def _lines(finding: Finding) -> Iterator[str]:
    """Yield a finding, and its advice below it."""
    indent = _MARK_COLUMNS + _NAME_COLUMNS + 2
    mark, colour = _MARKS[finding.status]
    line = wrapped(f"  {mark:<{_MARK_COLUMNS - 2}}{finding.name:<{_NAME_COLUMNS}}  {finding.found}", indent)
    yield click.style(line[:_MARK_COLUMNS], fg=colour) + line[_MARK_COLUMNS:]
    if finding.advice:
        yield wrapped(f"{'':<{indent}}{finding.advice}", indent)
