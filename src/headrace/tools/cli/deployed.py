"""
The resources of `headrace deploy`: an endpoint, a new model for one that serves, or an inference component.

A name that was deployed before is updated, replaced if it failed, or refused with the ways out.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import click

from headrace.tools.cli.endpoints import copies_of, notes_of, stage_of
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.platform_client import Platform
from headrace.tools.cli.ready import BEGINNING, prompt_for
from headrace.tools.cli.removal import (
    TAG,
    is_ours,
    remove_component,
    remove_config,
    remove_endpoint,
    remove_models,
    until_gone,
)
from headrace.tools.cli.tables import count_of
from headrace.tools.cli.user_code import OWN_CODE

_TAGS = [{"Key": TAG, "Value": "headrace deploy"}]
_MODELS_TIMEOUT_S = 5.0
"""Time to wait for the list of models of an endpoint that is in service; without it, its text suggests a question."""
_HOST_WAITER = {"Delay": 1, "MaxAttempts": 60}
_MAX_STEM = 45
"""Characters of the endpoint's name in the name of a revision, whose limit is 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentState:
    """The progress of a deployment, as the platform reports it."""

    status: str
    """`EndpointStatus` or `InferenceComponentStatus`."""
    stage: str
    """A one-line summary for people."""
    notes: tuple[str, ...] = ()
    """Facts that are not part of the state, such as the code that serves."""
    reason: str = ""
    """`FailureReason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDeployment:
    """An endpoint that serves one model; in an update, the old model serves until the new one is ready."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    instances: Mapping[str, Any]
    """Number and type of the instances, as members of a production variant."""
    revision: str
    """Name of the model and of the configuration: that of the endpoint, or one of their own in an update."""
    old_config: str | None = None
    """The configuration that an update replaces; None: the endpoint is created."""

    def create(self) -> None:
        """Create a model and an endpoint configuration, and create or update the endpoint."""
        client, names = self.platform.sagemaker, {"EndpointName": self.name, "EndpointConfigName": self.revision}
        with _undo_on_failure() as undo:
            _create_model(self.platform, self.revision, self.container, undo)
            _create_config(self.platform, self.revision, {**self.instances, "ModelName": self.revision}, undo)
            if self.old_config is None:
                client.create_endpoint(**names, Tags=_TAGS)
            else:
                client.update_endpoint(**names)

    def poll(self) -> DeploymentState:
        """Return the state of the endpoint; in service with its old configuration, the update has failed."""
        found = self.platform.sagemaker.describe_endpoint(EndpointName=self.name)
        state = DeploymentState(
            status=found["EndpointStatus"],
            stage=stage_of(found),
            notes=tuple(notes_of(found)),
            reason=found.get("FailureReason", ""),
        )
        is_update = self.old_config is not None
        if is_update and state.status == "InService" and found["EndpointConfigName"] != self.revision:
            reason = state.reason or "its new workers failed, and it still serves what it served before"
            return replace(state, status="not updated", reason=reason)
        return state

    def ready_text(self, took_s: float) -> str:
        """Return how to use the endpoint, by what serves it."""
        description = self.platform.sagemaker.describe_endpoint(EndpointName=self.name)
        if any(OWN_CODE in note for note in notes_of(description)):
            return code_ready_text(self.name, took_s, self.platform.option)
        models = self.platform.list_models(self.name, timeout_s=_MODELS_TIMEOUT_S)
        return _ready_text(self.platform, self.name, took_s, models)

    def remove_unused(self) -> None:
        """Delete the model and the configuration that an update left unused: the new ones if it failed."""
        if self.old_config is None:
            return
        found = self.platform.sagemaker.describe_endpoint(EndpointName=self.name)
        if found["EndpointStatus"] == "InService":
            is_done = found["EndpointConfigName"] == self.revision
            remove_config(self.platform, self.old_config if is_done else self.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentDeployment:
    """An inference component on an endpoint that it may share with others."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    host: str
    """Name of the endpoint, which is created if it does not exist."""
    instances: Mapping[str, Any]
    """The instances of the endpoint if it is created."""
    num_copies: int
    need: Mapping[str, float]
    """`ComputeResourceRequirements` of each copy."""

    def create(self) -> None:
        client = self.platform.sagemaker
        with _undo_on_failure() as undo:
            _create_model(self.platform, self.name, self.container, undo)
            if self.platform.endpoint(self.host) is None:
                _create_config(self.platform, self.host, self.instances, undo)  # components need no model here
                client.create_endpoint(EndpointName=self.host, EndpointConfigName=self.host, Tags=_TAGS)
                undo.append(lambda: client.delete_endpoint(EndpointName=self.host))
                self._wait_for_host()
            client.create_inference_component(
                InferenceComponentName=self.name,
                EndpointName=self.host,
                Specification={"ModelName": self.name, "ComputeResourceRequirements": self.need},
                RuntimeConfig={"CopyCount": self.num_copies},
                Tags=_TAGS,
            )

    def _wait_for_host(self) -> None:
        """Wait for the endpoint; without models it is in service within seconds, or never."""
        from botocore.exceptions import WaiterError

        waiter = self.platform.sagemaker.get_waiter("endpoint_in_service")
        try:
            waiter.wait(EndpointName=self.host, WaiterConfig=_HOST_WAITER)
        except WaiterError as error:
            raise Failed(f"The endpoint {self.host} did not come into service: {error}") from error

    def poll(self) -> DeploymentState:
        description = self.platform.sagemaker.describe_inference_component(InferenceComponentName=self.name)
        status, (current, desired) = description["InferenceComponentStatus"], copies_of(description)
        stage = f"{status} on {self.host}, {current} of {count_of(desired, 'copy', 'copies')} ready"
        return DeploymentState(status=status, stage=stage, reason=description.get("FailureReason", ""))

    def ready_text(self, took_s: float) -> str:
        target = f"{self.host}/inference-components/{self.name}"
        models = self.platform.list_models(target, timeout_s=_MODELS_TIMEOUT_S) if self.num_copies else []
        return _ready_text(self.platform, self.name, took_s, models, host=self.host)


def _ready_text(
    platform: Platform, name: str, took_s: float, models: Sequence[Mapping[str, Any]], host: str | None = None
) -> str:
    """Return how to use an endpoint, or the component of a `host`; the prompt suits the models that it lists."""
    prompt, place, target, scale = prompt_for(models), "", f'EndpointName="{name}"', ""
    if host is not None:
        place, target = f" on {host}", f'EndpointName="{host}", InferenceComponentName="{name}"'
        scale = f"  headrace scale {name} --min 0 --max 4 --idle-s 300{platform.option}\n"
    return f"""\
{name} is in service{place} after {took_s:.1f} s.

  headrace invoke {name} --stream "{prompt}"{platform.option}
  headrace chat {name} --url {platform.url}
  OpenAI: {platform.url}/v1 with model "{name}"
  boto3, after eval "$(headrace env{platform.option})":
    boto3.client("sagemaker-runtime").invoke_endpoint(
      {target},
      Body='{_body_of(prompt)}',
    )["Body"].read()

{scale}  headrace logs {name} -f{platform.option}
  headrace rm {name}{platform.option}"""


def _body_of(prompt: str) -> str:
    """Return the body of a request: a chat, or a text to continue."""
    return json.dumps(
        {"inputs": prompt} if prompt is BEGINNING else {"messages": [{"role": "user", "content": prompt}]}
    )


def code_ready_text(name: str, took_s: float, option: str) -> str:
    """Return how to use an endpoint whose model brings its own code, which decides what a request is."""
    return f"""\
{name} is in service after {took_s:.1f} s, served by its own code.
Requests, depending on what the code reads:

  headrace invoke {name} '{{"inputs": "Hello"}}'{option}
  headrace invoke {name} --content-type text/csv "1,2,3"{option}
  headrace invoke {name} --content-type application/x-npy{option} - < rows.npy
  boto3, after eval "$(headrace env{option})":
    boto3.client("sagemaker-runtime").invoke_endpoint(
      EndpointName="{name}", Body='{{"inputs": "Hello"}}', ContentType="application/json"
    )["Body"].read()

  headrace logs {name} -f{option}
  headrace rm {name}{option}"""


def endpoint_deployment(
    platform: Platform, name: str, container: Mapping[str, Any], instances: Mapping[str, Any], *, is_update: bool
) -> EndpointDeployment:
    """
    Return the deployment of an endpoint, after removing what a failed or deleted one of that name left behind.

    Raises:
        UserFailed: the name is taken, and the caller did not ask for an update.
    """
    found = platform.endpoint(name)
    if found is not None and found["EndpointStatus"] == "Failed" and is_ours(platform, found["EndpointArn"]):
        click.echo(f"Replacing {name}, which failed.", err=True)
        remove_endpoint(platform, name, found)
        found = {**found, "EndpointStatus": "Deleting"}
    if found is not None and found["EndpointStatus"] == "Deleting":
        until_gone([name], platform.endpoint)
        found = None
    if found is not None and not is_update:
        raise UserFailed(_taken(name, "endpoint", found["EndpointStatus"]))
    new = EndpointDeployment(platform=platform, name=name, container=container, instances=instances, revision=name)
    if found is not None:
        revision = f"{name[:_MAX_STEM].rstrip('-')}-{time.strftime('%y%m%d%H%M%S')}-{secrets.token_hex(2)}"
        return replace(new, old_config=found["EndpointConfigName"], revision=revision)
    if platform.component(name) is None:  # whose model and configuration have the same name
        remove_config(platform, name)
        remove_models(platform, [name])
    return new


def refuse_or_remove_component(platform: Platform, name: str) -> None:
    """
    Remove a component that failed, before one of that name is deployed.

    Raises:
        UserFailed: the name is taken by a component that has not failed.
    """
    found = platform.component(name)
    if found is None:
        return
    if found["InferenceComponentStatus"] not in {"Failed", "Deleting"}:
        raise UserFailed(_taken(name, "inference component", found["InferenceComponentStatus"]))
    click.echo(f"Replacing {name}, which failed.", err=True)
    remove_component(platform, name, found)
    until_gone([name], platform.component)


def _taken(name: str, kind: str, status: str) -> str:
    update = "--update deploys the model on it, " if kind == "endpoint" else ""
    return (
        f"There is an {kind} called {name} already ({status}): "
        f"{update}`headrace rm {name}` deletes it, and --name gives the new one another name."
    )


_Undo = list[Callable[[], Any]]


@contextmanager
def _undo_on_failure() -> Iterator[_Undo]:
    """Yield a list of steps that run in reverse order if the block fails."""
    steps: _Undo = []
    try:
        yield steps
    except Exception:
        for step in reversed(steps):
            with suppress(Exception):  # report the first error
                step()
        raise


def _create_model(platform: Platform, name: str, container: Mapping[str, Any], undo: _Undo) -> None:
    client = platform.sagemaker
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=_role(platform), Tags=_TAGS)
    undo.append(lambda: client.delete_model(ModelName=name))


def _create_config(platform: Platform, name: str, members: Mapping[str, Any], undo: _Undo) -> None:
    """Create an endpoint configuration of one variant with these members."""
    client = platform.sagemaker
    routing = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    variant = {"VariantName": "AllTraffic", "RoutingConfig": routing, **members}
    client.create_endpoint_config(
        EndpointConfigName=name, ExecutionRoleArn=_role(platform), ProductionVariants=[variant], Tags=_TAGS
    )
    undo.append(lambda: client.delete_endpoint_config(EndpointConfigName=name))


def _role(platform: Platform) -> str:
    """Return a role, which SageMaker's API requires and the platform ignores."""
    return f"arn:aws:iam::{platform.client('sts').get_caller_identity()['Account']}:role/headrace"
