"""`headrace rm`: delete endpoints and inference components with everything that `headrace deploy` created for them."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.endpoints import base_name
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.platform_client import Platform, found, opened_platform, platform_option, unknown_name
from headrace.tools.cli.progress import showing_stage

TAG = "headrace:made-by"
"""Tag on everything that `headrace deploy` creates, so that `headrace rm` can remove all of it."""
_POLL_S = 0.3

EXAMPLES = """
headrace rm smollm2
headrace rm one two --no-wait
headrace rm smollm2 --url http://127.0.0.1:7450   named: it does not ask
"""


@click.command(cls=HelpfulCommand, examples=EXAMPLES)
@click.argument("names", nargs=-1, required=True)
@platform_option
@click.option("--wait/--no-wait", default=True, help="Wait until the workers have ended.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(*, names: tuple[str, ...], url: str | None, wait: bool, yes: bool) -> None:
    """
    Delete the endpoints and inference components NAMES; running requests may finish.

    It asks first if neither --url, nor the environment, nor the data folder names the platform.

    It deletes the endpoint configuration and the model too if `headrace deploy` created them. If you name both, it
    deletes adapters before their base, and components before their endpoint.
    """
    with opened_platform(url) as platform:
        if platform.is_guessed and not yes:
            _confirm(names, platform)
        endpoints = _described(names, platform.endpoint)
        components = _described((name for name in names if name not in endpoints), platform.component)
        for name in endpoints:
            _refuse_host(platform, name, named=names)
        # An adapter goes before its base, and an endpoint only when its components are gone.
        for name, component in sorted(components.items(), key=lambda named: not base_name(named[1])):
            remove_component(platform, name, component)
        if wait or endpoints:
            until_gone(components, platform.component)
        for name, endpoint in endpoints.items():
            remove_endpoint(platform, name, endpoint)
        if wait:
            until_gone(endpoints, platform.endpoint)
    for name in names:
        if name in endpoints or name in components:
            click.echo(f"{name} is {'deleted' if wait else 'being deleted'}.")
    if missing := [name for name in names if name not in endpoints and name not in components]:
        raise unknown_name(", ".join(missing))


def _described(names: Iterable[str], describe: Callable[[str], dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    return {name: description for name in names if (description := describe(name)) is not None}


def _refuse_host(platform: Platform, name: str, *, named: Sequence[str]) -> None:
    """Refuse to delete an endpoint without the components that it hosts, before anything is deleted."""
    hosted = platform.component_names(name)
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


def remove_endpoint(platform: Platform, name: str, endpoint: Mapping[str, Any]) -> None:
    """Delete an endpoint, and its configuration and models if `headrace deploy` created them and they still exist."""
    if endpoint["EndpointStatus"] != "Deleting":
        platform.sagemaker.delete_endpoint(EndpointName=name)
    remove_config(platform, endpoint["EndpointConfigName"])


def remove_config(platform: Platform, config_name: str) -> None:
    """Delete an endpoint configuration and its models if `headrace deploy` created them."""
    client = platform.sagemaker
    config = found(lambda: client.describe_endpoint_config(EndpointConfigName=config_name))
    if config is None or not is_ours(platform, config["EndpointConfigArn"]):
        return
    client.delete_endpoint_config(EndpointConfigName=config_name)
    variants = [*config["ProductionVariants"], *config.get("ShadowProductionVariants", ())]
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
        model = found(partial(client.describe_model, ModelName=name))
        if model is not None and is_ours(platform, model["ModelArn"]):
            found(partial(client.delete_model, ModelName=name))


def is_ours(platform: Platform, arn: str) -> bool:
    return any(tag["Key"] == TAG for tag in platform.sagemaker.list_tags(ResourceArn=arn)["Tags"])
