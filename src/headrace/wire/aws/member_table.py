"""
The treatment of every member of every supported operation, by service and structure; see `members`.

A member that a later version of botocore adds fails a test until it is put into this table.
"""

from collections.abc import Mapping
from typing import Final

from headrace.wire.aws.hosting_members import HOSTING, INVOCATIONS
from headrace.wire.aws.members import BY_HANDLER, Table, of

_ACCOUNT: Final = "There is one account"
_ALLOWED: Final = "Everything is allowed"


_AUTOSCALING: Final[Table] = {
    "CustomizedMetricSpecification": of("MetricName Namespace Dimensions Statistic Unit Metrics"),
    "DeleteScalingPolicyRequest": of("PolicyName ServiceNamespace ResourceId ScalableDimension"),
    "DeleteScheduledActionRequest": of("ServiceNamespace ScheduledActionName ResourceId ScalableDimension"),
    "DeregisterScalableTargetRequest": of("ServiceNamespace ResourceId ScalableDimension"),
    "DescribeScalableTargetsRequest": of("ServiceNamespace ResourceIds ScalableDimension MaxResults NextToken"),
    "DescribeScalingActivitiesRequest": of(
        "ServiceNamespace ResourceId ScalableDimension MaxResults NextToken IncludeNotScaledActivities"
    ),
    "DescribeScalingPoliciesRequest": of(
        "PolicyNames ServiceNamespace ResourceId ScalableDimension MaxResults NextToken"
    ),
    "DescribeScheduledActionsRequest": of(
        "ScheduledActionNames ServiceNamespace ResourceId ScalableDimension MaxResults NextToken"
    ),
    "GetPredictiveScalingForecastRequest": of(
        refused=dict.fromkeys(
            ["ServiceNamespace", "ResourceId", "ScalableDimension", "PolicyName", "StartTime", "EndTime"], BY_HANDLER
        ),
    ),
    "ListTagsForResourceRequest": of("ResourceARN"),
    "MetricDimension": of("Name Value"),
    "PredefinedMetricSpecification": of(
        "PredefinedMetricType",
        refused={"ResourceLabel": BY_HANDLER},
    ),
    "PutScalingPolicyRequest": of(
        "PolicyName ServiceNamespace ResourceId ScalableDimension PolicyType "
        "StepScalingPolicyConfiguration TargetTrackingScalingPolicyConfiguration",
        refused={"PredictiveScalingPolicyConfiguration": BY_HANDLER},
    ),
    "PutScheduledActionRequest": of(
        "ServiceNamespace Schedule Timezone ScheduledActionName ResourceId ScalableDimension StartTime "
        "EndTime ScalableTargetAction"
    ),
    "RegisterScalableTargetRequest": of(
        "ServiceNamespace ResourceId ScalableDimension MinCapacity MaxCapacity SuspendedState Tags",
        kept={"RoleARN": "The service-linked role is used, as on AWS"},
    ),
    "ScalableTargetAction": of("MinCapacity MaxCapacity"),
    "StepAdjustment": of("MetricIntervalLowerBound MetricIntervalUpperBound ScalingAdjustment"),
    "StepScalingPolicyConfiguration": of(
        "AdjustmentType StepAdjustments MinAdjustmentMagnitude Cooldown MetricAggregationType"
    ),
    "SuspendedState": of("DynamicScalingInSuspended DynamicScalingOutSuspended ScheduledScalingSuspended"),
    "TagResourceRequest": of("ResourceARN Tags"),
    "TargetTrackingMetric": of("Dimensions MetricName Namespace"),
    "TargetTrackingMetricDataQuery": of("Expression Id Label MetricStat ReturnData"),
    "TargetTrackingMetricDimension": of("Name Value"),
    "TargetTrackingMetricStat": of("Metric Stat Unit"),
    "TargetTrackingScalingPolicyConfiguration": of(
        "TargetValue PredefinedMetricSpecification CustomizedMetricSpecification ScaleOutCooldown "
        "ScaleInCooldown DisableScaleIn"
    ),
    "UntagResourceRequest": of("ResourceARN TagKeys"),
}

