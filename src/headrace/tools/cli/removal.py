"""`headrace rm`: delete endpoints and inference components with everything that `headrace deploy` created for them."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from headrace.tools.cli.components import base_name, components_of, described_component
from headrace.tools.cli.deployed import TAG
from headrace.tools.cli.group import Examples, UserFailed
from headrace.tools.cli.platform_client import Platform, find_platform, is_not_found, platform_option, translate_errors
from headrace.tools.cli.progress import showing_stage

_POLL_S = 0.3


EXAMPLES = """
headrace rm smollm2
headrace rm one two --no-wait
headrace rm smollm2 --url http://127.0.0.1:7450   the platform is named: it does not ask
"""


@click.command(cls=Examples, examples=EXAMPLES)
@click.argument("names", nargs=-1, required=True)
@platform_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the workers have ended.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(*, names: tuple[str, ...], url: str | None, wait: bool, yes: bool) -> None:
    """
    Delete the endpoints and inference components NAMES; running requests may finish.

    It asks first if neither --url, nor the environment, nor the data folder names the platform.

    The endpoint configuration and the model are deleted too if `headrace deploy` created them. Adapters are deleted
    before their base, and components before their endpoint, if both are named.
    """
    platform = find_platform(url)
    if platform.is_guessed and not yes:
        _confirm(names, platform)
    with translate_errors():
        endpoints = {name: found for name in names if (found := described_endpoint(platform, name)) is not None}
        components = {
            name: found
            for name in names
            if name not in endpoints and (found := described_component(platform, name)) is not None
        }
        for name in endpoints:
            _refuse_host(platform, name, named=names)
        for name, component in sorted(components.items(), key=lambda named: not base_name(named[1])):
            remove_component(platform, name, component)
        if wait or endpoints:
            until_gone(components, lambda name: described_component(platform, name))
        for name, endpoint in endpoints.items():
            remove_endpoint(platform, name, endpoint)
        if wait:
            until_gone(endpoints, lambda name: described_endpoint(platform, name))
    for name in names:
        if name in endpoints or name in components:
            click.echo(f"{name} is {'deleted' if wait else 'being deleted'}.")
    if missing := [name for name in names if name not in endpoints and name not in components]:
        raise UserFailed(
            f"There is no endpoint or inference component called {', '.join(missing)}. `headrace ls` lists them."
        )


def _refuse_host(platform: Platform, name: str, *, named: Sequence[str]) -> None:
    """Refuse to delete an endpoint without the components that it hosts, before anything is deleted."""
    hosted = [component["InferenceComponentName"] for component in components_of(platform, name)]
    if not set(hosted) <= set(named):
        raise UserFailed(
            f"{name} hosts inference components. It has: {', '.join(hosted)}. "
            f"`headrace rm {' '.join([*hosted, name])}{platform.option}` deletes them with it."
        )


def _confirm(names: Sequence[str], platform: Platform) -> None:
    """Ask before the deletion; raises `UserFailed` if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise UserFailed(f"Nothing names the platform of {', '.join(names)}. Add --url {platform.url}, or --yes.")
    click.confirm(f"Delete {', '.join(names)} on {platform.url}?", abort=True, err=True)


def until_gone(names: Iterable[str], look: Callable[[str], Any]) -> None:
    """Wait until no resource of these names is found, and show the one that is left."""
    for name in names:
        if look(name) is None:
            continue
        with showing_stage(name) as show:
            while look(name) is not None:
                show("its requests and workers are ending")
                time.sleep(_POLL_S)


def described_endpoint(platform: Platform, name: str) -> dict[str, Any] | None:
    """Return the response of DescribeEndpoint, or None if there is no such endpoint."""
    return _found(lambda: platform.sagemaker.describe_endpoint(EndpointName=name))


def remove_endpoint(platform: Platform, name: str, endpoint: Mapping[str, Any]) -> None:
    """Delete an endpoint, and its configuration and models if `headrace deploy` created them and they still exist."""
    client, config_name = platform.sagemaker, endpoint["EndpointConfigName"]
    if endpoint["EndpointStatus"] != "Deleting":
        client.delete_endpoint(EndpointName=name)
    remove_config(platform, config_name)


def remove_config(platform: Platform, config_name: str) -> None:
    """Delete an endpoint configuration and its models if `headrace deploy` created them."""
    client = platform.sagemaker
    config = _found(lambda: client.describe_endpoint_config(EndpointConfigName=config_name))
    if config is None or not is_ours(platform, config["EndpointConfigArn"]):
        return
    client.delete_endpoint_config(EndpointConfigName=config_name)
    variants = config["ProductionVariants"]
    remove_models(platform, [variant["ModelName"] for variant in variants if "ModelName" in variant])


def remove_component(platform: Platform, name: str, component: Mapping[str, Any]) -> None:
    """Delete a component, and its model if `headrace deploy` created it."""
    if component["InferenceComponentStatus"] != "Deleting":
        platform.sagemaker.delete_inference_component(InferenceComponentName=name)
    if (component.get("Specification") or {}).get("ModelName") == name:
        remove_models(platform, [name])


def remove_models(platform: Platform, names: Sequence[str]) -> None:
    """Delete models if `headrace deploy` created them."""
    client = platform.sagemaker
    for name in dict.fromkeys(names):
        model = _found(partial(client.describe_model, ModelName=name))
        if model is not None and is_ours(platform, model["ModelArn"]):
            _found(partial(client.delete_model, ModelName=name))


def _found(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the response of a call, or None if the resource does not exist."""
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        if is_not_found(error):
            return None
        raise


def is_ours(platform: Platform, arn: str) -> bool:
    """Return whether `headrace deploy` created a resource."""
    return any(tag["Key"] == TAG for tag in platform.sagemaker.list_tags(ResourceArn=arn)["Tags"])
