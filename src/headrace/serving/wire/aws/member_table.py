"""
The treatment of every member of every supported operation, by service and structure; see `members`.

A member that a later version of botocore adds fails a test until it is put into this table.
"""

from collections.abc import Mapping
from typing import Final

from headrace.serving.wire.aws.members import BY_HANDLER, Table, table

_NETWORK: Final = "Workers are processes of this machine, and use its network"
_METRICS: Final = "The page /metrics of each worker is read every ten seconds"
_FILES: Final = "give the S3Uri of the files themselves"
_ACCOUNT: Final = "There is one account"
_ALLOWED: Final = "Everything is allowed"

HOSTING: Final[Table] = table(
    """
    AddTagsInput: ResourceArn Tags
    AdditionalModelDataSource: ChannelName S3DataSource
    Alarm: AlarmName
    AsyncInferenceClientConfig: MaxConcurrentInvocationsPerInstance
    AsyncInferenceConfig: ClientConfig OutputConfig
    AsyncInferenceOutputConfig: S3OutputPath S3FailurePath
    AutoRollbackConfig: Alarms
    BlueGreenUpdatePolicy: TrafficRoutingConfiguration TerminationWaitInSeconds MaximumExecutionTimeoutInSeconds
    CapacitySize: Type Value
    ContainerDefinition: Image Mode ModelDataUrl ModelDataSource AdditionalModelDataSources Environment
    CreateEndpointConfigInput: EndpointConfigName ProductionVariants Tags AsyncInferenceConfig ExecutionRoleArn
        MetricsConfig
    CreateEndpointInput: EndpointName EndpointConfigName DeploymentConfig Tags
    CreateInferenceComponentInput: InferenceComponentName EndpointName VariantName Specification Specifications
        RuntimeConfig Tags
    CreateModelInput: ModelName PrimaryContainer Containers ExecutionRoleArn Tags
    DeleteEndpointConfigInput: EndpointConfigName
    DeleteEndpointInput: EndpointName
    DeleteInferenceComponentInput: InferenceComponentName
    DeleteModelInput: ModelName
    DeleteTagsInput: ResourceArn TagKeys
    DeploymentConfig: BlueGreenUpdatePolicy RollingUpdatePolicy AutoRollbackConfiguration
    DescribeEndpointConfigInput: EndpointConfigName
    DescribeEndpointInput: EndpointName
    DescribeInferenceComponentInput: InferenceComponentName
    DescribeModelInput: ModelName
    DesiredWeightAndCapacity: VariantName DesiredWeight DesiredInstanceCount
    InferenceComponentCapacitySize: Type Value
    InferenceComponentComputeResourceRequirements: NumberOfCpuCoresRequired NumberOfAcceleratorDevicesRequired
        MinMemoryRequiredInMb MaxMemoryRequiredInMb
    InferenceComponentContainerSpecification: Image ArtifactUrl Environment
    InferenceComponentDeploymentConfig: RollingUpdatePolicy AutoRollbackConfiguration
    InferenceComponentRollingUpdatePolicy: MaximumBatchSize WaitIntervalInSeconds MaximumExecutionTimeoutInSeconds
        RollbackMaximumBatchSize
    InferenceComponentRuntimeConfig: CopyCount
    InferenceComponentSchedulingConfig: PlacementStrategy
    InferenceComponentSpecification: InstanceType ModelName Container StartupParameters ComputeResourceRequirements
        BaseInferenceComponentName SchedulingConfig
    InferenceComponentStartupParameters: ModelDataDownloadTimeoutInSeconds ContainerStartupHealthCheckTimeoutInSeconds
    InstancePool: InstanceType ModelNameOverride Priority
    ListEndpointConfigsInput: SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter
    ListEndpointsInput: SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter
        LastModifiedTimeBefore LastModifiedTimeAfter StatusEquals
    ListInferenceComponentsInput: SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore
        CreationTimeAfter LastModifiedTimeBefore LastModifiedTimeAfter StatusEquals EndpointNameEquals VariantNameEquals
    ListModelsInput: SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter
    ListTagsInput: ResourceArn NextToken MaxResults
    MetricsConfig:
    ModelDataSource: S3DataSource
    PrefixAwareRoutingConfig: PrefixLength ConcurrencyThreshold
    ProductionVariant: VariantName ModelName InitialInstanceCount InstanceType InstancePools
        VariantInstanceProvisionTimeoutInSeconds InitialVariantWeight ModelDataDownloadTimeoutInSeconds
        ContainerStartupHealthCheckTimeoutInSeconds ManagedInstanceScaling RoutingConfig
    ProductionVariantManagedInstanceScaling: Status MinInstanceCount MaxInstanceCount ScaleInPolicy
    ProductionVariantManagedInstanceScalingScaleInPolicy: Strategy MaximumStepSize CooldownInMinutes
    ProductionVariantRoutingConfig: RoutingStrategy PrefixAwareRoutingConfig
    RollingUpdatePolicy: MaximumBatchSize WaitIntervalInSeconds MaximumExecutionTimeoutInSeconds
        RollbackMaximumBatchSize
    S3ModelDataSource: S3Uri S3DataType CompressionType
    Tag: Key Value
    TrafficRoutingConfig: Type WaitIntervalInSeconds CanarySize LinearStepSize
    UpdateEndpointInput: EndpointName EndpointConfigName RetainAllVariantProperties ExcludeRetainedVariantProperties
        DeploymentConfig RetainDeploymentConfig
    UpdateEndpointWeightsAndCapacitiesInput: EndpointName DesiredWeightsAndCapacities
    UpdateInferenceComponentInput: InferenceComponentName Specification Specifications RuntimeConfig DeploymentConfig
    UpdateInferenceComponentRuntimeConfigInput: InferenceComponentName DesiredRuntimeConfig
    VariantProperty: VariantPropertyType
    """,
    kept={
        "AsyncInferenceOutputConfig: KmsKeyId": "Objects are stored as the object storage encrypts them",
        "AsyncInferenceOutputConfig: NotificationConfig": (
            "There is no SNS: poll the OutputLocation and the FailureLocation"
        ),
        "ContainerDefinition: ContainerHostname": "A model has one container",
        "ContainerDefinition: ImageConfig": (
            "The image selects a server on this machine, and is not pulled with these settings"
        ),
        "ContainerDefinition: ContainerMetricsConfig": _METRICS,
        "CreateEndpointConfigInput: VpcConfig": _NETWORK,
        "CreateEndpointConfigInput: EnableNetworkIsolation": "No network is isolated",
        "CreateEndpointConfigInput: KmsKeyId": "Workers use the disks of this machine as they are",
        "CreateEndpointConfigInput: CrossRegionTrafficConfig": (
            "No requests come from inference routers of other Regions"
        ),
        "CreateEndpointConfigInput: DataCaptureConfig": "It is described, and nothing is captured",
        "CreateModelInput: VpcConfig": _NETWORK,
        "CreateModelInput: EnableNetworkIsolation": "No network is isolated",
        "CreateModelInput: InferenceExecutionConfig": "A model has one container",
        "InferenceComponentContainerSpecification: ContainerMetricsConfig": _METRICS,
        "InferenceComponentSchedulingConfig: AvailabilityZoneBalance": "All instances are in one zone",
        "InferenceComponentSpecification: DataCacheConfig": "Model files are always cached on this machine",
        "MetricsConfig: EnableEnhancedMetrics": "Metrics are published for each variant and component",
        "MetricsConfig: EnableDetailedObservability": _METRICS,
        "MetricsConfig: MetricPublishFrequencyInSeconds": "Metrics are published every ten seconds",
        "ProductionVariant: AcceleratorType": "The model runs on the CPU",
        "ProductionVariant: CoreDumpConfig": "Core dumps are not uploaded",
        "ProductionVariant: VolumeSizeInGB": "Workers share the disk of this machine",
        "ProductionVariant: EnableSSMAccess": "There are no instances to log in to",
        "ProductionVariant: InferenceAmiVersion": "Workers are processes of this machine",
        "ProductionVariant: CapacityReservationConfig": "Nothing is reserved",
        "ProductionVariant: ServerlessConfig": (
            "The variant has one worker that always runs; its limits are not enforced"
        ),
        "S3ModelDataSource: ModelAccessConfig": "Nothing is downloaded that needs the consent to a licence",
        "S3ModelDataSource: ETag": "Each worker reads the object as it is when it starts",
    },
    refused={
        "ContainerDefinition: ModelPackageName": (
            "Model packages are not read; create the model from its image and its files"
        ),
        "ContainerDefinition: InferenceSpecificationName": "create the model from its image and its files",
        "ContainerDefinition: MultiModelConfig": "create an endpoint for each model",
        "CreateEndpointConfigInput: ShadowProductionVariants": (
            "use a second endpoint, or ProductionVariants with weights"
        ),
        "CreateEndpointConfigInput: ExplainerConfig": "leave it out",
        "DesiredWeightAndCapacity: ServerlessUpdateConfig": "a serverless variant has one worker that always runs",
        "InferenceComponentComputeResourceRequirements: AcceleratorPartitionType": (
            "use NumberOfAcceleratorDevicesRequired"
        ),
        "ProductionVariant: AcceleratorPartitionLayouts": (
            "partition the GPUs of this machine with nvidia-smi, or leave it out"
        ),
        "S3ModelDataSource: HubAccessConfig ManifestS3Uri ManifestEtag": _FILES,
    },
)

