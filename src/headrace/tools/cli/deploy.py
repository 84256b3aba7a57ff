"""`headrace deploy`: create a model, an endpoint configuration and an endpoint with one command, by AWS's APIs."""

import os
import re
import time
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.deployed import (
    ComponentDeployment,
    EndpointDeployment,
    endpoint_deployment,
    refuse_or_remove_component,
)
from headrace.tools.cli.endpoints import BUSY, failure_text
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.platform_client import Platform, find_platform, platform_option, translate_errors
from headrace.tools.cli.progress import showing_stage

DEFAULT_IMAGE = (
    "763104351884.dkr.ecr.{region}.amazonaws.com/huggingface-pytorch-tgi-inference:"
    "2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
"""Text Generation Inference: what `get_huggingface_llm_image_uri("huggingface")` of the SageMaker SDK returns."""
_POLL_S = 0.3
_MAX_NAME = 63
_NAME = re.compile(rf"(?=.{{1,{_MAX_NAME}}}\Z)[a-zA-Z0-9]+(-+[a-zA-Z0-9]+)*")
_Deployment = EndpointDeployment | ComponentDeployment

EXAMPLES = """
headrace deploy smollm2                                an endpoint "smollm2"
headrace deploy ./my-llama --name chat --instances 2   a folder, two workers
headrace deploy ./my-llama --name chat --update        another model on "chat"
headrace deploy smollm2 --env MAX_TOTAL_TOKENS=1024    container variables
headrace deploy s3://me/model.tar.gz --image djl-inference:0.36.0-lmi27.0.0
headrace deploy smollm2 --component-of host --copies 2   a model beside others
"""


_GROUPS = {
    "Endpoint": ("name", "instances", "instance_type", "image", "variables", "is_update"),
    "Inference component": ("component_of", "copies", "cpus", "memory_mb"),
    "Platform": ("url", "wait", "timeout_s"),
}


@click.command(cls=HelpfulCommand, examples=EXAMPLES, groups=_GROUPS)
@click.argument("model")
@platform_option
@click.option("--name", metavar="NAME", help="Name of the endpoint.  [default: derived from the model's]")
@click.option("--instances", type=click.IntRange(1, 100), default=1, help="Number of workers.")
@click.option("--instance-type", metavar="TYPE", default="ml.c6i.xlarge", help="Instance type of each worker.")
@click.option("--component-of", metavar="ENDPOINT", help="Deploy as an inference component of this endpoint.")
@click.option("--copies", type=click.IntRange(0, 100), help="Copies of the component.  [default: 1]")
@click.option("--cpus", type=click.FloatRange(min=0.25), help="CPU cores for each copy.  [default: 1]")
@click.option("--memory-mb", type=click.IntRange(min=128), help="Memory of each copy.  [default: 1024]")
@click.option("--image", metavar="URI", help="Image URI; decides which model server is emulated.  [default: TGI 3]")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="Container variable. Repeatable.")
@click.option("--update", "is_update", is_flag=True, help="Deploy on the endpoint of that name, if there is one.")
@click.option("--wait/--no-wait", default=True, help="Wait until the endpoint is in service.")
@click.option("--timeout-s", type=click.FloatRange(min=1), default=1800.0, help="Seconds to wait at most.")
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
    is_update: bool,
    wait: bool,
    timeout_s: float,
) -> None:
    """
    Deploy a model as an endpoint.

    MODEL is an alias (smollm2), a Hub id, a folder, a .gguf file or s3://. The command creates a model, an endpoint
    configuration and an endpoint of the same name through SageMaker's API, and waits until the endpoint is in service.
    `headrace rm` deletes all three.

    With --component-of it creates a model and an inference component of the same name on that endpoint. If the endpoint
    does not exist, it creates it with --instances of --instance-type.

    If there is an endpoint of that name, --update gives it the new model and settings; it serves the old ones until
    the new ones are ready. Without --update the command replaces only an endpoint that has failed.
    """
    if is_update and (component_of is not None or not wait):
        raise UserFailed("--update is for endpoints and waits; it cannot be combined with --component-of or --no-wait.")
    if component_of is None and (copies, cpus, memory_mb) != (None, None, None):
        raise UserFailed("--copies, --cpus and --memory-mb need an inference component. Add --component-of ENDPOINT.")
    _check_model(model)
    platform = find_platform(url)
    _check_instance_type(platform, instance_type)
    chosen = name or endpoint_name(model)
    if _NAME.fullmatch(chosen) is None:
        raise UserFailed(f"--name is {chosen!r}; expected up to {_MAX_NAME} letters, digits and hyphens between them.")
    container = container_of(model, _environment(variables), image or DEFAULT_IMAGE.format(region=platform.region))
    hardware = {"InitialInstanceCount": instances, "InstanceType": instance_type}
    deployment: _Deployment
    with translate_errors():
        if component_of is None:
            deployment = endpoint_deployment(platform, chosen, container, hardware, is_update=is_update)
        else:
            refuse_or_remove_component(platform, chosen)
            deployment = ComponentDeployment(
                platform=platform,
                name=chosen,
                container=container,
                host=component_of,
                instances=hardware,
                num_copies=1 if copies is None else copies,
                need={"NumberOfCpuCoresRequired": cpus or 1.0, "MinMemoryRequiredInMb": memory_mb or 1024},
            )
        _run(deployment, platform.option, timeout_s=timeout_s if wait else None)


