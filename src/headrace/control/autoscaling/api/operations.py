"""The operations of Application Auto Scaling that Headrace supports."""

from collections.abc import Mapping

from headrace.control.api.context import Handler
from headrace.control.autoscaling.api import activities, policies, schedules, tags, targets

OPERATIONS: Mapping[str, Handler] = {
    "RegisterScalableTarget": targets.register_scalable_target,
    "DeregisterScalableTarget": targets.deregister_scalable_target,
    "DescribeScalableTargets": targets.describe_scalable_targets,
    "PutScalingPolicy": policies.put_scaling_policy,
    "DeleteScalingPolicy": policies.delete_scaling_policy,
    "DescribeScalingPolicies": policies.describe_scaling_policies,
    "GetPredictiveScalingForecast": policies.get_predictive_scaling_forecast,
    "PutScheduledAction": schedules.put_scheduled_action,
    "DeleteScheduledAction": schedules.delete_scheduled_action,
    "DescribeScheduledActions": schedules.describe_scheduled_actions,
    "DescribeScalingActivities": activities.describe_scaling_activities,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
}