INVOCATIONS: Final[Table] = table(
    """
    InvokeEndpointAsyncInput: EndpointName ContentType Accept CustomAttributes InferenceId InputLocation
        S3OutputPathExtension Filename RequestTTLSeconds InvocationTimeoutSeconds Body
    InvokeEndpointInput: EndpointName Body ContentType Accept CustomAttributes TargetVariant InferenceId
        InferenceComponentName SessionId PrefixAwareId
    InvokeEndpointWithResponseStreamInput: EndpointName Body ContentType Accept CustomAttributes TargetVariant
        InferenceId InferenceComponentName SessionId PrefixAwareId
    """,
    refused={
        "InvokeEndpointInput: TargetModel TargetContainerHostname EnableExplanations": BY_HANDLER,
        "InvokeEndpointWithResponseStreamInput: TargetContainerHostname": BY_HANDLER,
    },
)

_AUTOSCALING: Final[Table] = table(
    """
    CustomizedMetricSpecification: MetricName Namespace Dimensions Statistic Unit Metrics
    DeleteScalingPolicyRequest: PolicyName ServiceNamespace ResourceId ScalableDimension
    DeleteScheduledActionRequest: ServiceNamespace ScheduledActionName ResourceId ScalableDimension
    DeregisterScalableTargetRequest: ServiceNamespace ResourceId ScalableDimension
    DescribeScalableTargetsRequest: ServiceNamespace ResourceIds ScalableDimension MaxResults NextToken
    DescribeScalingActivitiesRequest: ServiceNamespace ResourceId ScalableDimension MaxResults NextToken
        IncludeNotScaledActivities
    DescribeScalingPoliciesRequest: PolicyNames ServiceNamespace ResourceId ScalableDimension MaxResults NextToken
    DescribeScheduledActionsRequest: ScheduledActionNames ServiceNamespace ResourceId ScalableDimension MaxResults
        NextToken
    GetPredictiveScalingForecastRequest:
    ListTagsForResourceRequest: ResourceARN
    MetricDimension: Name Value
    PredefinedMetricSpecification: PredefinedMetricType
    PutScalingPolicyRequest: PolicyName ServiceNamespace ResourceId ScalableDimension PolicyType
        StepScalingPolicyConfiguration TargetTrackingScalingPolicyConfiguration
    PutScheduledActionRequest: ServiceNamespace Schedule Timezone ScheduledActionName ResourceId ScalableDimension
        StartTime EndTime ScalableTargetAction
    RegisterScalableTargetRequest: ServiceNamespace ResourceId ScalableDimension MinCapacity MaxCapacity SuspendedState
        Tags
    ScalableTargetAction: MinCapacity MaxCapacity
    StepAdjustment: MetricIntervalLowerBound MetricIntervalUpperBound ScalingAdjustment
    StepScalingPolicyConfiguration: AdjustmentType StepAdjustments MinAdjustmentMagnitude Cooldown MetricAggregationType
    SuspendedState: DynamicScalingInSuspended DynamicScalingOutSuspended ScheduledScalingSuspended
    TagResourceRequest: ResourceARN Tags
    TargetTrackingMetric: Dimensions MetricName Namespace
    TargetTrackingMetricDataQuery: Expression Id Label MetricStat ReturnData
    TargetTrackingMetricDimension: Name Value
    TargetTrackingMetricStat: Metric Stat Unit
    TargetTrackingScalingPolicyConfiguration: TargetValue PredefinedMetricSpecification CustomizedMetricSpecification
        ScaleOutCooldown ScaleInCooldown DisableScaleIn
    UntagResourceRequest: ResourceARN TagKeys
    """,
    kept={
        "RegisterScalableTargetRequest: RoleARN": "The service-linked role is used, as on AWS",
    },
    refused={
        "GetPredictiveScalingForecastRequest: ServiceNamespace ResourceId ScalableDimension PolicyName "
        "StartTime EndTime": BY_HANDLER,
        "PredefinedMetricSpecification: ResourceLabel": BY_HANDLER,
        "PutScalingPolicyRequest: PredictiveScalingPolicyConfiguration": BY_HANDLER,
    },
)