def _run(deployment: _Deployment, option: str, *, timeout_s: float | None) -> None:
    """Create the resources, wait until they are in service, and say how to use them; `timeout_s` None: do not wait."""
    name = deployment.name
    deployment.create()
    if timeout_s is None:
        click.echo(f"{name} is being created. `headrace describe {name}{option}` shows its progress.")
        return
    started_s = time.monotonic()
    try:
        _wait(deployment, timeout_s, option)
    finally:
        if isinstance(deployment, EndpointDeployment):
            deployment.remove_unused()
    click.echo(deployment.ready_text(time.monotonic() - started_s))


def endpoint_name(model: str) -> str:
    """Derive a name that AWS allows from the last part of the model's name."""
    last = model.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"\.(gguf|tar\.gz|tgz)$", "", last)
    return re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:_MAX_NAME].rstrip("-") or "model"


def container_of(model: str, environment: Mapping[str, str], image: str) -> dict[str, Any]:
    """Return the `PrimaryContainer` of `CreateModel`: S3 archive or prefix, else the model's name in HF_MODEL_ID."""
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


def _check_model(model: str) -> None:
    """
    Refuse a relative path that does not exist, and a name that is neither an alias nor a Hub id, which has a slash.

    The platform, perhaps on another machine, checks absolute paths and Hub ids.
    """
    from headrace.inference.models.aliases import ALIASES
    from headrace.inference.models.sources import not_found

    if model in ALIASES or Path(os.path.expanduser(model)).exists():  # noqa: PTH111 -- leaves an unknown ~user alone
        return
    if model.startswith(("./", "../", "~")):
        raise UserFailed(f"MODEL is {model}; expected a file or folder that exists, an alias, a Hub id or s3://.")
    if "/" not in model:
        raise not_found(model)


def _check_instance_type(platform: Platform, name: str) -> None:
    """Refuse a type that SageMaker does not have, with the nearest ones; AWS's message lists all of them."""
    known = platform.sagemaker.meta.service_model.shape_for("ProductionVariantInstanceType").enum
    if name not in known:
        near = get_close_matches(name.lower(), known, n=3, cutoff=0.7)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Expected one such as ml.c6i.xlarge or ml.g5.xlarge."
        raise UserFailed(f"--instance-type is {name!r}, which SageMaker does not have. {hint}")


def _environment(variables: tuple[str, ...]) -> dict[str, str]:
    pairs = [variable.partition("=") for variable in variables]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise UserFailed(f"--env is {name!r}; expected NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _wait(deployment: _Deployment, timeout_s: float, option: str) -> None:
    """Wait until the deployment is in service. Raises `Failed` with the reason if it fails."""
    deadline_s, name, shown = time.monotonic() + timeout_s, deployment.name, set[str]()
    with showing_stage(name) as show:
        while True:
            state = deployment.poll()
            for note in state.notes:
                if note not in shown:
                    shown.add(note)
                    show.note(f"Note: {note}")
            if state.status == "InService":
                return
            if state.status not in BUSY:
                raise Failed(failure_text(name, state.status, state.reason, option))
            if time.monotonic() > deadline_s:
                raise Failed(f"{name} is still {state.status} after {timeout_s:.0f} s; the platform continues.")
            show(state.stage)
            time.sleep(_POLL_S)
