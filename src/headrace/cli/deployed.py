"""What `headrace deploy` makes: an endpoint or an inference component, as any client of SageMaker makes them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.cli.components import copies_of
from headrace.cli.group import Failed
from headrace.cli.platform_client import Platform, is_not_found

TAG = "headrace:made-by"
"""On what one command made, so that `headrace rm` may remove all of it."""
_TAGS = [{"Key": TAG, "Value": "headrace deploy"}]
_VARIANT = "AllTraffic"
_HOST_WAITER = {"Delay": 1, "MaxAttempts": 60}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How far it is."""

    status: str
    """`EndpointStatus` or `InferenceComponentStatus`."""
    stage: str
    """One line for people."""
    reason: str = ""
    """`FailureReason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Of an endpoint."""

    instances: int
    instance_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of a component."""

    copies: int
    cpus: float
    memory_mb: int


class Deployed(Protocol):
    """Something that is made, and watched until it is in service."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def create(self) -> None:
        """Make it; what was made of it is removed again if a part is refused."""
        ...

    def look(self) -> Seen:
        """How far it is now."""
        ...

    def ready_text(self, took_s: float) -> str:
        """What to do with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedEndpoint:
    """An endpoint with a model of its own."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    fleet: Fleet

    def create(self) -> None:
        """Make a model, a configuration and an endpoint."""
        with _undone_on_failure() as undo:
            _create_model(self.platform, self.name, self.container, undo)
            _create_endpoint(self.platform, self.name, self.fleet, undo, ModelName=self.name)

    def look(self) -> Seen:
        """DescribeEndpoint."""
        found = self.platform.sagemaker.describe_endpoint(EndpointName=self.name)
        return Seen(status=found["EndpointStatus"], stage=stage_of(found), reason=found.get("FailureReason", ""))

    def ready_text(self, took_s: float) -> str:
        """How to ask it."""
        name, url = self.name, self.platform.url
        return f"""\
{name} is in service after {took_s:.1f} s.

  headrace invoke {name} --stream "The sea is"
  headrace chat --url {url} --model {name}
  boto3.client("sagemaker-runtime").invoke_endpoint(EndpointName="{name}", ...)   after eval "$(headrace env)"
  OpenAI: {url}/v1 with model "{name}"

  headrace logs {name} -f
  headrace rm {name}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedComponent:
    """A model on the instances of an endpoint that others are on as well."""

    platform: Platform
    name: str
    container: Mapping[str, Any]
    host: str
    """Name of the endpoint; it is made if there is none."""
    fleet: Fleet
    """Of the endpoint, if it is made."""
    need: Need

    def create(self) -> None:
        """Make a model and a component, and their endpoint."""
        client = self.platform.sagemaker
        need = {"NumberOfCpuCoresRequired": self.need.cpus, "MinMemoryRequiredInMb": self.need.memory_mb}
        with _undone_on_failure() as undo:
            _create_model(self.platform, self.name, self.container, undo)
            if not self._has_host():
                _create_endpoint(self.platform, self.host, self.fleet, undo)
                undo.append(lambda: client.delete_endpoint(EndpointName=self.host))
                self._wait_for_host()
            client.create_inference_component(
                InferenceComponentName=self.name,
                EndpointName=self.host,
                Specification={"ModelName": self.name, "ComputeResourceRequirements": need},
                RuntimeConfig={"CopyCount": self.need.copies},
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
        """An endpoint without models is in service at once, or never."""
        from botocore.exceptions import WaiterError

        waiter = self.platform.sagemaker.get_waiter("endpoint_in_service")
        try:
            waiter.wait(EndpointName=self.host, WaiterConfig=_HOST_WAITER)
        except WaiterError as error:
            raise Failed(f"The endpoint {self.host} did not come into service: {error}") from error

    def look(self) -> Seen:
        """DescribeInferenceComponent."""
        found = self.platform.sagemaker.describe_inference_component(InferenceComponentName=self.name)
        status, (present, wanted) = found["InferenceComponentStatus"], copies_of(found)
        return Seen(
            status=status,
            stage=f"{status} on {self.host}, {present} of {wanted} copies ready",
            reason=found.get("FailureReason", ""),
        )

    def ready_text(self, took_s: float) -> str:
        """How to ask it."""
        name, url = self.name, self.platform.url
        return f"""\
{name} is in service on {self.host} after {took_s:.1f} s.

  headrace chat --url {url} --model {name}
  boto3.client("sagemaker-runtime").invoke_endpoint(EndpointName="{self.host}", InferenceComponentName="{name}", ...)
  OpenAI: {url}/v1 with model "{name}"

  headrace scale {name} --min 0 --max 4 --idle-s 300
  headrace logs {name} -f
  headrace rm {name}"""


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


Undo = list[Callable[[], Any]]


@contextmanager
def _undone_on_failure() -> Iterator[Undo]:
    steps: Undo = []
    try:
        yield steps
    except Exception:
        for step in reversed(steps):
            with suppress(Exception):  # the first error is the one to tell
                step()
        raise


def _create_model(platform: Platform, name: str, container: Mapping[str, Any], undo: Undo) -> None:
    client = platform.sagemaker
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=_role(platform), Tags=_TAGS)
    undo.append(lambda: client.delete_model(ModelName=name))


def _create_endpoint(platform: Platform, name: str, fleet: Fleet, undo: Undo, **more: str) -> None:
    """An endpoint and its configuration. `more`: of the variant; without a model it is for components."""
    client = platform.sagemaker
    variant = {
        "VariantName": _VARIANT,
        "InitialInstanceCount": fleet.instances,
        "InstanceType": fleet.instance_type,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        **more,
    }
    client.create_endpoint_config(
        EndpointConfigName=name, ExecutionRoleArn=_role(platform), ProductionVariants=[variant], Tags=_TAGS
    )
    undo.append(lambda: client.delete_endpoint_config(EndpointConfigName=name))
    client.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=_TAGS)


def _role(platform: Platform) -> str:
    """Roles mean nothing here, and SageMaker asks for one."""
    return f"arn:aws:iam::{platform.client('sts').get_caller_identity()['Account']}:role/headrace"
