"""
Names that AWS gives to things: ARNs, log groups and streams.

Names in ARNs are in lower case, as AWS writes them; names are therefore looked up in any case.
"""

import re

from headrace.control.model.kinds import ENDPOINT, ENDPOINT_CONFIG, INFERENCE_COMPONENT, MODEL
from headrace.state.records import AnyKind, RawRecord
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope, partition_of

ARN_TYPES = {
    MODEL: "model",
    ENDPOINT_CONFIG: "endpoint-config",
    ENDPOINT: "endpoint",
    INFERENCE_COMPONENT: "inference-component",
}
"""What stands before the name in an ARN."""
TITLES = {
    MODEL: "model",
    ENDPOINT_CONFIG: "endpoint configuration",
    ENDPOINT: "endpoint",
    INFERENCE_COMPONENT: "inference component",
}
"""What AWS's messages call them."""
ENDPOINT_LOG_PREFIX = "/aws/sagemaker/Endpoints/"
COMPONENT_LOG_PREFIX = "/aws/sagemaker/InferenceComponents/"

_ARN = re.compile(
    r"arn:(?P<partition>[^:]*):sagemaker:(?P<region>[^:]*):(?P<account>[^:]*):(?P<type>[^/]*)/(?P<name>.+)"
)


def arn_of(aws_scope: AwsScope, kind: AnyKind, name: str) -> str:
    """The ARN of a model, a configuration, an endpoint or an inference component."""
    partition = partition_of(aws_scope.region)
    return f"arn:{partition}:sagemaker:{aws_scope.region}:{aws_scope.account}:{ARN_TYPES[kind]}/{name.lower()}"


def parse_arn(arn: str) -> tuple[AnyKind, str] | None:
    """AnyKind and name of the thing with an ARN; None if it is of no kind that is kept here."""
    found = _ARN.fullmatch(arn)
    if found is None:
        return None
    kinds = {arn_type: kind for kind, arn_type in ARN_TYPES.items()}
    kind = kinds.get(found["type"])
    return (kind, found["name"]) if kind is not None else None


def find(store: Store, kind: AnyKind, name: str) -> RawRecord | None:
    """The record of that name, in any case."""
    exact = store.get(kind, name)
    if exact is not None:
        return exact
    lower = name.lower()
    return next((record for record in store.list(kind) if record.name.lower() == lower), None)


def log_group_of(endpoint: str) -> str:
    """Where the workers of an endpoint log. Source: SageMaker developer guide, "Log groups and streams"."""
    return ENDPOINT_LOG_PREFIX + endpoint


def component_log_group_of(component: str) -> str:
    """Where the copies of an inference component log."""
    return COMPONENT_LOG_PREFIX + component


def log_stream_of(variant: str, instance_id: str) -> str:
    """The log stream of one worker."""
    return f"{variant}/{instance_id}"