_CLOUDWATCH: Final[Table] = table(
    """
    DeleteAlarmsInput: AlarmNames
    DescribeAlarmHistoryInput: AlarmName AlarmTypes HistoryItemType StartDate EndDate MaxRecords NextToken ScanBy
    DescribeAlarmsForMetricInput: MetricName Namespace Statistic ExtendedStatistic Dimensions Period Unit
    DescribeAlarmsInput: AlarmNames AlarmNamePrefix AlarmTypes ChildrenOfAlarmName ParentsOfAlarmName StateValue
        ActionPrefix MaxRecords NextToken
    Dimension: Name Value
    DimensionFilter: Name Value
    DisableAlarmActionsInput: AlarmNames
    EnableAlarmActionsInput: AlarmNames
    EntityMetricData: MetricData
    EvaluationWindow: SlidingWindow
    GetMetricDataInput: MetricDataQueries StartTime EndTime NextToken ScanBy MaxDatapoints LabelOptions
    GetMetricStatisticsInput: Namespace MetricName Dimensions StartTime EndTime Period Statistics ExtendedStatistics
        Unit
    LabelOptions:
    ListMetricsInput: Namespace MetricName Dimensions NextToken RecentlyActive
    ListTagsForResourceInput: ResourceARN
    Metric: Namespace MetricName Dimensions
    MetricDataQuery: Id MetricStat Expression Label ReturnData Period
    MetricDatum: MetricName Dimensions Timestamp Value StatisticValues Values Counts Unit
    MetricStat: Metric Period Stat Unit
    PutMetricAlarmInput: AlarmName AlarmDescription ActionsEnabled OKActions AlarmActions InsufficientDataActions
        MetricName Namespace Statistic ExtendedStatistic Dimensions Period Unit EvaluationPeriods DatapointsToAlarm
        Threshold ComparisonOperator TreatMissingData Metrics Tags EvaluationWindow
    PutMetricDataInput: Namespace MetricData EntityMetricData
    SetAlarmStateInput: AlarmName StateValue StateReason StateReasonData
    SlidingWindow:
    StatisticSet: SampleCount Sum Minimum Maximum
    Tag: Key Value
    TagResourceInput: ResourceARN Tags
    UntagResourceInput: ResourceARN TagKeys
    """,
    kept={
        "EntityMetricData: Entity": "Metrics are not linked to entities",
        "LabelOptions: Timezone": "Labels are returned as they are given",
        "ListMetricsInput: IncludeLinkedAccounts OwningAccount": _ACCOUNT,
        "MetricDataQuery: AccountId": _ACCOUNT,
        "MetricDatum: StorageResolution": "Points are kept with a resolution of ten seconds",
        "PutMetricAlarmInput: EvaluateLowSampleCountPercentile": (
            "An alarm on a percentile is evaluated with any number of samples"
        ),
        "PutMetricAlarmInput: ActionConfiguration": "Actions get no tags",
        "PutMetricDataInput: StrictEntityValidation": "Metrics are not linked to entities",
    },
    refused={
        "DescribeAlarmHistoryInput: AlarmContributorId": "alarms have no contributors",
        "EvaluationWindow: WallClockWindow": BY_HANDLER,
        "PutMetricAlarmInput: ThresholdMetricId EvaluationCriteria EvaluationInterval WarmUpConfiguration": BY_HANDLER,
    },
)

