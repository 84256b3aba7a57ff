"""
Limits on the number of resources and the size of a container's environment: no key holder fills disk and memory.

SageMaker has quotas for the same things, which vary by account and region; these are the same for all platforms.
"""

from collections.abc import Mapping
from typing import Final

from headrace.control.model.component import INFERENCE_COMPONENT
from headrace.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.control.model.endpoint import ENDPOINT
from headrace.control.model.names import TITLES
from headrace.state.records import AnyKind, Json
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError, validation_error

MAX_RECORDS: Final[Mapping[AnyKind, int]] = {
    MODEL: 10_000,
    ENDPOINT_CONFIG: 10_000,
    ENDPOINT: 5_000,
    INFERENCE_COMPONENT: 5_000,
}
MAX_ENVIRONMENT_BYTES: Final = 32 * 1024
"""All names and values of a container's environment. Source: SageMaker API reference, ContainerDefinition."""


def check_number(store: Store, kind: AnyKind) -> None:
    """
    Refuse a new resource beyond the quota of its kind.

    Raises:
        AwsError: ResourceLimitExceeded, in AWS's words.
    """
    number, most = store.count(kind), MAX_RECORDS[kind]
    if number >= most:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit 'Number of {TITLES[kind]}s' is {most}, with current utilization of "
            f"{number} and a request delta of 1. Delete {TITLES[kind]}s that are no longer used.",
        )


def check_environment(container: Json) -> None:
    """
    Refuse a container whose environment is too large.

    Raises:
        AwsError: ValidationException.
    """
    environment: Mapping[str, str] = container.get("Environment") or {}
    size = sum(len(text.encode(errors="surrogatepass")) for pair in environment.items() for text in pair)
    if size > MAX_ENVIRONMENT_BYTES:
        raise validation_error(
            f"The names and values in Environment have {size} bytes; expected at most {MAX_ENVIRONMENT_BYTES}. "
            "Put large values into a file of the model."
        )
