"""`headrace env`: print the variables that point a shell at a platform."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from headrace.serving.settings.platform_settings import data_folder, load_platform_settings
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.platform_client import Platform, data_dir_option, find_platform, platform_at, platform_option

EXAMPLES = """
eval "$(headrace env)"                       AWS code here uses the platform
eval "$(headrace env --unset)"               undo it
eval "$(headrace env --data-dir ./data)"     the platform of this data folder
eval "$(headrace env --key HRAK...)"         use another access key
headrace env --format dotenv >> $GITHUB_ENV  for files of KEY=VALUE lines
"""
_FIRST = {1: (1, 29), 2: (2, 13)}
"""The first versions that read the variable. Source: AWS SDKs reference guide, "Service-specific endpoints"."""
_INSTALLED = re.compile(r"/aws-cli/v2/(\d+)\.(\d+)[^/]*/")
_PACKAGE = re.compile(r"awscli-(\d+)\.(\d+)[^/]*\.(?:dist|egg)-info")


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@platform_option
@click.option("--unset", "is_unset", is_flag=True, help="Print the lines that undo it.")
@click.option("--key", metavar="ID", help="Id of the access key to use; its secret is read from the data folder.")
@click.option("--region", metavar="REGION", help="Region to set.  [default: the platform's]")
@click.option("--format", "form", type=click.Choice(["sh", "dotenv"]), default="sh", help="Format of the lines.")
@data_dir_option
def env(
    *, url: str | None, is_unset: bool, key: str | None, region: str | None, form: str, data_dir: Path | None
) -> None:
    """
    Print shell lines that point AWS clients at the platform; run them with `eval`.

    They set the endpoint, region and credentials, make the SageMaker SDKs ask the platform instead of AWS for their
    identity, opt out of the SDKs' telemetry, and unset variables that would override the endpoint. OpenAI's clients use
    the platform too, unless OPENAI_API_KEY is set already. Only this shell and programs started from it are affected.
    """
    from headrace.platform.host.environment import Target, dotenv_lines, original_environment, shell_lines, undo_lines

    if is_unset:
        lines = undo_lines(os.environ)
    else:
        outer = original_environment(os.environ)
        platform = find_platform(url, outer) if data_dir is None else _platform_of(data_dir, outer)
        health = platform.health()
        credentials = _credentials(key, data_dir, platform) if key or health.get("asks_for_keys") else {}
        chosen = region or str(health["region"])
        target = Target(url=platform.url, region=chosen, ca_bundle=platform.ca_bundle, **credentials)
        lines = (shell_lines if form == "sh" else dotenv_lines)(target, os.environ)
        if (version := too_old()) is not None:
            click.echo(
                f"# Warning: AWS CLI {version} ignores AWS_ENDPOINT_URL and would call AWS. "
                f"Add `--endpoint-url {platform.url}` to each command, or install 2.13 or later.",
                err=True,
            )
    if lines:
        click.echo("\n".join(lines))
    if sys.stdout.isatty() and not is_unset:
        given = {"--url": url, "--key": key, "--region": region, "--data-dir": data_dir}
        options = "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
        click.echo(f'# To run these lines: eval "$(headrace env{options})"', err=True)


def _platform_of(data_dir: Path, env: dict[str, str]) -> Platform:
    """Return the platform that runs on a data folder; raises `UserFailed` if there is none."""
    from headrace.platform.host.folders import DataFolder

    folder = DataFolder(data_folder(load_platform_settings({"data_dir": data_dir}, os.environ), os.environ))
    address = folder.running_address()
    if address is None:
        start = f"headrace up --data-dir {shlex.quote(str(data_dir))}"
        raise UserFailed(f"No platform is running on {folder.root}. `{start}` starts one.")
    return platform_at(address, folder, env)


def _credentials(key: str | None, data_dir: Path | None, platform: Platform) -> dict[str, str]:
    """Return the named key; else the credentials that all commands use for the platform, else its first key."""
    if key is None and platform.has_credentials:
        return {"access_key": platform.access_key, "secret_key": platform.secret_key}
    from headrace.tools.cli.store import opened_keys

    with opened_keys(data_dir) as keys:
        known = {access_key.key_id: access_key.secret for access_key in keys.list()}
    if key is None and known:
        key = next(iter(known))
    if key is None or key not in known:
        problem = f"There is no access key {key}" if key else "The platform requires access keys, and there is none"
        raise UserFailed(
            f"{problem} in the data folder. `headrace keys ls` lists them, `headrace keys create` creates one."
        )
    return {"access_key": key, "secret_key": known[key]}


def too_old(path: str | None = None) -> str | None:
    """
    Return the version of an AWS CLI that ignores `AWS_ENDPOINT_URL`; None if there is none or its version is unknown.

    The version is read from files, because `aws --version` takes a second.
    """
    program = shutil.which("aws", path=path)
    found = None if program is None else next(_versions(Path(program)), None)
    if found is None or found >= _FIRST.get(found[0], found):
        return None
    return ".".join(map(str, found))


def _versions(program: Path) -> Iterator[tuple[int, int]]:
    """Yield the versions in the paths of a program: of AWS's installer, and of packages for its Python."""
    resolved = program.resolve()
    if match := _INSTALLED.search(str(resolved)):
        yield int(match[1]), int(match[2])
    for library in (resolved.parent.parent / "lib").glob("python3*"):
        for packages in ("site-packages", "dist-packages"):
            for entry in (library / packages).glob("awscli-*-info"):
                if match := _PACKAGE.fullmatch(entry.name):
                    yield int(match[1]), int(match[2])