_IAM: Final[Table] = table(
    """
    GetRoleRequest: RoleName
    GetUserRequest: UserName
    SimulatePrincipalPolicyRequest: ActionNames ResourceArns MaxItems Marker
    """,
    kept={
        "SimulatePrincipalPolicyRequest: PolicySourceArn PolicyInputList PermissionsBoundaryPolicyInputList "
        "PolicyExclusionList ResourcePolicy ResourceOwner CallerArn ContextEntries ResourceHandlingOption": _ALLOWED,
    },
)

_LOGS: Final[Table] = table(
    """
    DeleteLogGroupRequest: logGroupName
    DeleteLogStreamRequest: logGroupName logStreamName
    DescribeLogGroupsRequest: logGroupNamePrefix logGroupNamePattern nextToken limit logGroupClass logGroupIdentifiers
    DescribeLogStreamsRequest: logGroupName logGroupIdentifier logStreamNamePrefix orderBy descending nextToken limit
    FilterLogEventsRequest: logGroupName logGroupIdentifier logStreamNames logStreamNamePrefix startTime endTime
        filterPattern nextToken limit startFromHead
    GetLogEventsRequest: logGroupName logGroupIdentifier logStreamName startTime endTime nextToken limit startFromHead
    """,
    kept={
        "DescribeLogGroupsRequest: accountIdentifiers includeLinkedAccounts": _ACCOUNT,
        "FilterLogEventsRequest: unmask": "Nothing is masked",
        "FilterLogEventsRequest: interleaved": "Events of several streams are always interleaved",
        "GetLogEventsRequest: unmask": "Nothing is masked",
    },
)

MEMBERS: Final[Mapping[str, Table]] = {
    "application-autoscaling": _AUTOSCALING,
    "cloudwatch": _CLOUDWATCH,
    "iam": _IAM,
    "logs": _LOGS,
    "sts": table("GetCallerIdentityRequest:"),
    "sagemaker": HOSTING,
    "sagemaker-runtime": INVOCATIONS,
}
"""Services by boto3's names."""
