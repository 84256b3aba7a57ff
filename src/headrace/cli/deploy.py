"""`headrace deploy`: a model, an endpoint configuration and an endpoint with one command, as any client makes them."""

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from headrace.cli.deployed import Deployed, DeployedComponent, DeployedEndpoint, Fleet, Need
from headrace.cli.group import Examples, Failed, UserFailed
from headrace.cli.platform_client import find_platform, platform_option, told

DEFAULT_IMAGE = (
    "763104351884.dkr.ecr.{region}.amazonaws.com/huggingface-pytorch-tgi-inference:"
    "2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
"""Text Generation Inference: what `get_huggingface_llm_image_uri("huggingface")` of the SageMaker SDK returns."""
_POLL_S = 0.3
_MAX_NAME = 63
_BUSY = frozenset({"Creating", "Updating", "RollingBack", "SystemUpdating"})

EXAMPLES = """
headrace deploy smollm2                                    an endpoint called smollm2
headrace deploy ./my-llama --name chat --instances 2       a folder, two workers
headrace deploy smollm2 --env MAX_TOTAL_TOKENS=1024        settings, as the container's environment
headrace deploy s3://bucket/model.tar.gz --image djl-inference:0.36.0-lmi27.0.0-cu130
headrace deploy smollm2 --component-of host --copies 2     one of several models of the endpoint host
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("model")
@platform_option
@click.option("--name", help="Name of the endpoint.  [default: made from the model's]")
@click.option("--instances", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of workers.")
@click.option("--instance-type", default="ml.c6i.xlarge", show_default=True, help="What each worker asks for.")
@click.option("--component-of", metavar="ENDPOINT", help="Deploy as an inference component of this endpoint.")
@click.option("--copies", type=click.IntRange(0, 100), help="Of the component.  [default: 1]")
@click.option("--cpus", type=click.FloatRange(min=0.25), help="CPU cores that a copy needs.  [default: 1]")
@click.option("--memory", "memory_mb", type=click.IntRange(min=128), help="MB that a copy needs.  [default: 1024]")
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
    component_of: str | None,
    copies: int | None,
    cpus: float | None,
    memory_mb: int | None,
    image: str | None,
    variables: tuple[str, ...],
    wait: bool,
    timeout_s: float,
) -> None:
    """
    Deploy MODEL (an alias such as smollm2, a Hub id, a folder, a .gguf file, or s3://) as an endpoint.

    It makes a model, an endpoint configuration and an endpoint of one name, as SageMaker's clients do, and waits until
    the endpoint is in service. `headrace rm` removes all three.

    With --component-of it makes a model and an inference component of one name; the endpoint is made too if there is
    none of that name, with --instances of --instance-type.
    """
    if component_of is None and (copies, cpus, memory_mb) != (None, None, None):
        raise UserFailed("--copies, --cpus and --memory are of an inference component. Add --component-of ENDPOINT.")
    platform = find_platform(url)
    chosen = name or endpoint_name(model)
    container = container_of(model, _environment(variables), image or DEFAULT_IMAGE.format(region=platform.region))
    fleet = Fleet(instances=instances, instance_type=instance_type)
    made: Deployed
    if component_of is None:
        made = DeployedEndpoint(platform=platform, name=chosen, container=container, fleet=fleet)
    else:
        need = Need(copies=1 if copies is None else copies, cpus=cpus or 1.0, memory_mb=memory_mb or 1024)
        made = DeployedComponent(
            platform=platform, name=chosen, container=container, host=component_of, fleet=fleet, need=need
        )
    with told():
        made.create()
        if not wait:
            click.echo(f"{chosen} is being created. `headrace describe {chosen}` tells how far it is.")
            return
        started_s = time.monotonic()
        _wait(made, timeout_s)
    click.echo(made.ready_text(time.monotonic() - started_s))


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


def _wait(made: Deployed, timeout_s: float) -> None:
    """Watch until it is in service. Raises `Failed` with its reason when it will not be."""
    deadline_s, name = time.monotonic() + timeout_s, made.name
    with _shown(name) as show:
        while True:
            seen = made.look()
            if seen.status == "InService":
                return
            if seen.status not in _BUSY:
                reason = seen.reason or "no reason was given"
                raise Failed(f"{name} is {seen.status}: {reason}\n`headrace logs {name}` shows what its workers wrote.")
            if time.monotonic() > deadline_s:
                raise Failed(f"{name} is still {seen.status} after {timeout_s:.0f} s; it goes on by itself.")
            show(seen.stage)
            time.sleep(_POLL_S)


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
