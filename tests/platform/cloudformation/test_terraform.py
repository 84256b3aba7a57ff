"""The calls of Terraform's AWS provider, in its order: create, read, update and delete of what hosts a model."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.platform.control.calls import VARIANT
from tests.platform.control.support import IMAGE, ROLE

from .conftest import Stacks

CONTAINER = {"Image": IMAGE, "Mode": "SingleModel", "Environment": {"HF_MODEL_ID": "smollm2"}}
DEPLOYMENT = {
    "BlueGreenUpdatePolicy": {
        "TerminationWaitInSeconds": 0,
        "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 0},
    }
}
RESOURCE = {"ServiceNamespace": "sagemaker", "ResourceId": "endpoint/tf/variant/AllTraffic"}
SCALABLE = {**RESOURCE, "ScalableDimension": "sagemaker:variant:DesiredInstanceCount"}
FOUND_TARGETS = {
    "ServiceNamespace": "sagemaker",
    "ResourceIds": [RESOURCE["ResourceId"]],
    "ScalableDimension": SCALABLE["ScalableDimension"],
}
TRACKING = {
    "TargetValue": 5.0,
    "ScaleInCooldown": 0,
    "ScaleOutCooldown": 0,
    "DisableScaleIn": False,
    "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
}
PRODUCTION = {**VARIANT, "ModelName": "tf", "InitialVariantWeight": 1.0, "EnableSSMAccess": False}
LOG_GROUP = "arn:aws:logs:us-east-1:123456789012:log-group:tf"
CALLS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "sagemaker",
        "create_model",
        {"ModelName": "tf", "ExecutionRoleArn": ROLE, "PrimaryContainer": CONTAINER},
        "ModelArn",
    ),
    ("sagemaker", "describe_model", {"ModelName": "tf"}, "PrimaryContainer"),
    ("sagemaker", "list_tags", {"ResourceArn": "arn:aws:sagemaker:us-east-1:123456789012:model/tf"}, "Tags"),
    (
        "sagemaker",
        "create_endpoint_config",
        {"EndpointConfigName": "tf-a", "ProductionVariants": [PRODUCTION]},
        "",
    ),
    (
        "sagemaker",
        "create_endpoint_config",
        {"EndpointConfigName": "tf-b", "ProductionVariants": [PRODUCTION]},
        "",
    ),
    ("sagemaker", "describe_endpoint_config", {"EndpointConfigName": "tf-a"}, "ProductionVariants"),
    (
        "sagemaker",
        "create_endpoint",
        {"EndpointName": "tf", "EndpointConfigName": "tf-a", "DeploymentConfig": DEPLOYMENT},
        "EndpointArn",
    ),
    ("sagemaker", "wait endpoint_in_service", {"EndpointName": "tf"}, ""),
    ("sagemaker", "describe_endpoint", {"EndpointName": "tf"}, "LastDeploymentConfig"),
    (
        "application-autoscaling",
        "register_scalable_target",
        {**SCALABLE, "MinCapacity": 1, "MaxCapacity": 2},
        "ScalableTargetARN",
    ),
    (
        "application-autoscaling",
        "describe_scalable_targets",
        FOUND_TARGETS,
        "ScalableTargets",
    ),
    (
        "application-autoscaling",
        "put_scaling_policy",
        {
            **SCALABLE,
            "PolicyName": "t",
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": TRACKING,
        },
        "PolicyARN",
    ),
    (
        "application-autoscaling",
        "describe_scaling_policies",
        {**SCALABLE, "PolicyNames": ["t"]},
        "ScalingPolicies",
    ),
    ("logs", "create_log_group", {"logGroupName": "tf", "logGroupClass": "STANDARD", "tags": {"a": "b"}}, ""),
    ("logs", "put_retention_policy", {"logGroupName": "tf", "retentionInDays": 7}, ""),
    ("logs", "describe_log_groups", {"logGroupNamePrefix": "tf"}, "logGroups"),
    ("logs", "list_tags_for_resource", {"resourceArn": LOG_GROUP}, "tags"),
    ("logs", "put_retention_policy", {"logGroupName": "tf", "retentionInDays": 14}, ""),
    ("logs", "delete_retention_policy", {"logGroupName": "tf"}, ""),
    (
        "sagemaker",
        "update_endpoint",
        {"EndpointName": "tf", "EndpointConfigName": "tf-b", "DeploymentConfig": DEPLOYMENT},
        "EndpointArn",
    ),
    ("sagemaker", "wait endpoint_in_service", {"EndpointName": "tf"}, ""),
    ("sagemaker", "delete_endpoint_config", {"EndpointConfigName": "tf-a"}, ""),
    ("application-autoscaling", "delete_scaling_policy", {**SCALABLE, "PolicyName": "t"}, ""),
    ("application-autoscaling", "deregister_scalable_target", SCALABLE, ""),
    ("logs", "delete_log_group", {"logGroupName": "tf"}, ""),
    ("sagemaker", "delete_endpoint", {"EndpointName": "tf"}, ""),
    ("sagemaker", "wait endpoint_deleted", {"EndpointName": "tf"}, ""),
    ("sagemaker", "delete_endpoint_config", {"EndpointConfigName": "tf-b"}, ""),
    ("sagemaker", "delete_model", {"ModelName": "tf"}, ""),
)
"""Service, method of boto3 or waiter, parameters, and a member of the answer that the provider reads."""

GONE = (
    ("sagemaker", "describe_model", {"ModelName": "tf"}, "ValidationException", "Could not find"),
    ("sagemaker", "delete_model", {"ModelName": "tf"}, "ValidationException", "Could not find"),
    ("sagemaker", "describe_endpoint", {"EndpointName": "tf"}, "ValidationException", "Could not find"),
    ("sagemaker", "delete_endpoint", {"EndpointName": "tf"}, "ValidationException", "Could not find"),
    (
        "sagemaker",
        "delete_endpoint_config",
        {"EndpointConfigName": "tf-a"},
        "ValidationException",
        "Could not find endpoint configuration",
    ),
    (
        "application-autoscaling",
        "deregister_scalable_target",
        SCALABLE,
        "ObjectNotFoundException",
        "No scalable target",
    ),
    (
        "application-autoscaling",
        "delete_scaling_policy",
        {**SCALABLE, "PolicyName": "t"},
        "ObjectNotFoundException",
        "No scaling policy",
    ),
    ("logs", "delete_log_group", {"logGroupName": "tf"}, "ResourceNotFoundException", "does not exist"),
)
"""What the provider takes for a resource that is gone: the calls, and the code and text of their errors."""


def test_the_calls_of_the_provider_are_answered(stacks: Stacks) -> None:
    """Source: terraform-provider-aws, internal/service/sagemaker, appautoscaling and logs."""
    clients = {service: stacks.platform.client(service) for service in {call[0] for call in CALLS}}
    for service, name, params, member in CALLS:
        if name.startswith("wait "):
            waiter = clients[service].get_waiter(name.removeprefix("wait "))
            waiter.wait(**params, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})
            continue
        answer = getattr(clients[service], name)(**params)
        assert not member or member in answer, (name, answer)
    assert clients["application-autoscaling"].describe_scalable_targets(**FOUND_TARGETS)["ScalableTargets"] == []
    for service, name, params, code, text in GONE:
        with pytest.raises(ClientError, match=text) as caught:
            getattr(clients[service], name)(**params)
        assert caught.value.response["Error"]["Code"] == code