_CLOUDWATCH: Final[Table] = {
    "DeleteAlarmsInput": of("AlarmNames"),
    "DescribeAlarmHistoryInput": of(
        "AlarmName AlarmTypes HistoryItemType StartDate EndDate MaxRecords NextToken ScanBy",
        refused={"AlarmContributorId": "alarms have no contributors"},
    ),
    "DescribeAlarmsForMetricInput": of("MetricName Namespace Statistic ExtendedStatistic Dimensions Period Unit"),
    "DescribeAlarmsInput": of(
        "AlarmNames AlarmNamePrefix AlarmTypes ChildrenOfAlarmName ParentsOfAlarmName StateValue "
        "ActionPrefix MaxRecords NextToken"
    ),
    "Dimension": of("Name Value"),
    "DimensionFilter": of("Name Value"),
    "DisableAlarmActionsInput": of("AlarmNames"),
    "EnableAlarmActionsInput": of("AlarmNames"),
    "EntityMetricData": of(
        "MetricData",
        kept={"Entity": "Metrics are not linked to entities"},
    ),
    "EvaluationWindow": of(
        "SlidingWindow",
        refused={"WallClockWindow": BY_HANDLER},
    ),
    "GetMetricDataInput": of("MetricDataQueries StartTime EndTime NextToken ScanBy MaxDatapoints LabelOptions"),
    "GetMetricStatisticsInput": of(
        "Namespace MetricName Dimensions StartTime EndTime Period Statistics ExtendedStatistics Unit"
    ),
    "LabelOptions": of(
        kept={"Timezone": "Labels are returned as they are given"},
    ),
    "ListMetricsInput": of(
        "Namespace MetricName Dimensions NextToken RecentlyActive",
        kept={"IncludeLinkedAccounts": _ACCOUNT, "OwningAccount": _ACCOUNT},
    ),
    "ListTagsForResourceInput": of("ResourceARN"),
    "Metric": of("Namespace MetricName Dimensions"),
    "MetricDataQuery": of(
        "Id MetricStat Expression Label ReturnData Period",
        kept={"AccountId": _ACCOUNT},
    ),
    "MetricDatum": of(
        "MetricName Dimensions Timestamp Value StatisticValues Values Counts Unit",
        kept={"StorageResolution": "Points are kept with a resolution of ten seconds"},
    ),
    "MetricStat": of("Metric Period Stat Unit"),
    "PutMetricAlarmInput": of(
        "AlarmName AlarmDescription ActionsEnabled OKActions AlarmActions InsufficientDataActions "
        "MetricName Namespace Statistic ExtendedStatistic Dimensions Period Unit EvaluationPeriods "
        "DatapointsToAlarm Threshold ComparisonOperator TreatMissingData Metrics Tags EvaluationWindow",
        kept={
            "EvaluateLowSampleCountPercentile": "An alarm on a percentile is evaluated with any number of samples",
            "ActionConfiguration": "Actions get no tags",
        },
        refused=dict.fromkeys(
            ["ThresholdMetricId", "EvaluationCriteria", "EvaluationInterval", "WarmUpConfiguration"], BY_HANDLER
        ),
    ),
    "PutMetricDataInput": of(
        "Namespace MetricData EntityMetricData",
        kept={"StrictEntityValidation": "Metrics are not linked to entities"},
    ),
    "SetAlarmStateInput": of("AlarmName StateValue StateReason StateReasonData"),
    "SlidingWindow": of(),
    "StatisticSet": of("SampleCount Sum Minimum Maximum"),
    "Tag": of("Key Value"),
    "TagResourceInput": of("ResourceARN Tags"),
    "UntagResourceInput": of("ResourceARN TagKeys"),
}

_IAM: Final[Table] = {
    "GetRoleRequest": of("RoleName"),
    "GetUserRequest": of("UserName"),
    "SimulatePrincipalPolicyRequest": of(
        "ActionNames ResourceArns MaxItems Marker",
        kept=dict.fromkeys(
            [
                "PolicySourceArn",
                "PolicyInputList",
                "PermissionsBoundaryPolicyInputList",
                "PolicyExclusionList",
                "ResourcePolicy",
                "ResourceOwner",
                "CallerArn",
                "ContextEntries",
                "ResourceHandlingOption",
            ],
            _ALLOWED,
        ),
    ),
}

_LOGS: Final[Table] = {
    "DeleteLogGroupRequest": of("logGroupName"),
    "DeleteLogStreamRequest": of("logGroupName logStreamName"),
    "DescribeLogGroupsRequest": of(
        "logGroupNamePrefix logGroupNamePattern nextToken limit logGroupClass logGroupIdentifiers",
        kept={"accountIdentifiers": _ACCOUNT, "includeLinkedAccounts": _ACCOUNT},
    ),
    "DescribeLogStreamsRequest": of(
        "logGroupName logGroupIdentifier logStreamNamePrefix orderBy descending nextToken limit"
    ),
    "FilterLogEventsRequest": of(
        "logGroupName logGroupIdentifier logStreamNames logStreamNamePrefix startTime endTime "
        "filterPattern nextToken limit startFromHead",
        kept={"unmask": "Nothing is masked", "interleaved": "Events of several streams are always interleaved"},
    ),
    "GetLogEventsRequest": of(
        "logGroupName logGroupIdentifier logStreamName startTime endTime nextToken limit startFromHead",
        kept={"unmask": "Nothing is masked"},
    ),
}

_STS: Final[Table] = {
    "GetCallerIdentityRequest": of(),
}

MEMBERS: Final[Mapping[str, Table]] = {
    "application-autoscaling": _AUTOSCALING,
    "cloudwatch": _CLOUDWATCH,
    "iam": _IAM,
    "logs": _LOGS,
    "sts": _STS,
    "sagemaker": HOSTING,
    "sagemaker-runtime": INVOCATIONS,
}
"""Services by boto3's names."""
