"""`headrace up`: run a local SageMaker."""

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.group import Examples
from headrace.cli.setting_options import platform_options
from headrace.settings.platform_settings import load_platform_settings

if TYPE_CHECKING:
    from headrace.platform.life import Started

EXAMPLES = """
headrace up                                    run on http://127.0.0.1:7450 until Ctrl-C
eval "$(headrace env)"                         in another shell: point boto3 and the SageMaker SDK at it
headrace deploy smollm2                        deploy a model as an endpoint
headrace keys create                           create an access key, then
headrace up --host 0.0.0.0                     accept requests of others who have a key
headrace up --s3-endpoint http://minio:9000    use another S3 server
"""


@click.command(cls=Examples, examples=EXAMPLES)
@platform_options()
def up(**overrides: Any) -> None:
    """
    Run a local SageMaker: boto3, the SageMaker SDK and the AWS CLI work against it unchanged.

    One port speaks sagemaker, sagemaker-runtime, application-autoscaling, cloudwatch, logs, sts, iam, s3 and OpenAI;
    models run as processes on this machine. Records and objects are kept in the data folder. Ctrl-C stops the platform
    and its workers; the next start brings the endpoints back.
    """
    settings = load_platform_settings(overrides, os.environ)
    from headrace.platform.life import run_platform

    sys.exit(run_platform(settings, on_ready=print_panel))


def print_panel(started: "Started") -> None:
    """Print the message to a terminal; logs have a line about it already."""
    if sys.stderr.isatty():
        click.echo(panel_text(started), err=True)


def panel_text(started: "Started") -> str:
    """Return the start message: addresses and commands to copy."""
    from headrace.settings.platform_settings import DEFAULT_PORT

    url = started.url
    more = "" if url.endswith(f":{DEFAULT_PORT}") else f" --url {url}"
    rows = [
        ("platform", url),
        ("console", f"{url}/console"),
        ("OpenAI", f"{url}/v1"),
        ("objects", started.storage.state),
        ("data", str(started.folder.root)),
        ("keys", "any" if started.settings.is_open else "required: `headrace keys ls`"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    table = "\n".join(f"  {name:<{width}}{value}" for name, value in rows)
    return f"""
{table}

  In another shell:

  eval "$(headrace env{more})"        boto3, the SageMaker SDK and the AWS CLI talk to this platform
  headrace deploy smollm2{more}
  headrace invoke smollm2 --stream "Why is the sky blue?"{more}

  Ctrl-C stops the platform{" and leaves its workers" if started.settings.keep_workers else " and its workers"}.
"""
