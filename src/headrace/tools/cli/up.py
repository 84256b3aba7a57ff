"""`headrace up`: run a local SageMaker."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.serving.settings.platform_settings import PlatformSettings, data_folder, load_platform_settings
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.setting_options import groups_of, platform_options

if TYPE_CHECKING:
    from headrace.platform.host.folders import DataFolder
    from headrace.platform.host.life import Started

EXAMPLES = """
headrace up                        on http://127.0.0.1:7450, until Ctrl-C
headrace up --detach               in the background; `headrace down` stops it
eval "$(headrace env)"             point boto3 in this shell at it
headrace deploy smollm2            deploy a model as an endpoint
headrace up --open                 accept local requests without a key
headrace keys create               create a key for other machines, then
headrace up --host 0.0.0.0         accept their requests
headrace up --s3-endpoint http://minio:9000   use another S3 server
"""
_COMMON = (
    *("detach", "host", "port", "open", "data_dir", "s3_endpoint", "region", "strict"),
    *("cluster", "containers", "processes"),
)


@click.command(
    cls=HelpfulCommand,
    examples=EXAMPLES,
    groups={"Start": ("detach", "takeover"), **groups_of(PlatformSettings)},
    common=_COMMON,
)
@platform_options()
@click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="Run in the background until `headrace down`; the log is in the data folder.",
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Replace the platform that runs on the data folder, as after an upgrade, without a refused connection.",
)
def up(*, detach: bool, takeover: bool, **overrides: Any) -> None:
    """
    Run a local SageMaker: boto3, the SageMaker SDK and the AWS CLI work with it unchanged.

    One port speaks sagemaker, sagemaker-runtime, application-autoscaling, cloudwatch, logs, cloudformation, iam, sts,
    sns, ecr, s3, ssm (for the CDK) and OpenAI. Models run as processes on this machine. The data folder keeps records,
    objects and the access key that the first start generates, which `headrace env` and your other commands read there.
    Ctrl-C stops the platform and its workers; the next start brings the endpoints back.

    Each option but --detach and --takeover is also a variable: --port is HEADRACE_UP_PORT.
    """
    settings = load_platform_settings(overrides, os.environ)
    if detach and takeover:
        raise click.UsageError("--detach and --takeover exclude each other: start the new platform under a supervisor.")
    if not detach:
        from headrace.platform.host.start import run_platform

        sys.exit(run_platform(settings, is_takeover=takeover, on_ready=print_panel))
    from headrace.platform.host.folders import DataFolder
    from headrace.tools.cli.detached import start_detached
    from headrace.tools.cli.platform_client import NotTrusted

    folder = DataFolder(data_folder(settings, os.environ))
    platform = start_detached(folder, overrides, os.environ)
    stop = f"headrace down{folder_option(folder)}"
    try:
        storage = str(platform.health()["object_storage"])
    except NotTrusted as error:
        storage = "not known"
        click.echo(f"Note: {error.message}", err=True)
    click.echo(panel_text(platform.url, settings, folder, storage, log=folder.log, ending=f"`{stop}` stops"))


def folder_option(folder: "DataFolder") -> str:
    """Return the option by which commands find a platform whose data folder is not the default one."""
    is_default = folder.root == data_folder(load_platform_settings({}, os.environ), os.environ)
    return "" if is_default else f" --data-dir {shlex.quote(str(folder.root))}"


def print_panel(started: "Started") -> None:
    if sys.stderr.isatty():
        settings, storage = started.settings, started.storage.state
        click.echo(panel_text(started.url, settings, started.folder, storage, ending="Ctrl-C stops"), err=True)


def panel_text(
    url: str, settings: PlatformSettings, folder: "DataFolder", storage: str, *, ending: str, log: Path | None = None
) -> str:
    """Return the start message: addresses, commands to copy, and how the platform is stopped."""
    from headrace.platform.host.folders import console_url, read_local_key
    from headrace.tools.cli.ready import QUESTION

    option = folder_option(folder)
    key = None if settings.open else read_local_key(folder)
    rows = [
        ("platform", url),
        *([("machine", f"{settings.advertise}, for the other machines")] if settings.is_spread else []),
        ("console", console_url(url, key)),
        ("OpenAI", f"{url}/v1"),
        ("Anthropic", f"ANTHROPIC_BASE_URL={url}"),
        ("objects", storage),
        ("data", str(folder.root)),
        *([("log", str(log))] if log is not None else []),
        ("keys", "not required" if settings.open else f"required: `headrace keys ls{option}`"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    table = "\n".join(f"  {name:<{width}}{value}" for name, value in rows)
    where = "In another shell" if log is None else "Next"
    return f"""
{table}

  {where}:

  eval "$(headrace env{option})"
  headrace deploy smollm2
  headrace invoke smollm2 --stream "{QUESTION}"

  The first line points boto3, the SageMaker SDK, the AWS CLI and `headrace`
  in that shell at this platform.

  {ending} the platform{" and leaves its workers" if settings.keep_workers else " and its workers"}.
"""
