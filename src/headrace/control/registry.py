"""The registry of supported operations and their handlers."""

from headrace.cloudwatch.api.operations import OPERATIONS as CLOUDWATCH_OPERATIONS
from headrace.control.api import (
    components,
    describe_component,
    describe_endpoint,
    endpoint_configs,
    endpoints,
    identity,
    logs,
    models,
    tags,
)
from headrace.control.api.context import Handler
from headrace.control.autoscaling.api.operations import OPERATIONS as AUTOSCALING_OPERATIONS
from headrace.wire.aws.errors import AwsError

OPERATIONS: dict[tuple[str, str], Handler] = {
    ("sagemaker", "CreateModel"): models.create_model,
    ("sagemaker", "DescribeModel"): models.MODELS.describe,
    ("sagemaker", "ListModels"): models.MODELS.list,
    ("sagemaker", "DeleteModel"): models.MODELS.delete,
    ("sagemaker", "CreateEndpointConfig"): endpoint_configs.create_endpoint_config,
    ("sagemaker", "DescribeEndpointConfig"): endpoint_configs.ENDPOINT_CONFIGS.describe,
    ("sagemaker", "ListEndpointConfigs"): endpoint_configs.ENDPOINT_CONFIGS.list,
    ("sagemaker", "DeleteEndpointConfig"): endpoint_configs.ENDPOINT_CONFIGS.delete,
    ("sagemaker", "CreateEndpoint"): endpoints.create_endpoint,
    ("sagemaker", "DescribeEndpoint"): describe_endpoint.describe_endpoint,
    ("sagemaker", "ListEndpoints"): endpoints.list_endpoints,
    ("sagemaker", "UpdateEndpoint"): endpoints.update_endpoint,
    ("sagemaker", "UpdateEndpointWeightsAndCapacities"): endpoints.update_weights,
    ("sagemaker", "DeleteEndpoint"): endpoints.delete_endpoint,
    ("sagemaker", "CreateInferenceComponent"): components.create_inference_component,
    ("sagemaker", "DescribeInferenceComponent"): describe_component.describe_inference_component,
    ("sagemaker", "ListInferenceComponents"): components.list_inference_components,
    ("sagemaker", "UpdateInferenceComponent"): components.update_inference_component,
    ("sagemaker", "UpdateInferenceComponentRuntimeConfig"): components.update_runtime_config,
    ("sagemaker", "DeleteInferenceComponent"): components.delete_inference_component,
    ("sagemaker", "AddTags"): tags.add_tags,
    ("sagemaker", "ListTags"): tags.list_tags,
    ("sagemaker", "DeleteTags"): tags.delete_tags,
    ("logs", "DeleteLogGroup"): logs.delete_log_group,
    ("logs", "DeleteLogStream"): logs.delete_log_stream,
    ("logs", "DescribeLogGroups"): logs.describe_log_groups,
    ("logs", "DescribeLogStreams"): logs.describe_log_streams,
    ("logs", "FilterLogEvents"): logs.filter_log_events,
    ("logs", "GetLogEvents"): logs.get_log_events,
    **{("cloudwatch", name): handler for name, handler in CLOUDWATCH_OPERATIONS.items()},
    **{("application-autoscaling", name): handler for name, handler in AUTOSCALING_OPERATIONS.items()},
    ("sts", "GetCallerIdentity"): identity.get_caller_identity,
    ("iam", "GetRole"): identity.get_role,
    ("iam", "GetUser"): identity.get_user,
    ("iam", "SimulatePrincipalPolicy"): identity.simulate_principal_policy,
}
"""Handlers by boto3's service name and the name of the operation."""


def handler_of(service: str, operation: str) -> Handler:
    """
    Return the handler of an operation.

    Raises:
        AwsError: the operation exists in AWS but is not supported; the message names it.
    """
    handler = OPERATIONS.get((service, operation))
    if handler is not None:
        return handler
    raise AwsError(
        "UnknownOperationException",
        f"{service} {operation} is not supported by Headrace: docs/coverage.md lists what is.",
    )
