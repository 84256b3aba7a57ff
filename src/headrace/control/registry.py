"""The registry of supported operations and their handlers."""

from headrace.cloudwatch.api import alarm_history as alarm_history_api
from headrace.cloudwatch.api import alarm_tags as alarm_tags_api
from headrace.cloudwatch.api import alarms as alarms_api
from headrace.cloudwatch.api import list_metrics as list_metrics_api
from headrace.cloudwatch.api import metric_data as metric_data_api
from headrace.cloudwatch.api import put_metric_data
from headrace.cloudwatch.api import statistics as statistics_api
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
from headrace.control.autoscaling.api import activities as activities_api
from headrace.control.autoscaling.api import policies as policies_api
from headrace.control.autoscaling.api import schedules as schedules_api
from headrace.control.autoscaling.api import tags as autoscaling_tags_api
from headrace.control.autoscaling.api import targets as targets_api
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
    ("cloudwatch", "PutMetricData"): put_metric_data.put_metric_data,
    ("cloudwatch", "GetMetricData"): metric_data_api.get_metric_data,
    ("cloudwatch", "GetMetricStatistics"): statistics_api.get_metric_statistics,
    ("cloudwatch", "ListMetrics"): list_metrics_api.list_metrics,
    ("cloudwatch", "PutMetricAlarm"): alarms_api.put_metric_alarm,
    ("cloudwatch", "DescribeAlarms"): alarms_api.describe_alarms,
    ("cloudwatch", "DescribeAlarmsForMetric"): alarms_api.describe_alarms_for_metric,
    ("cloudwatch", "DescribeAlarmHistory"): alarm_history_api.describe_alarm_history,
    ("cloudwatch", "DeleteAlarms"): alarms_api.delete_alarms,
    ("cloudwatch", "SetAlarmState"): alarms_api.set_alarm_state,
    ("cloudwatch", "EnableAlarmActions"): alarms_api.enable_alarm_actions,
    ("cloudwatch", "DisableAlarmActions"): alarms_api.disable_alarm_actions,
    ("cloudwatch", "TagResource"): alarm_tags_api.tag_resource,
    ("cloudwatch", "UntagResource"): alarm_tags_api.untag_resource,
    ("cloudwatch", "ListTagsForResource"): alarm_tags_api.list_tags_for_resource,
    ("application-autoscaling", "RegisterScalableTarget"): targets_api.register_scalable_target,
    ("application-autoscaling", "DeregisterScalableTarget"): targets_api.deregister_scalable_target,
    ("application-autoscaling", "DescribeScalableTargets"): targets_api.describe_scalable_targets,
    ("application-autoscaling", "PutScalingPolicy"): policies_api.put_scaling_policy,
    ("application-autoscaling", "DeleteScalingPolicy"): policies_api.delete_scaling_policy,
    ("application-autoscaling", "DescribeScalingPolicies"): policies_api.describe_scaling_policies,
    ("application-autoscaling", "GetPredictiveScalingForecast"): policies_api.get_predictive_scaling_forecast,
    ("application-autoscaling", "PutScheduledAction"): schedules_api.put_scheduled_action,
    ("application-autoscaling", "DeleteScheduledAction"): schedules_api.delete_scheduled_action,
    ("application-autoscaling", "DescribeScheduledActions"): schedules_api.describe_scheduled_actions,
    ("application-autoscaling", "DescribeScalingActivities"): activities_api.describe_scaling_activities,
    ("application-autoscaling", "TagResource"): autoscaling_tags_api.tag_resource,
    ("application-autoscaling", "UntagResource"): autoscaling_tags_api.untag_resource,
    ("application-autoscaling", "ListTagsForResource"): autoscaling_tags_api.list_tags_for_resource,
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
