"""The AWS operations that the platform supports, each with its handler, and all kinds of its records."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from headrace.core.errors import SettingsError
from headrace.platform.account import alarm_messages, dashboards, ecr, iam, sns
from headrace.platform.account.dashboards import DASHBOARDS
from headrace.platform.autoscaling.api import policies, schedules, targets
from headrace.platform.autoscaling.planning.policies import SCALING_POLICY
from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, SCHEDULED_ACTION
from headrace.platform.autoscaling.records.activities import SCALING_ACTIVITY
from headrace.platform.cloudformation.api.operations import STACK_OPERATIONS
from headrace.platform.cloudformation.records import STACK
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.cloudwatch.api import alarms, metrics
from headrace.platform.control.api import (
    ai_benchmarks,
    cards,
    components,
    definitions,
    endpoints,
    experiments,
    hub,
    identity,
    log_groups,
    log_queries,
    logs,
    optimization_jobs,
    packages,
    recommendation_jobs,
    transform_jobs,
)
from headrace.platform.control.api.context import CallContext, Handler, add_tags, delete_tags, list_tags
from headrace.platform.control.api.search import search
from headrace.platform.control.model.cards import MODEL_CARD
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.platform.control.model.endpoint import ENDPOINT, JOB_ENDPOINT
from headrace.platform.control.model.experiment import INFERENCE_EXPERIMENT
from headrace.platform.control.model.jobs import (
    AI_BENCHMARK_JOB,
    AI_WORKLOAD_CONFIG,
    OPTIMIZATION_JOB,
    RECOMMENDATIONS_JOB,
)
from headrace.platform.control.model.log_query import LOG_QUERY
from headrace.platform.control.model.packages import MODEL_PACKAGE, MODEL_PACKAGE_GROUP
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.control.model.worker import WORKER
from headrace.platform.host import sts
from headrace.platform.host.access_keys import ACCESS_KEY
from headrace.platform.state.records import AnyKind, Json
from headrace.platform.state.routes import ROUTE

KINDS: Final[Mapping[str, AnyKind]] = {
    kind.name: kind
    for kind in (
        ACCESS_KEY,
        ALARM,
        DASHBOARDS.kind,
        ENDPOINT,
        ENDPOINT_CONFIG,
        INFERENCE_COMPONENT,
        INFERENCE_EXPERIMENT,
        JOB_ENDPOINT,
        log_groups.LOG_GROUPS.kind,
        LOG_QUERY,
        MODEL,
        MODEL_CARD,
        MODEL_PACKAGE,
        MODEL_PACKAGE_GROUP,
        iam.POLICIES.kind,
        iam.ROLES.kind,
        ROUTE,
        SCALABLE_TARGET,
        SCALING_ACTIVITY,
        SCALING_POLICY,
        SCHEDULED_ACTION,
        OPTIMIZATION_JOB,
        RECOMMENDATIONS_JOB,
        AI_BENCHMARK_JOB,
        AI_WORKLOAD_CONFIG,
        ecr.REPOSITORIES.kind,
        sns.SUBSCRIPTIONS.kind,
        sns.TOPICS.kind,
        STACK,
        TRANSFORM_JOB,
        WORKER,
    )
}
"""All kinds of records, by name."""


def refuse_newer(versions: Mapping[str, int], *, what: str) -> None:
    """
    Refuse records that a newer Headrace wrote: raise `SettingsError`.

    `versions` has the newest schema version of each kind's records, `what` is the store or the file that has them.
    """
    remedy = "Use the version of Headrace that wrote them, or restore a backup that is older."
    for name, version in sorted(versions.items()):
        if name not in KINDS:
            raise SettingsError(f"{what} has records of the kind {name}, which this Headrace does not have. {remedy}")
        if version > KINDS[name].version:
            raise SettingsError(
                f"{what} has records of the kind {name} with schema version {version}; this Headrace expects at most "
                f"version {KINDS[name].version}. {remedy}"
            )


OPERATIONS: Mapping[tuple[str, str], Handler] = {
    ("sagemaker", "CreateModel"): definitions.create_model,
    ("sagemaker", "DescribeModel"): definitions.MODELS.describe,
    ("sagemaker", "ListModels"): definitions.MODELS.list,
    ("sagemaker", "DeleteModel"): definitions.MODELS.delete,
    ("sagemaker", "CreateEndpointConfig"): definitions.create_endpoint_config,
    ("sagemaker", "DescribeEndpointConfig"): definitions.ENDPOINT_CONFIGS.describe,
    ("sagemaker", "ListEndpointConfigs"): definitions.ENDPOINT_CONFIGS.list,
    ("sagemaker", "DeleteEndpointConfig"): definitions.ENDPOINT_CONFIGS.delete,
    ("sagemaker", "CreateEndpoint"): endpoints.create_endpoint,
    ("sagemaker", "DescribeEndpoint"): endpoints.describe_endpoint,
    ("sagemaker", "ListEndpoints"): endpoints.list_endpoints,
    ("sagemaker", "UpdateEndpoint"): targets.update_scaled_endpoint,
    ("sagemaker", "UpdateEndpointWeightsAndCapacities"): endpoints.update_weights,
    ("sagemaker", "DeleteEndpoint"): endpoints.delete_endpoint,
    ("sagemaker", "CreateTransformJob"): transform_jobs.create_transform_job,
    ("sagemaker", "DescribeTransformJob"): transform_jobs.TRANSFORM_JOBS.describe,
    ("sagemaker", "ListTransformJobs"): transform_jobs.TRANSFORM_JOBS.list,
    ("sagemaker", "StopTransformJob"): transform_jobs.TRANSFORM_JOBS.stop,
    ("sagemaker", "CreateOptimizationJob"): optimization_jobs.create_optimization_job,
    ("sagemaker", "DescribeOptimizationJob"): optimization_jobs.OPTIMIZATION_JOBS.describe,
    ("sagemaker", "ListOptimizationJobs"): optimization_jobs.list_optimization_jobs,
    ("sagemaker", "StopOptimizationJob"): optimization_jobs.OPTIMIZATION_JOBS.stop,
    ("sagemaker", "DeleteOptimizationJob"): optimization_jobs.OPTIMIZATION_JOBS.delete,
    ("sagemaker", "CreateAIWorkloadConfig"): ai_benchmarks.create_workload_config,
    ("sagemaker", "DescribeAIWorkloadConfig"): ai_benchmarks.describe_workload_config,
    ("sagemaker", "ListAIWorkloadConfigs"): ai_benchmarks.list_workload_configs,
    ("sagemaker", "DeleteAIWorkloadConfig"): ai_benchmarks.delete_workload_config,
    ("sagemaker", "CreateAIBenchmarkJob"): ai_benchmarks.create_benchmark_job,
    ("sagemaker", "DescribeAIBenchmarkJob"): ai_benchmarks.describe_benchmark_job,
    ("sagemaker", "ListAIBenchmarkJobs"): ai_benchmarks.AI_BENCHMARK_JOBS.list,
    ("sagemaker", "StopAIBenchmarkJob"): ai_benchmarks.AI_BENCHMARK_JOBS.stop,
    ("sagemaker", "DeleteAIBenchmarkJob"): ai_benchmarks.AI_BENCHMARK_JOBS.delete,
    ("sagemaker", "CreateInferenceRecommendationsJob"): recommendation_jobs.create_recommendations_job,
    ("sagemaker", "DescribeInferenceRecommendationsJob"): recommendation_jobs.describe_recommendations_job,
    ("sagemaker", "ListInferenceRecommendationsJobs"): recommendation_jobs.list_recommendations_jobs,
    ("sagemaker", "ListInferenceRecommendationsJobSteps"): recommendation_jobs.list_steps,
    ("sagemaker", "GetScalingConfigurationRecommendation"): recommendation_jobs.get_scaling_recommendation,
    ("sagemaker", "StopInferenceRecommendationsJob"): recommendation_jobs.RECOMMENDATIONS_JOBS.stop,
    ("sagemaker", "CreateInferenceExperiment"): experiments.create_experiment,
    ("sagemaker", "DescribeInferenceExperiment"): experiments.describe_experiment,
    ("sagemaker", "ListInferenceExperiments"): experiments.list_experiments,
    ("sagemaker", "UpdateInferenceExperiment"): experiments.update_experiment,
    ("sagemaker", "StartInferenceExperiment"): experiments.start_experiment,
    ("sagemaker", "StopInferenceExperiment"): experiments.stop_experiment,
    ("sagemaker", "DeleteInferenceExperiment"): experiments.delete_experiment,
    ("sagemaker", "CreateInferenceComponent"): components.create_inference_component,
    ("sagemaker", "DescribeInferenceComponent"): components.describe_inference_component,
    ("sagemaker", "ListInferenceComponents"): components.list_inference_components,
    ("sagemaker", "UpdateInferenceComponent"): components.update_inference_component,
    ("sagemaker", "UpdateInferenceComponentRuntimeConfig"): components.update_runtime_config,
    ("sagemaker", "DeleteInferenceComponent"): components.delete_inference_component,
    ("sagemaker", "CreateModelPackageGroup"): packages.create_group,
    ("sagemaker", "DescribeModelPackageGroup"): packages.describe_group,
    ("sagemaker", "ListModelPackageGroups"): packages.list_groups,
    ("sagemaker", "DeleteModelPackageGroup"): packages.delete_group,
    ("sagemaker", "PutModelPackageGroupPolicy"): packages.put_group_policy,
    ("sagemaker", "GetModelPackageGroupPolicy"): packages.get_group_policy,
    ("sagemaker", "DeleteModelPackageGroupPolicy"): packages.delete_group_policy,
    ("sagemaker", "CreateModelPackage"): packages.create_package,
    ("sagemaker", "DescribeModelPackage"): packages.describe_package,
    ("sagemaker", "BatchDescribeModelPackage"): packages.batch_describe_packages,
    ("sagemaker", "ListModelPackages"): packages.list_packages,
    ("sagemaker", "UpdateModelPackage"): packages.update_package,
    ("sagemaker", "DeleteModelPackage"): packages.delete_package,
    ("sagemaker", "DescribeHub"): hub.describe_hub,
    ("sagemaker", "ListHubs"): hub.list_hubs,
    ("sagemaker", "DescribeHubContent"): hub.describe_hub_content,
    ("sagemaker", "ListHubContents"): hub.list_hub_contents,
    ("sagemaker", "ListHubContentVersions"): hub.list_hub_content_versions,
    ("sagemaker", "CreateModelCard"): cards.create_card,
    ("sagemaker", "DescribeModelCard"): cards.describe_card,
    ("sagemaker", "UpdateModelCard"): cards.update_card,
    ("sagemaker", "ListModelCards"): cards.list_cards,
    ("sagemaker", "ListModelCardVersions"): cards.list_card_versions,
    ("sagemaker", "DeleteModelCard"): cards.delete_card,
    ("sagemaker", "Search"): search,
    ("sagemaker", "AddTags"): add_tags,
    ("sagemaker", "ListTags"): list_tags,
    ("sagemaker", "DeleteTags"): delete_tags,
    ("logs", "CreateLogGroup"): log_groups.create_log_group,
    ("logs", "DeleteLogGroup"): logs.delete_log_group,
    ("logs", "DeleteLogStream"): logs.delete_log_stream,
    ("logs", "DescribeLogGroups"): logs.describe_log_groups,
    ("logs", "DescribeLogStreams"): logs.describe_log_streams,
    ("logs", "FilterLogEvents"): logs.filter_log_events,
    ("logs", "GetLogEvents"): logs.get_log_events,
    ("logs", "CreateLogStream"): logs.create_log_stream,
    ("logs", "PutLogEvents"): logs.put_log_events,
    ("logs", "StartQuery"): log_queries.start_query,
    ("logs", "GetQueryResults"): log_queries.get_query_results,
    ("logs", "StopQuery"): log_queries.stop_query,
    ("logs", "DescribeQueries"): log_queries.describe_queries,
    ("logs", "PutRetentionPolicy"): log_groups.put_retention_policy,
    ("logs", "DeleteRetentionPolicy"): log_groups.delete_retention_policy,
    ("logs", "TagResource"): log_groups.LOG_GROUPS.tag,
    ("logs", "UntagResource"): log_groups.LOG_GROUPS.untag,
    ("logs", "ListTagsForResource"): log_groups.list_tags_for_resource,
    ("logs", "TagLogGroup"): log_groups.LOG_GROUPS.tag,
    ("logs", "UntagLogGroup"): log_groups.untag_log_group,
    ("logs", "ListTagsLogGroup"): log_groups.list_tags_for_resource,
    ("cloudwatch", "PutMetricData"): metrics.put_metric_data,
    ("cloudwatch", "GetMetricData"): metrics.get_metric_data,
    ("cloudwatch", "GetMetricStatistics"): metrics.get_metric_statistics,
    ("cloudwatch", "ListMetrics"): metrics.list_metrics,
    ("cloudwatch", "PutMetricAlarm"): alarms.put_metric_alarm,
    ("cloudwatch", "DescribeAlarms"): alarms.describe_alarms,
    ("cloudwatch", "DescribeAlarmsForMetric"): alarms.describe_alarms_for_metric,
    ("cloudwatch", "DescribeAlarmHistory"): alarms.describe_alarm_history,
    ("cloudwatch", "DeleteAlarms"): alarms.delete_alarms,
    ("cloudwatch", "SetAlarmState"): alarm_messages.set_alarm_state_and_publish,
    ("cloudwatch", "EnableAlarmActions"): alarms.enable_alarm_actions,
    ("cloudwatch", "DisableAlarmActions"): alarms.disable_alarm_actions,
    ("cloudwatch", "TagResource"): alarms.tag_resource,
    ("cloudwatch", "UntagResource"): alarms.untag_resource,
    ("cloudwatch", "ListTagsForResource"): alarms.list_tags_for_resource,
    ("cloudwatch", "PutDashboard"): dashboards.put_dashboard,
    ("cloudwatch", "GetDashboard"): DASHBOARDS.get,
    ("cloudwatch", "ListDashboards"): DASHBOARDS.list,
    ("cloudwatch", "DeleteDashboards"): dashboards.delete_dashboards,
    ("application-autoscaling", "RegisterScalableTarget"): targets.register_scalable_target,
    ("application-autoscaling", "DeregisterScalableTarget"): targets.deregister_scalable_target,
    ("application-autoscaling", "DescribeScalableTargets"): targets.describe_scalable_targets,
    ("application-autoscaling", "PutScalingPolicy"): policies.put_scaling_policy,
    ("application-autoscaling", "DeleteScalingPolicy"): policies.delete_scaling_policy,
    ("application-autoscaling", "DescribeScalingPolicies"): policies.describe_scaling_policies,
    ("application-autoscaling", "GetPredictiveScalingForecast"): policies.get_predictive_scaling_forecast,
    ("application-autoscaling", "PutScheduledAction"): schedules.put_scheduled_action,
    ("application-autoscaling", "DeleteScheduledAction"): schedules.delete_scheduled_action,
    ("application-autoscaling", "DescribeScheduledActions"): schedules.describe_scheduled_actions,
    ("application-autoscaling", "DescribeScalingActivities"): targets.describe_scaling_activities,
    ("application-autoscaling", "TagResource"): targets.tag_resource,
    ("application-autoscaling", "UntagResource"): targets.untag_resource,
    ("application-autoscaling", "ListTagsForResource"): targets.list_tags_for_resource,
    ("sts", "GetCallerIdentity"): identity.get_caller_identity,
    ("ecr", "GetAuthorizationToken"): sts.get_authorization_token,
    ("ecr", "CreateRepository"): ecr.REPOSITORIES.create,
    ("ecr", "DescribeRepositories"): ecr.describe_repositories,
    ("ecr", "DeleteRepository"): ecr.delete_repository,
    ("ecr", "ListImages"): ecr.list_images,
    ("ecr", "DescribeImages"): ecr.describe_images,
    ("ecr", "BatchGetImage"): ecr.batch_get_image,
    ("ecr", "BatchDeleteImage"): ecr.batch_delete_image,
    ("ecr", "TagResource"): ecr.REPOSITORIES.tag,
    ("ecr", "UntagResource"): ecr.REPOSITORIES.untag,
    ("ecr", "ListTagsForResource"): ecr.list_tags_for_resource,
    ("sns", "CreateTopic"): sns.create_topic,
    ("sns", "DeleteTopic"): sns.delete_topic,
    ("sns", "ListTopics"): sns.list_topics,
    ("sns", "GetTopicAttributes"): sns.get_topic_attributes,
    ("sns", "SetTopicAttributes"): sns.set_topic_attributes,
    ("sns", "Subscribe"): sns.subscribe,
    ("sns", "ConfirmSubscription"): sns.confirm_subscription,
    ("sns", "Unsubscribe"): sns.unsubscribe,
    ("sns", "ListSubscriptions"): sns.list_subscriptions,
    ("sns", "ListSubscriptionsByTopic"): sns.list_subscriptions,
    ("sns", "GetSubscriptionAttributes"): sns.get_subscription_attributes,
    ("sns", "SetSubscriptionAttributes"): sns.set_subscription_attributes,
    ("sns", "Publish"): sns.publish,
    ("sns", "PublishBatch"): sns.publish_batch,
    ("sns", "TagResource"): sns.TOPICS.tag,
    ("sns", "UntagResource"): sns.TOPICS.untag,
    ("sns", "ListTagsForResource"): sns.TOPICS.list_tags,
    ("sts", "AssumeRole"): sts.assume_role,
    ("sts", "GetSessionToken"): sts.get_session_token,
    ("iam", "CreateRole"): iam.ROLES.create,
    ("iam", "GetRole"): iam.ROLES.get,
    ("iam", "ListRoles"): iam.ROLES.list,
    ("iam", "UpdateRole"): iam.ROLES.update,
    ("iam", "UpdateRoleDescription"): iam.ROLES.update,
    ("iam", "UpdateAssumeRolePolicy"): iam.ROLES.update,
    ("iam", "PutRolePermissionsBoundary"): iam.ROLES.update,
    ("iam", "DeleteRolePermissionsBoundary"): iam.delete_permissions_boundary,
    ("iam", "DeleteRole"): iam.ROLES.delete,
    ("iam", "TagRole"): iam.ROLES.tag,
    ("iam", "UntagRole"): iam.ROLES.untag,
    ("iam", "ListRoleTags"): iam.ROLES.list_tags,
    ("iam", "PutRolePolicy"): iam.INLINE.put,
    ("iam", "GetRolePolicy"): iam.INLINE.get,
    ("iam", "ListRolePolicies"): iam.INLINE.list,
    ("iam", "DeleteRolePolicy"): iam.INLINE.delete,
    ("iam", "AttachRolePolicy"): iam.ATTACHED.put,
    ("iam", "ListAttachedRolePolicies"): iam.ATTACHED.list,
    ("iam", "DetachRolePolicy"): iam.ATTACHED.delete,
    ("iam", "ListInstanceProfilesForRole"): iam.list_instance_profiles_for_role,
    ("iam", "CreateServiceLinkedRole"): iam.create_service_linked_role,
    ("iam", "DeleteServiceLinkedRole"): iam.delete_service_linked_role,
    ("iam", "GetServiceLinkedRoleDeletionStatus"): iam.get_deletion_status,
    ("iam", "CreatePolicy"): iam.create_policy,
    ("iam", "GetPolicy"): iam.get_policy,
    ("iam", "ListPolicies"): iam.list_policies,
    ("iam", "DeletePolicy"): iam.POLICIES.delete,
    ("iam", "TagPolicy"): iam.POLICIES.tag,
    ("iam", "UntagPolicy"): iam.POLICIES.untag,
    ("iam", "ListPolicyTags"): iam.POLICIES.list_tags,
    ("iam", "CreatePolicyVersion"): iam.create_policy_version,
    ("iam", "GetPolicyVersion"): iam.get_policy_version,
    ("iam", "ListPolicyVersions"): iam.list_policy_versions,
    ("iam", "DeletePolicyVersion"): iam.delete_policy_version,
    ("iam", "SetDefaultPolicyVersion"): iam.set_default_policy_version,
    ("iam", "ListEntitiesForPolicy"): iam.list_entities_for_policy,
    ("iam", "GetUser"): identity.get_user,
    ("iam", "SimulatePrincipalPolicy"): identity.simulate_principal_policy,
    **STACK_OPERATIONS,
}
"""Handlers by boto3's service name and the name of the operation."""


def operations_of(*, checks_roles: bool) -> Mapping[tuple[str, str], Handler]:
    """Return the handlers; with `checks_roles`, those of SageMaker refuse a role that was not created."""
    if not checks_roles:
        return OPERATIONS

    def checked(handler: Handler, context: CallContext, params: Json) -> Json:
        iam.check_roles(context, params)
        return handler(context, params)

    return {
        (service, name): partial(checked, handler) if service == "sagemaker" else handler
        for (service, name), handler in OPERATIONS.items()
    }
