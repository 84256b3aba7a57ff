"""`headrace env`: lines that point a shell at a platform."""

import os
import sys

import click

from headrace.cli.group import Examples, UserFailed
from headrace.cli.platform_client import find_platform, platform_option
from headrace.settings.platform_settings import data_folder, load_platform_settings

EXAMPLES = """
eval "$(headrace env)"                       this shell's AWS code talks to the platform
eval "$(headrace env --unset)"               and not any more
eval "$(headrace env --key AKIA...)"         as somebody with a key, where keys are wanted
headrace env --format dotenv >> $GITHUB_ENV  for what does not read shell
"""


@click.command(cls=Examples, examples=EXAMPLES)
@platform_option
@click.option("--unset", "is_unset", is_flag=True, help="Take everything back.")
@click.option("--key", metavar="ID", help="Access key to use; its secret is read from the data folder.")
@click.option("--region", help="Region to set.  [default: that of the platform]")
@click.option("--format", "form", type=click.Choice(["sh", "dotenv"]), default="sh", help="Form of the lines.")
def env(*, url: str | None, is_unset: bool, key: str | None, region: str | None, form: str) -> None:
    """
    Print the lines that point this shell at the platform; `eval` runs them.

    They set the endpoint, the region and credentials, have the SageMaker SDKs ask the platform for their identity
    (they would ask AWS), opt out of the SDKs' telemetry, and clear what would lead elsewhere. Only this shell and what
    is started from it is affected.
    """
    from headrace.platform.environment import Target, dotenv_lines, outside, shell_lines, undo_lines

    if is_unset:
        lines = undo_lines(os.environ)
    else:
        outer = outside(os.environ)
        platform = find_platform(url, outer)
        health = platform.health()
        credentials = _credentials(key, asks_for_keys=bool(health.get("asks_for_keys")), outer=outer)
        target = Target(url=platform.url, region=region or str(health["region"]), **credentials)
        lines = (shell_lines if form == "sh" else dotenv_lines)(target, os.environ)
    if lines:
        click.echo("\n".join(lines))
    if sys.stdout.isatty() and not is_unset:
        click.echo('# To have these lines run: eval "$(headrace env)"', err=True)


def _credentials(key: str | None, *, asks_for_keys: bool, outer: dict[str, str]) -> dict[str, str]:
    """Those of a named key; else those that the shell has, or the first key, where keys are wanted; else any."""
    if key is None and not asks_for_keys:
        return {}
    if key is None and outer.get("AWS_ACCESS_KEY_ID") and outer.get("AWS_SECRET_ACCESS_KEY"):
        return {"access_key": outer["AWS_ACCESS_KEY_ID"], "secret_key": outer["AWS_SECRET_ACCESS_KEY"]}
    from headrace.cli.keys import opened_keys

    settings = load_platform_settings({}, os.environ)
    with opened_keys(settings, data_folder(settings, os.environ)) as keys:
        known = {one.key_id: one.secret for one in keys.list()}
    if key is None and known:
        key = next(iter(known))
    if key is None or key not in known:
        shown = f"There is no access key {key}" if key else "The platform asks for access keys, and there is none"
        raise UserFailed(
            f"{shown} in the data folder. `headrace keys ls` lists them, `headrace keys create` makes one."
        )
    return {"access_key": key, "secret_key": known[key]}
