"""Requests to the control plane as a whole: unsupported operations, and limits of their bodies."""

import pytest
from botocore.exceptions import ClientError

from headrace.platform.operations import OPERATIONS
from headrace.wire.aws import services
from tests import plain_http
from tests.control.calls import CONTAINER
from tests.control.support import Platform
from tests.waiting import WAIT_S


def test_unsupported_operations_are_refused_by_name(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    with pytest.raises(ClientError, match="CreateTrainingPlan is not supported by Headrace"):
        client.create_training_plan(TrainingPlanName="p", TrainingPlanOfferingId="o")
    body = b"no JSON at all"
    target = {"X-Amz-Target": "SageMaker.CreateTrainingJob", "Content-Type": "application/x-amz-json-1.1"}
    answer = plain_http.post(still_platform.url, content=body, headers=target, timeout=WAIT_S)
    assert (answer.status_code, "CreateTrainingJob is not supported" in answer.text) == (400, True)
    with pytest.raises(ClientError, match="Could not find inference component"):
        client.delete_inference_component(InferenceComponentName="i")


def test_all_supported_operations_are_in_botocores_models() -> None:
    assert all(operation in services.operation_names(service) for service, operation in OPERATIONS)


def test_a_body_that_is_too_large_is_refused(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    environment = {f"k{number}": "x" * 1000 for number in range(100)}
    container = {**CONTAINER, "Environment": environment}
    with pytest.raises(ClientError) as caught:
        client.create_model(ModelName="m", Containers=[container] * 45)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
