"""The context of an API call: what a handler gets besides the parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.names import TITLES, arn_of, unreadable_message
from headrace.platform.state.records import AlreadyExists, AnyKind, Json, Kind, Record, Unreadable
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError, not_found, validation_error

SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext(CloudWatchCall):
    """The context of one API call."""

    logs: PlatformLogs
    identity_arn: str
    """ARN of the caller, an assumed role."""
    request_id: str
    own_images: Mapping[str, OwnImage] = field(default_factory=dict)

    def arn(self, kind: AnyKind, name: str) -> str:
        return arn_of(self.aws_scope, kind, name)

    def get(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT]:
        """Read a record that the operation depends on, as `find` does. Raises `AwsError`, also if unreadable."""
        record = self.find(kind, name)
        if isinstance(record, Unreadable):
            raise validation_error(unreadable_message(record))
        return record

    def find(self, kind: Kind[SpecT, StatusT], name: str) -> Record[SpecT, StatusT] | Unreadable:
        """Read a record, even an unreadable one. Raises `AwsError`: "Could not find ...", which SDKs match."""
        record = self.store.find(kind, name)
        if record is None:
            raise not_found(TITLES[kind], self.arn(kind, name))
        return record

    def refuse_existing(self, kind: AnyKind, name: str) -> None:
        """Refuse a name that is taken, ignoring case: "Cannot create already existing ...", which SDKs match."""
        if self.store.find(kind, name) is not None:
            raise self._already_exists(kind, name)

    def create(self, kind: Kind[SpecT, StatusT], name: str, *, spec: SpecT, params: Json) -> str:
        """Add a record with the call's `Tags`, and return its ARN; refuse a taken name, and too many records."""
        check_number(self.store, kind)
        try:
            self.store.create(kind, name, spec=spec, tags=tags_of(params))
        except AlreadyExists:
            raise self._already_exists(kind, name) from None
        return self.arn(kind, name)

    def _already_exists(self, kind: AnyKind, name: str) -> AwsError:
        return validation_error(f'Cannot create already existing {TITLES[kind]} "{self.arn(kind, name)}".')


Handler = Callable[[CallContext, Json], Json]
"""Takes the call's parameters and returns the members of the result, or raises `AwsError`. Blocks on the store."""


def tags_of(params: Json) -> dict[str, str]:
    """Read the inline `Tags` of a call. Raises `AwsError`: a key is given twice, or begins with `aws:`."""
    tags: dict[str, str] = {}
    for tag in params.get("Tags") or []:
        key = tag["Key"]
        if key in tags:
            raise validation_error(f"Duplicate tag keys found: {key}. Tag keys are unique.")
        if key.lower().startswith("aws:"):
            raise validation_error(f"The tag key {key} begins with aws:, which is reserved. Choose another one.")
        tags[key] = tag["Value"]
    return tags


def without(params: Json, *names: str) -> Json:
    """Return a copy without some members."""
    return {name: value for name, value in params.items() if name not in names}


MAX_RECORDS: Final[Mapping[AnyKind, int]] = {
    MODEL: 10_000,
    ENDPOINT_CONFIG: 10_000,
    ENDPOINT: 5_000,
    INFERENCE_COMPONENT: 5_000,
}
MAX_ENVIRONMENT_BYTES: Final = 32 * 1024
"""All names and values of a container's environment. Source: SageMaker API reference, ContainerDefinition."""


def check_number(store: Store, kind: AnyKind) -> None:
    """Refuse a new resource beyond the quota of its kind. Raises `AwsError`: ResourceLimitExceeded, in AWS's words."""
    number, most = store.count(kind), MAX_RECORDS[kind]
    if number >= most:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit 'Number of {TITLES[kind]}s' is {most}, with current utilization of "
            f"{number} and a request delta of 1. Delete {TITLES[kind]}s that are no longer used.",
        )


def check_environment(container: Json) -> None:
    """Refuse a container whose environment is too large. Raises `AwsError`: ValidationException."""
    environment: Mapping[str, str] = container.get("Environment") or {}
    size = sum(len(text.encode(errors="surrogatepass")) for pair in environment.items() for text in pair)
    if size > MAX_ENVIRONMENT_BYTES:
        raise validation_error(
            f"The names and values in Environment have {size} bytes; expected at most {MAX_ENVIRONMENT_BYTES}. "
            "Put large values into a file of the model."
        )
