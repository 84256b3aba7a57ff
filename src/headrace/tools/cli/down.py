"""`headrace down`: stop the platform of a data folder."""

import os
from pathlib import Path

import click

from headrace.serving.settings.platform_settings import data_folder, load_platform_settings
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.platform_client import data_dir_option


@click.command(cls=HelpfulCommand, examples="headrace down\nheadrace down --data-dir ./platform --timeout-s 300")
@data_dir_option
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=1),
    default=120.0,
    help="Seconds to wait at most.",
)
def down(*, data_dir: Path | None, timeout_s: float) -> None:
    """
    Stop the platform of this data folder in order, and wait until it has ended.

    Running requests may finish, then its workers end, unless it was started with --keep-workers. The records stay: the
    next `headrace up` brings the endpoints back. If systemd or Kubernetes runs the platform, stop it there.
    """
    from headrace.platform.host.folders import DataFolder
    from headrace.tools.cli.detached import stop_platform

    settings = load_platform_settings({"data_dir": data_dir}, os.environ)
    folder = DataFolder(data_folder(settings, os.environ))
    url = stop_platform(folder, timeout_s)
    if url is None:
        click.echo(f"No platform is running on {folder.root}.", err=True)
    else:
        click.echo(f"The platform at {url} has stopped.")
