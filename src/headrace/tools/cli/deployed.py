"""The resources that `headrace deploy` creates through SageMaker's API: an endpoint or an inference component."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from headrace.tools.cli.components import copies_of
from headrace.tools.cli.group import Failed
from headrace.tools.cli.platform_client import Platform, is_not_found
from headrace.tools.cli.suggestions import prompt_for
from headrace.tools.cli.tables import count_of
from headrace.tools.cli.user_code import OWN_CODE

TAG = "headrace:made-by"
"""Tag on everything that `headrace deploy` creates, so that `headrace rm` can remove all of it."""
_TAGS = [{"Key": TAG, "Value": "headrace deploy"}]
_VARIANT = "AllTraffic"
_NOTE = "Note: "
"""Prefix of the lines of a variant's message that are not part of its state."""
_MODELS_TIMEOUT_S = 5.0
"""Time to wait for the list of models of an endpoint that is in service; without it, its text suggests a question."""
_HOST_WAITER = {"Delay": 1, "MaxAttempts": 60}


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

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """Return the state in a response of DescribeEndpoint."""
        reason, notes = description.get("FailureReason", ""), tuple(notes_of(description))
        return cls(status=description["EndpointStatus"], stage=stage_of(description), notes=notes, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """The number and type of the instances of an endpoint."""

    count: int
    instance_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The number of copies of a component, and the resources of each."""

    count: int
    cpus: float
    memory_mb: int


class Deployment(Protocol):
    """An endpoint or component that is created and polled until it is in service."""

    @property
    def name(self) -> str: ...

    def create(self) -> None:
        """Create all resources; if one is refused, delete those already created."""
        ...

    def poll(self) -> DeploymentState:
        """Return the current state."""
        ...

    def ready_text(self, took_s: float) -> str:
        """Return the message that explains how to use the deployment."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDeployment:
    """An endpoint that serves one model."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    instances: Instances

    def create(self) -> None:
        """Create a model, an endpoint configuration and an endpoint."""
        with undo_on_failure() as undo:
            create_model(self.platform, self.name, self.container, undo)
            _create_endpoint(self.platform, self.name, self.instances, undo, ModelName=self.name)

    def poll(self) -> DeploymentState:
        return DeploymentState.of(self.platform.sagemaker.describe_endpoint(EndpointName=self.name))

    def ready_text(self, took_s: float) -> str:
        return ready_text(self.platform, self.name, took_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentDeployment:
    """An inference component on an endpoint that it may share with others."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    host: str
    """Name of the endpoint, which is created if it does not exist."""
    instances: Instances
    """The instances of the endpoint if it is created."""
    copies: Copies

    def create(self) -> None:
        """Create a model and a component, and their endpoint if needed."""
        client = self.platform.sagemaker
        need = {"NumberOfCpuCoresRequired": self.copies.cpus, "MinMemoryRequiredInMb": self.copies.memory_mb}
        with undo_on_failure() as undo:
            create_model(self.platform, self.name, self.container, undo)
            if not self._has_host():
                _create_endpoint(self.platform, self.host, self.instances, undo)
                undo.append(lambda: client.delete_endpoint(EndpointName=self.host))
                self._wait_for_host()
            client.create_inference_component(
                InferenceComponentName=self.name,
                EndpointName=self.host,
                Specification={"ModelName": self.name, "ComputeResourceRequirements": need},
                RuntimeConfig={"CopyCount": self.copies.count},
                Tags=_TAGS,
            )

    def _has_host(self) -> bool:
        from botocore.exceptions import ClientError

        try:
            self.platform.sagemaker.describe_endpoint(EndpointName=self.host)
        except ClientError as error:
            if is_not_found(error):
                return False
            raise
        return True

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
        return DeploymentState(
            status=status,
            stage=f"{status} on {self.host}, {current} of {count_of(desired, 'copy', 'copies')} ready",
            reason=description.get("FailureReason", ""),
        )

    def _models(self) -> list[dict[str, Any]]:
        target = f"{self.host}/inference-components/{self.name}"
        return self.platform.list_models(target, {}, timeout_s=_MODELS_TIMEOUT_S) if self.copies.count else []

    def ready_text(self, took_s: float) -> str:
        name, url, option = self.name, self.platform.url, self.platform.option
        return f"""\
{name} is in service on {self.host} after {took_s:.1f} s.

  headrace invoke {name} --stream "{prompt_for(self._models())}"{option}
  headrace chat {name} --url {url}
  OpenAI: {url}/v1 with model "{name}"
  boto3, after eval "$(headrace env{option})":
    client("sagemaker-runtime").invoke_endpoint(
        EndpointName="{self.host}", InferenceComponentName="{name}", ...)

  headrace scale {name} --min 0 --max 4 --idle-s 300{option}
  headrace logs {name} -f{option}
  headrace rm {name}{option}"""


def ready_text(platform: Platform, name: str, took_s: float) -> str:
    """Return how to use an endpoint, by what serves it."""
    if any(OWN_CODE in note for note in notes_of(platform.sagemaker.describe_endpoint(EndpointName=name))):
        return code_ready_text(name, took_s, platform.option)
    prompt = prompt_for(platform.list_models(name, {}, timeout_s=_MODELS_TIMEOUT_S))
    return f"""\
{name} is in service after {took_s:.1f} s.

  headrace invoke {name} --stream "{prompt}"{platform.option}
  headrace chat {name} --url {platform.url}
  OpenAI: {platform.url}/v1 with model "{name}"
  boto3, after eval "$(headrace env{platform.option})":
    client("sagemaker-runtime").invoke_endpoint(EndpointName="{name}", ...)

  headrace logs {name} -f{platform.option}
  headrace rm {name}{platform.option}"""


def code_ready_text(name: str, took_s: float, option: str) -> str:
    """Return how to use an endpoint whose model brings its own code, which decides what a request is."""
    return f"""\
{name} is in service after {took_s:.1f} s, served by its own code.
Requests, depending on what the code reads:

  headrace invoke {name} '{{"inputs": "Hello"}}'{option}
  headrace invoke {name} --content-type text/csv "1,2,3"{option}
  headrace invoke {name} --content-type application/x-npy{option} - < rows.npy
  boto3, after eval "$(headrace env{option})":
    client("sagemaker-runtime").invoke_endpoint(EndpointName="{name}", ...)

  headrace logs {name} -f{option}
  headrace rm {name}{option}"""


def stage_of(description: Mapping[str, Any]) -> str:
    """Return a one-line summary: the status of the endpoint and of its variants, without notes."""
    is_in_service = description["EndpointStatus"] == "InService"
    parts = [str(description["EndpointStatus"])]
    for variant in description.get("ProductionVariants") or ():
        for state in _states(variant):
            parts += [line.rstrip(".") for line in state_lines(state)] or (
                [] if is_in_service else [str(state["Status"])]
            )
        desired, current = variant.get("DesiredInstanceCount"), variant.get("CurrentInstanceCount")
        if desired is not None and current is not None:
            parts.append(f"{current} of {desired} ready")
    return ", ".join(part for part in dict.fromkeys(parts) if part)


def state_lines(state: Mapping[str, Any]) -> list[str]:
    """Return the lines of a variant's message that say where its workers run, or why they wait."""
    return [line for line in _message(state) if not line.startswith(_NOTE)]


def notes_of(description: Mapping[str, Any]) -> list[str]:
    """Return the notes in the messages of an endpoint's variants, each once."""
    states = [state for variant in description.get("ProductionVariants") or () for state in _states(variant)]
    notes = [line.removeprefix(_NOTE) for state in states for line in _message(state) if line.startswith(_NOTE)]
    return list(dict.fromkeys(notes))


def _states(variant: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return variant.get("VariantStatus") or ()


def _message(state: Mapping[str, Any]) -> list[str]:
    return str(state.get("StatusMessage") or "").splitlines()


Undo = list[Callable[[], Any]]


@contextmanager
def undo_on_failure() -> Iterator[Undo]:
    """Yield a list of undo steps that run in reverse order if the block fails."""
    steps: Undo = []
    try:
        yield steps
    except Exception:
        for step in reversed(steps):
            with suppress(Exception):  # report the first error
                step()
        raise


def create_model(platform: Platform, name: str, container: Mapping[str, Any], undo: Undo) -> None:
    """Create a model, and add the step that deletes it."""
    client = platform.sagemaker
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=_role(platform), Tags=_TAGS)
    undo.append(lambda: client.delete_model(ModelName=name))


def _create_endpoint(platform: Platform, name: str, instances: Instances, undo: Undo, **more: str) -> None:
    """Create an endpoint and its configuration, see `create_config`."""
    create_config(platform, name, instances, undo, **more)
    platform.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=_TAGS)


def create_config(platform: Platform, name: str, instances: Instances, undo: Undo, **more: str) -> None:
    """Create an endpoint configuration; `more` extends the variant, which needs no model for components."""
    client = platform.sagemaker
    variant = {
        "VariantName": _VARIANT,
        "InitialInstanceCount": instances.count,
        "InstanceType": instances.instance_type,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        **more,
    }
    client.create_endpoint_config(
        EndpointConfigName=name, ExecutionRoleArn=_role(platform), ProductionVariants=[variant], Tags=_TAGS
    )
    undo.append(lambda: client.delete_endpoint_config(EndpointConfigName=name))


def _role(platform: Platform) -> str:
    """Return a role, which SageMaker's API requires and the platform ignores."""
    return f"arn:aws:iam::{platform.client('sts').get_caller_identity()['Account']}:role/headrace"
