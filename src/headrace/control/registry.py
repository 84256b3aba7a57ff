"""Which operations are answered, by whom; and a clear word for all others."""

from headrace.cloudwatch.api import alarm_history as alarm_history_api
from headrace.cloudwatch.api import alarm_tags as alarm_tags_api
from headrace.cloudwatch.api import alarms as alarms_api
from headrace.cloudwatch.api import list_metrics as list_metrics_api
from headrace.cloudwatch.api import metric_data as metric_data_api
from headrace.cloudwatch.api import put_metric_data
from headrace.cloudwatch.api import statistics as statistics_api
from headrace.control import (
    describe_endpoint,
    endpoint_configs_api,
    endpoints_api,
    identity_api,
    logs_api,
    models_api,
    tags_api,
)
from headrace.control.autoscaling.api import activities as activities_api
from headrace.control.autoscaling.api import policies as policies_api
from headrace.control.autoscaling.api import schedules as schedules_api
from headrace.control.autoscaling.api import tags as autoscaling_tags_api
from headrace.control.autoscaling.api import targets as targets_api
from headrace.control.components import api as components_api
from headrace.control.components import describe as components_describe
from headrace.control.context import Handler
from headrace.wire.aws.errors import AwsError

OPERATIONS: dict[tuple[str, str], Handler] = {
    ("sagemaker", "CreateModel"): models_api.create_model,
    ("sagemaker", "DescribeModel"): models_api.MODELS.describe,
    ("sagemaker", "ListModels"): models_api.MODELS.list,
    ("sagemaker", "DeleteModel"): models_api.MODELS.delete,
    ("sagemaker", "CreateEndpointConfig"): endpoint_configs_api.create_endpoint_config,
    ("sagemaker", "DescribeEndpointConfig"): endpoint_configs_api.ENDPOINT_CONFIGS.describe,
    ("sagemaker", "ListEndpointConfigs"): endpoint_configs_api.ENDPOINT_CONFIGS.list,
    ("sagemaker", "DeleteEndpointConfig"): endpoint_configs_api.ENDPOINT_CONFIGS.delete,
    ("sagemaker", "CreateEndpoint"): endpoints_api.create_endpoint,
    ("sagemaker", "DescribeEndpoint"): describe_endpoint.describe_endpoint,
    ("sagemaker", "ListEndpoints"): endpoints_api.list_endpoints,
    ("sagemaker", "UpdateEndpoint"): endpoints_api.update_endpoint,
    ("sagemaker", "UpdateEndpointWeightsAndCapacities"): endpoints_api.update_weights,
    ("sagemaker", "DeleteEndpoint"): endpoints_api.delete_endpoint,
    ("sagemaker", "CreateInferenceComponent"): components_api.create_inference_component,
    ("sagemaker", "DescribeInferenceComponent"): components_describe.describe_inference_component,
    ("sagemaker", "ListInferenceComponents"): components_api.list_inference_components,
    ("sagemaker", "UpdateInferenceComponent"): components_api.update_inference_component,
    ("sagemaker", "UpdateInferenceComponentRuntimeConfig"): components_api.update_runtime_config,
    ("sagemaker", "DeleteInferenceComponent"): components_api.delete_inference_component,
    ("sagemaker", "AddTags"): tags_api.add_tags,
    ("sagemaker", "ListTags"): tags_api.list_tags,
    ("sagemaker", "DeleteTags"): tags_api.delete_tags,
    ("logs", "DeleteLogGroup"): logs_api.delete_log_group,
    ("logs", "DeleteLogStream"): logs_api.delete_log_stream,
    ("logs", "DescribeLogGroups"): logs_api.describe_log_groups,
    ("logs", "DescribeLogStreams"): logs_api.describe_log_streams,
    ("logs", "FilterLogEvents"): logs_api.filter_log_events,
    ("logs", "GetLogEvents"): logs_api.get_log_events,
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
    ("sts", "GetCallerIdentity"): identity_api.get_caller_identity,
    ("iam", "GetRole"): identity_api.get_role,
    ("iam", "GetUser"): identity_api.get_user,
    ("iam", "SimulatePrincipalPolicy"): identity_api.simulate_principal_policy,
}
"""By boto3's service name and the operation's."""


def handler_of(service: str, operation: str) -> Handler:
    """
    Who answers an operation.

    Raises:
        AwsError: nobody; the operation is one of AWS's, and named.
    """
    handler = OPERATIONS.get((service, operation))
    if handler is not None:
        return handler
    raise AwsError(
        "UnknownOperationException",
        f"{service} {operation} is not supported by Headrace: docs/coverage.md lists what is.",
    )
