"""`headrace deploy`: a model, an endpoint configuration and an endpoint with one command, as any client makes them."""

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from headrace.cli.group import Examples, Failed, UserFailed
from headrace.cli.platform_client import Platform, find_platform, platform_option, told

DEFAULT_IMAGE = (
    "763104351884.dkr.ecr.{region}.amazonaws.com/huggingface-pytorch-tgi-inference:"
    "2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
"""Text Generation Inference: what `get_huggingface_llm_image_uri("huggingface")` of the SageMaker SDK returns."""
TAG = "headrace:made-by"
"""On what one command made, so that `headrace rm` may remove all of it."""
_POLL_S = 0.3
_MAX_NAME = 63
_BUSY = frozenset({"Creating", "Updating", "RollingBack", "SystemUpdating"})

EXAMPLES = """
headrace deploy smollm2                                    an endpoint called smollm2
headrace deploy ./my-llama --name chat --instances 2       a folder, two workers
headrace deploy smollm2 --env MAX_TOTAL_TOKENS=1024        settings, as the container's environment
headrace deploy s3://bucket/model.tar.gz --image djl-inference:0.36.0-lmi27.0.0-cu130
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model")
@platform_option
@click.option("--name", help="Name of the endpoint.  [default: made from the model's]")
@click.option("--instances", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of workers.")
@click.option("--instance-type", default="ml.c6i.xlarge", show_default=True, help="What each worker asks for.")
@click.option("--image", help="Image URI: which model server is imitated.  [default: TGI 3]")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="Of the container; repeatable.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the endpoint is in service.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1), default=1800.0, help="Longest wait, seconds.")
def deploy(  # noqa: PLR0913 -- its options
    *,
    model: str,
    url: str | None,
    name: str | None,
    instances: int,
    instance_type: str,
    image: str | None,
    variables: tuple[str, ...],
    wait: bool,
    timeout_s: float,
) -> None:
    """
    Deploy MODEL (an alias such as smollm2, a Hub id, a folder, a .gguf file, or s3://) as an endpoint.

    It makes a model, an endpoint configuration and an endpoint of one name, as SageMaker's clients do, and waits until
    the endpoint is in service. `headrace rm` removes all three.
    """
    platform = find_platform(url)
    endpoint = name or endpoint_name(model)
    container = container_of(model, _environment(variables), image or DEFAULT_IMAGE.format(region=platform.region))
    with told():
        _create(platform, endpoint, container, instances=instances, instance_type=instance_type)
        if not wait:
            click.echo(f"{endpoint} is being created. `headrace describe {endpoint}` tells how far it is.")
            return
        started_s = time.monotonic()
        _wait(platform, endpoint, timeout_s)
    click.echo(_ready_text(platform, endpoint, time.monotonic() - started_s))


def endpoint_name(model: str) -> str:
    """A name that AWS allows, made from the last part of the model's."""
    last = model.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"\.(gguf|tar\.gz|tgz)$", "", last)
    return re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:_MAX_NAME].rstrip("-") or "model"


def container_of(model: str, environment: Mapping[str, str], image: str) -> dict[str, Any]:
    """`PrimaryContainer` of `CreateModel`: an archive or prefix in S3, else the model's name in HF_MODEL_ID."""
    container: dict[str, Any] = {"Image": image}
    if model.startswith("s3://"):
        if model.endswith((".tar.gz", ".tgz")):
            container["ModelDataUrl"] = model
        else:
            source = {"S3Uri": model.rstrip("/") + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}
            container["ModelDataSource"] = {"S3DataSource": source}
        return {**container, "Environment": dict(environment)}
    path = Path(os.path.expanduser(model))  # noqa: PTH111 -- leaves an unknown ~user alone
    named = str(path.absolute()) if path.exists() else model
    return {**container, "Environment": {"HF_MODEL_ID": named, **environment}}


def _environment(variables: tuple[str, ...]) -> dict[str, str]:
    pairs = [variable.partition("=") for variable in variables]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise UserFailed(f"--env is {name!r}; wanted: NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _create(platform: Platform, name: str, container: dict[str, Any], *, instances: int, instance_type: str) -> None:
    """Make the three things; what was made is removed again if one of them is refused."""
    client, tags = platform.sagemaker, [{"Key": TAG, "Value": "headrace deploy"}]
    role = f"arn:aws:iam::{platform.client('sts').get_caller_identity()['Account']}:role/headrace"
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InitialInstanceCount": instances,
        "InstanceType": instance_type,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    with _undone_on_failure() as undo:
        client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role, Tags=tags)
        undo.append(lambda: client.delete_model(ModelName=name))
        client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], Tags=tags)
        undo.append(lambda: client.delete_endpoint_config(EndpointConfigName=name))
        client.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=tags)


@contextmanager
def _undone_on_failure() -> Iterator[list[Any]]:
    steps: list[Any] = []
    try:
        yield steps
    except Exception:
        for step in reversed(steps):
            with suppress(Exception):  # the first error is the one to tell
                step()
        raise


def _wait(platform: Platform, name: str, timeout_s: float) -> None:
    """Watch the endpoint until it is in service. Raises `Failed` with its reason when it will not be."""
    deadline_s = time.monotonic() + timeout_s
    with _shown(name) as show:
        while True:
            seen = platform.sagemaker.describe_endpoint(EndpointName=name)
            status = seen["EndpointStatus"]
            if status == "InService":
                return
            if status not in _BUSY:
                reason = seen.get("FailureReason") or "no reason was given"
                raise Failed(f"{name} is {status}: {reason}\n`headrace logs {name}` shows what its workers wrote.")
            if time.monotonic() > deadline_s:
                raise Failed(f"{name} is still {status} after {timeout_s:.0f} s; it goes on by itself.")
            show(stage_of(seen))
            time.sleep(_POLL_S)


def stage_of(description: Mapping[str, Any]) -> str:
    """One line: the status, and what its variants are doing."""
    parts = [str(description["EndpointStatus"])]
    for variant in description.get("ProductionVariants") or ():
        states = variant.get("VariantStatus") or ()
        parts.extend(str(state.get("StatusMessage") or state.get("Status") or "") for state in states)
        wanted, present = variant.get("DesiredInstanceCount"), variant.get("CurrentInstanceCount")
        if wanted is not None and present is not None:
            parts.append(f"{present} of {wanted} ready")
    return ", ".join(part for part in dict.fromkeys(parts) if part)


@contextmanager
def _shown(name: str) -> Iterator[Any]:
    """Shows a line that changes on a terminal, and each change as a line elsewhere."""
    if not sys.stderr.isatty():
        last: list[str] = []

        def tell(stage: str) -> None:
            if last[-1:] != [stage]:
                last.append(stage)
                click.echo(f"{name}: {stage}", err=True)

        yield tell
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(name)) as status:
        yield lambda stage: status.update(f"[bold]{escape(name)}[/] {escape(stage)}")


def _ready_text(platform: Platform, name: str, took_s: float) -> str:
    return f"""\
{name} is in service after {took_s:.1f} s.

  headrace invoke {name} --stream "The sea is"
  headrace chat --url {platform.url} --model {name}
  boto3.client("sagemaker-runtime").invoke_endpoint(EndpointName="{name}", ...)   after eval "$(headrace env)"
  OpenAI: {platform.url}/v1 with model "{name}"

  headrace logs {name} -f
  headrace rm {name}"""
