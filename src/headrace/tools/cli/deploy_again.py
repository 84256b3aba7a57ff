"""`headrace deploy` for a name that was deployed before: update the endpoint, replace a failed one, or say how."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from headrace.tools.cli.components import described_component
from headrace.tools.cli.deployed import (
    ComponentDeployment,
    Copies,
    DeploymentState,
    EndpointDeployment,
    Instances,
    create_config,
    create_model,
    ready_text,
    undo_on_failure,
)
from headrace.tools.cli.group import UserFailed
from headrace.tools.cli.platform_client import Platform
from headrace.tools.cli.removal import (
    described_endpoint,
    is_ours,
    remove_component,
    remove_config,
    remove_endpoint,
    remove_models,
    until_gone,
)

_MAX_STEM = 45
"""Characters of the endpoint's name in the name of a revision, whose limit is 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUpdate:
    """A new model and configuration for an endpoint that serves; the old ones serve until the new ones are ready."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    instances: Instances
    old_config: str
    revision: str
    """Name of the new model and the new configuration."""

    def create(self) -> None:
        """Create the model and the configuration, and start the update."""
        with undo_on_failure() as undo:
            create_model(self.platform, self.revision, self.container, undo)
            create_config(self.platform, self.revision, self.instances, undo, ModelName=self.revision)
            self.platform.sagemaker.update_endpoint(EndpointName=self.name, EndpointConfigName=self.revision)

    def poll(self) -> DeploymentState:
        """Return the state of the endpoint; in service with its old configuration, the update has failed."""
        state = DeploymentState.of(self.platform.sagemaker.describe_endpoint(EndpointName=self.name))
        if state.status == "InService" and not self._is_done():
            reason = state.reason or "its new workers failed, and it still serves what it served before"
            return replace(state, status="not updated", reason=reason)
        return state

    def ready_text(self, took_s: float) -> str:
        return ready_text(self.platform, self.name, took_s)

    def remove_unused(self) -> None:
        """Delete the model and the configuration that are no longer used: the new ones if the update failed."""
        if self.platform.sagemaker.describe_endpoint(EndpointName=self.name)["EndpointStatus"] == "InService":
            remove_config(self.platform, self.old_config if self._is_done() else self.revision)

    def _is_done(self) -> bool:
        found = self.platform.sagemaker.describe_endpoint(EndpointName=self.name)
        return bool(found["EndpointConfigName"] == self.revision)


def endpoint_deployment(
    platform: Platform, name: str, container: Mapping[str, Any], instances: Instances, *, is_update: bool
) -> EndpointDeployment | EndpointUpdate:
    """
    Return the deployment of an endpoint, after removing what a failed or deleted one of that name left behind.

    Raises:
        UserFailed: the name is taken, and the caller did not ask for an update.
    """
    found = described_endpoint(platform, name)
    if found is not None and found["EndpointStatus"] == "Failed" and is_ours(platform, found["EndpointArn"]):
        click.echo(f"Replacing {name}, which failed.", err=True)
        remove_endpoint(platform, name, found)
        found = {**found, "EndpointStatus": "Deleting"}
    if found is not None and found["EndpointStatus"] == "Deleting":
        until_gone([name], lambda name: described_endpoint(platform, name))
        found = None
    if found is not None and not is_update:
        raise UserFailed(_taken(name, "endpoint", found["EndpointStatus"]))
    if found is not None:
        revision = f"{name[:_MAX_STEM].rstrip('-')}-{time.strftime('%y%m%d%H%M%S')}-{secrets.token_hex(2)}"
        return EndpointUpdate(
            platform=platform,
            name=name,
            container=container,
            instances=instances,
            old_config=found["EndpointConfigName"],
            revision=revision,
        )
    if described_component(platform, name) is None:
        remove_config(platform, name)
        remove_models(platform, [name])
    return EndpointDeployment(platform=platform, name=name, container=container, instances=instances)


def component_deployment(
    platform: Platform, name: str, container: Mapping[str, Any], instances: Instances, *, host: str, copies: Copies
) -> ComponentDeployment:
    """
    Return the deployment of a component, after removing one of that name that failed.

    Raises:
        UserFailed: the name is taken by a component that has not failed.
    """
    found = described_component(platform, name)
    if found is not None:
        if found["InferenceComponentStatus"] not in {"Failed", "Deleting"}:
            raise UserFailed(_taken(name, "inference component", found["InferenceComponentStatus"]))
        click.echo(f"Replacing {name}, which failed.", err=True)
        remove_component(platform, name, found)
        until_gone([name], lambda name: described_component(platform, name))
    return ComponentDeployment(
        platform=platform, name=name, container=container, host=host, instances=instances, copies=copies
    )


def _taken(name: str, kind: str, status: str) -> str:
    update = "--update deploys the model on it, " if kind == "endpoint" else ""
    return (
        f"There is an {kind} called {name} already ({status}): "
        f"{update}`headrace rm {name}` deletes it, and --name gives the new one another name."
    )
