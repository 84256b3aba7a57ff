"""Calls of boto3 that several tests share: models, configurations, hosts, components, and refusals."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.platform.control.support import IMAGE, ROLE
from tests.waiting import WAIT_S, pauses

CONTAINER = {"Image": IMAGE, "ModelDataUrl": "s3://b/model.tar.gz", "Environment": {"A": "1"}}
VARIANT = {
    "VariantName": "AllTraffic",
    "ModelName": "m",
    "InstanceType": "ml.g5.2xlarge",
    "InitialInstanceCount": 1,
    "InitialVariantWeight": 1.0,
}
NEED = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 1024}


def refusal(call: Any, **params: Any) -> str:
    """Return the message of the ValidationException that a call gets."""
    with pytest.raises(ClientError) as caught:
        call(**params)
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    message: str = caught.value.response["Error"]["Message"]
    return message


def make_model(client: Any, name: str = "m", **more: Any) -> str:
    arn: str = client.create_model(ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=CONTAINER, **more)[
        "ModelArn"
    ]
    return arn


def make_config(client: Any, name: str = "c", **variant: Any) -> None:
    """Create a configuration, and its model unless it exists."""
    if not client.list_models(NameContains="m")["Models"]:
        container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2"}}
        client.create_model(ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer=container)
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[{**VARIANT, **variant}])


def host(client: Any, name: str = "ep", *, instance_type: str = "ml.p3.8xlarge", **variant: Any) -> None:
    production = {"VariantName": "AllTraffic", "InstanceType": instance_type, "InitialInstanceCount": 1, **variant}
    client.create_endpoint_config(EndpointConfigName=name, ExecutionRoleArn=ROLE, ProductionVariants=[production])
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)


def model(client: Any, name: str) -> None:
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": name}}
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)


def component(client: Any, name: str, *, copies: int = 1, need: dict[str, Any] = NEED, model: str = "m") -> None:
    client.create_inference_component(
        InferenceComponentName=name,
        EndpointName="ep",
        VariantName="AllTraffic",
        Specification={"ModelName": model, "ComputeResourceRequirements": need},
        RuntimeConfig={"CopyCount": copies},
    )


def until(client: Any, name: str, *states: str, copies: int | None = None) -> dict[str, Any]:
    deadline_s, pause_s = time.monotonic() + WAIT_S, pauses()
    while True:
        found: dict[str, Any] = client.describe_inference_component(InferenceComponentName=name)
        present = found["RuntimeConfig"]["CurrentCopyCount"]
        if found["InferenceComponentStatus"] in states and copies in (None, present):
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(next(pause_s))
