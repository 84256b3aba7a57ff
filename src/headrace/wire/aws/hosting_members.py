"""The treatment of the members of SageMaker's operations on models, endpoints and components; see `member_table`."""

from typing import Final

from headrace.wire.aws.members import BY_HANDLER, Table, of

_NETWORK: Final = "Workers are processes of this machine, and use its network"
_METRICS: Final = "The page /metrics of each worker is read every ten seconds"
_FILES: Final = "give the S3Uri of the files themselves"


HOSTING: Final[Table] = {
    "AddTagsInput": of("ResourceArn Tags"),
    "AdditionalModelDataSource": of("ChannelName S3DataSource"),
    "Alarm": of("AlarmName"),
    "AsyncInferenceClientConfig": of("MaxConcurrentInvocationsPerInstance"),
    "AsyncInferenceConfig": of("ClientConfig OutputConfig"),
    "AsyncInferenceOutputConfig": of(
        "S3OutputPath S3FailurePath",
        kept={
            "KmsKeyId": "Objects are stored as the object storage encrypts them",
            "NotificationConfig": "There is no SNS: poll the OutputLocation and the FailureLocation",
        },
    ),
    "AutoRollbackConfig": of("Alarms"),
    "BlueGreenUpdatePolicy": of(
        "TrafficRoutingConfiguration TerminationWaitInSeconds MaximumExecutionTimeoutInSeconds"
    ),
    "CapacitySize": of("Type Value"),
    "ContainerDefinition": of(
        "Image Mode ModelDataUrl ModelDataSource AdditionalModelDataSources Environment",
        kept={
            "ContainerHostname": "A model has one container",
            "ImageConfig": "The image selects a server on this machine, and is not pulled with these settings",
            "ContainerMetricsConfig": _METRICS,
        },
        refused={
            "ModelPackageName": "Model packages are not read; create the model from its image and its files",
            "InferenceSpecificationName": "create the model from its image and its files",
            "MultiModelConfig": "create an endpoint for each model",
        },
    ),
    "CreateEndpointConfigInput": of(
        "EndpointConfigName ProductionVariants Tags AsyncInferenceConfig ExecutionRoleArn MetricsConfig",
        kept={
            "VpcConfig": _NETWORK,
            "EnableNetworkIsolation": "No network is isolated",
            "KmsKeyId": "Workers use the disks of this machine as they are",
            "CrossRegionTrafficConfig": "No requests come from inference routers of other Regions",
            "DataCaptureConfig": "It is described, and nothing is captured",
        },
        refused={
            "ShadowProductionVariants": "use a second endpoint, or ProductionVariants with weights",
            "ExplainerConfig": "leave it out",
        },
    ),
    "CreateEndpointInput": of("EndpointName EndpointConfigName DeploymentConfig Tags"),
    "CreateInferenceComponentInput": of(
        "InferenceComponentName EndpointName VariantName Specification Specifications RuntimeConfig Tags"
    ),
    "CreateModelInput": of(
        "ModelName PrimaryContainer Containers ExecutionRoleArn Tags",
        kept={
            "VpcConfig": _NETWORK,
            "EnableNetworkIsolation": "No network is isolated",
            "InferenceExecutionConfig": "A model has one container",
        },
    ),
    "DeleteEndpointConfigInput": of("EndpointConfigName"),
    "DeleteEndpointInput": of("EndpointName"),
    "DeleteInferenceComponentInput": of("InferenceComponentName"),
    "DeleteModelInput": of("ModelName"),
    "DeleteTagsInput": of("ResourceArn TagKeys"),
    "DeploymentConfig": of("BlueGreenUpdatePolicy RollingUpdatePolicy AutoRollbackConfiguration"),
    "DescribeEndpointConfigInput": of("EndpointConfigName"),
    "DescribeEndpointInput": of("EndpointName"),
    "DescribeInferenceComponentInput": of("InferenceComponentName"),
    "DescribeModelInput": of("ModelName"),
    "DesiredWeightAndCapacity": of(
        "VariantName DesiredWeight DesiredInstanceCount",
        refused={"ServerlessUpdateConfig": "a serverless variant has one worker that always runs"},
    ),
    "InferenceComponentCapacitySize": of("Type Value"),
    "InferenceComponentComputeResourceRequirements": of(
        "NumberOfCpuCoresRequired NumberOfAcceleratorDevicesRequired MinMemoryRequiredInMb MaxMemoryRequiredInMb",
        refused={"AcceleratorPartitionType": "use NumberOfAcceleratorDevicesRequired"},
    ),
    "InferenceComponentContainerSpecification": of(
        "Image ArtifactUrl Environment",
        kept={"ContainerMetricsConfig": _METRICS},
    ),
    "InferenceComponentDeploymentConfig": of("RollingUpdatePolicy AutoRollbackConfiguration"),
    "InferenceComponentRollingUpdatePolicy": of(
        "MaximumBatchSize WaitIntervalInSeconds MaximumExecutionTimeoutInSeconds RollbackMaximumBatchSize"
    ),
    "InferenceComponentRuntimeConfig": of("CopyCount"),
    "InferenceComponentSchedulingConfig": of(
        "PlacementStrategy",
        kept={"AvailabilityZoneBalance": "All instances are in one zone"},
    ),
    "InferenceComponentSpecification": of(
        "InstanceType ModelName Container StartupParameters ComputeResourceRequirements "
        "BaseInferenceComponentName SchedulingConfig",
        kept={"DataCacheConfig": "Model files are always cached on this machine"},
    ),
    "InferenceComponentStartupParameters": of(
        "ModelDataDownloadTimeoutInSeconds ContainerStartupHealthCheckTimeoutInSeconds"
    ),
    "InstancePool": of("InstanceType ModelNameOverride Priority"),
    "ListEndpointConfigsInput": of(
        "SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter"
    ),
    "ListEndpointsInput": of(
        "SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter "
        "LastModifiedTimeBefore LastModifiedTimeAfter StatusEquals"
    ),
    "ListInferenceComponentsInput": of(
        "SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter "
        "LastModifiedTimeBefore LastModifiedTimeAfter StatusEquals EndpointNameEquals VariantNameEquals"
    ),
    "ListModelsInput": of("SortBy SortOrder NextToken MaxResults NameContains CreationTimeBefore CreationTimeAfter"),
    "ListTagsInput": of("ResourceArn NextToken MaxResults"),
    "MetricsConfig": of(
        kept={
            "EnableEnhancedMetrics": "Metrics are published for each variant and component",
            "EnableDetailedObservability": _METRICS,
            "MetricPublishFrequencyInSeconds": "Metrics are published every ten seconds",
        },
    ),
    "ModelDataSource": of("S3DataSource"),
    "PrefixAwareRoutingConfig": of("PrefixLength ConcurrencyThreshold"),
    "ProductionVariant": of(
        "VariantName ModelName InitialInstanceCount InstanceType InstancePools "
        "VariantInstanceProvisionTimeoutInSeconds InitialVariantWeight ModelDataDownloadTimeoutInSeconds "
        "ContainerStartupHealthCheckTimeoutInSeconds ManagedInstanceScaling RoutingConfig",
        kept={
            "AcceleratorType": "The model runs on the CPU",
            "CoreDumpConfig": "Core dumps are not uploaded",
            "VolumeSizeInGB": "Workers share the disk of this machine",
            "EnableSSMAccess": "There are no instances to log in to",
            "InferenceAmiVersion": "Workers are processes of this machine",
            "CapacityReservationConfig": "Nothing is reserved",
            "ServerlessConfig": "The variant has one worker that always runs; its limits are not enforced",
        },
        refused={"AcceleratorPartitionLayouts": "partition the GPUs of this machine with nvidia-smi, or leave it out"},
    ),
    "ProductionVariantManagedInstanceScaling": of("Status MinInstanceCount MaxInstanceCount ScaleInPolicy"),
    "ProductionVariantManagedInstanceScalingScaleInPolicy": of("Strategy MaximumStepSize CooldownInMinutes"),
    "ProductionVariantRoutingConfig": of("RoutingStrategy PrefixAwareRoutingConfig"),
    "RollingUpdatePolicy": of(
        "MaximumBatchSize WaitIntervalInSeconds MaximumExecutionTimeoutInSeconds RollbackMaximumBatchSize"
    ),
    "S3ModelDataSource": of(
        "S3Uri S3DataType CompressionType",
        kept={
            "ModelAccessConfig": "Nothing is downloaded that needs the consent to a licence",
            "ETag": "Each worker reads the object as it is when it starts",
        },
        refused=dict.fromkeys(["HubAccessConfig", "ManifestS3Uri", "ManifestEtag"], _FILES),
    ),
    "Tag": of("Key Value"),
    "TrafficRoutingConfig": of("Type WaitIntervalInSeconds CanarySize LinearStepSize"),
    "UpdateEndpointInput": of(
        "EndpointName EndpointConfigName RetainAllVariantProperties ExcludeRetainedVariantProperties "
        "DeploymentConfig RetainDeploymentConfig"
    ),
    "UpdateEndpointWeightsAndCapacitiesInput": of("EndpointName DesiredWeightsAndCapacities"),
    "UpdateInferenceComponentInput": of(
        "InferenceComponentName Specification Specifications RuntimeConfig DeploymentConfig"
    ),
    "UpdateInferenceComponentRuntimeConfigInput": of("InferenceComponentName DesiredRuntimeConfig"),
    "VariantProperty": of("VariantPropertyType"),
}

INVOCATIONS: Final[Table] = {
    "InvokeEndpointAsyncInput": of(
        "EndpointName ContentType Accept CustomAttributes InferenceId InputLocation "
        "S3OutputPathExtension Filename RequestTTLSeconds InvocationTimeoutSeconds Body"
    ),
    "InvokeEndpointInput": of(
        "EndpointName Body ContentType Accept CustomAttributes TargetVariant InferenceId "
        "InferenceComponentName SessionId PrefixAwareId",
        refused=dict.fromkeys(["TargetModel", "TargetContainerHostname", "EnableExplanations"], BY_HANDLER),
    ),
    "InvokeEndpointWithResponseStreamInput": of(
        "EndpointName Body ContentType Accept CustomAttributes TargetVariant InferenceId "
        "InferenceComponentName SessionId PrefixAwareId",
        refused={"TargetContainerHostname": BY_HANDLER},
    ),
}
