"""Endpoints: revisions of their configuration and models, the progress of deployments, and their capacity."""

from collections.abc import Mapping
from typing import Final, Self, cast

import msgspec

from headrace.platform.control.model.definitions import container_names, is_direct
from headrace.platform.control.model.workload import (
    DOWNLOAD_TIMEOUT_S,
    HEALTH_TIMEOUT_S,
    DeployableSpec,
    DeployableStatus,
    DesiredCapacity,
    Revision,
    Serverless,
    State,
    Workload,
    is_updatable,
    ready_key,
    visible_state,
)
from headrace.platform.state.records import Json, Kind, Record, RecordPart
from headrace.platform.state.routes import AsyncOutput, Capture, PrefixRouting, RoutingStrategy
from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.members import MEMBERS, notices

MAX_WORKERS: Final = 100
"""Maximum workers of an endpoint: a mistyped count must not fill the machine with processes."""
PRODUCTION: Final = "ProductionVariants"
SHADOWS: Final = "ShadowProductionVariants"
_STRATEGIES: Final = frozenset({"LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"})


class EndpointRevision(Revision, frozen=True, kw_only=True, dict=True):
    """An endpoint's configuration and models, copied when the revision was requested; the endpoint outlives both."""

    config: Json
    """CreateEndpointConfig's members."""
    models: dict[str, Json]
    """CreateModel's members, by name."""
    capacities: dict[str, DesiredCapacity] = msgspec.field(default_factory=dict)
    """Weights and counts by variant, which UpdateEndpointWeightsAndCapacities changes."""

    @property
    def config_name(self) -> str:
        return str(self.config["EndpointConfigName"])

    def variant_config(self, variant: str) -> Json:
        return next(config for config in variant_configs(self.config) if config["VariantName"] == variant)

    @property
    def async_output(self) -> AsyncOutput | None:
        """`AsyncInferenceConfig`."""
        config = self.config.get("AsyncInferenceConfig")
        if config is None:
            return None
        output, client = config["OutputConfig"], config.get("ClientConfig") or {}
        return AsyncOutput(
            output_path=output.get("S3OutputPath", ""),
            failure_path=output.get("S3FailurePath"),
            max_concurrent_per_replica=int(client.get("MaxConcurrentInvocationsPerInstance", 4)),
        )

    @property
    def capture(self) -> Capture | None:
        """`DataCaptureConfig`, if it is enabled."""
        config = self.config.get("DataCaptureConfig")
        if config is None or not config.get("EnableCapture", True):
            return None
        modes = {option["CaptureMode"] for option in config["CaptureOptions"]}
        types = config.get("CaptureContentTypeHeader") or {}
        return Capture(
            destination=config["DestinationS3Uri"],
            percentage=int(config["InitialSamplingPercentage"]),
            takes_input=bool(modes & {"Input", "InputAndOutput"}),
            takes_output=bool(modes & {"Output", "InputAndOutput"}),
            csv_types=tuple(name.lower() for name in types.get("CsvContentTypes", ())),
            json_types=tuple(name.lower() for name in types.get("JsonContentTypes", ())),
        )

    def with_desired(self, desired: Mapping[str, DesiredCapacity]) -> Self:
        """Return the same revision with other weights and counts."""
        return msgspec.structs.replace(self, capacities=dict(desired))

    def _read_workloads(self) -> tuple[Workload, ...]:
        shadows = [config["VariantName"] for config in self.config.get(SHADOWS) or ()]
        return tuple(
            self._read_workload(config, is_shadow=config["VariantName"] in shadows)
            for config in variant_configs(self.config)
        )

    def _read_workload(self, config: Json, *, is_shadow: bool) -> Workload:
        model_name = model_name_of(config)
        model = self.models[model_name] if model_name is not None else None
        desired = self.capacities.get(config["VariantName"]) or initial_capacity(config)
        routing: Json = config.get("RoutingConfig") or {}
        serverless: Json | None = config.get("ServerlessConfig")
        strategy, prefix = routing.get("RoutingStrategy", "RANDOM"), routing.get("PrefixAwareRoutingConfig") or {}
        return Workload(
            variant=config["VariantName"],
            weight=desired.weight,
            count=desired.count,
            model=model,
            instance_type=config.get("InstanceType") or _first_pool(config).get("InstanceType", ""),
            strategy=cast("RoutingStrategy", strategy if strategy in _STRATEGIES else "PREFIX_AWARE"),
            prefix_routing=PrefixRouting(
                num_bytes=prefix.get("PrefixLength"), max_load=prefix.get("ConcurrencyThreshold")
            ),
            provision_timeout_s=config.get("VariantInstanceProvisionTimeoutInSeconds"),
            download_timeout_s=float(config.get("ModelDataDownloadTimeoutInSeconds", DOWNLOAD_TIMEOUT_S)),
            health_timeout_s=float(config.get("ContainerStartupHealthCheckTimeoutInSeconds", HEALTH_TIMEOUT_S)),
            max_memory_mb=None if serverless is None else float(serverless["MemorySizeInMB"]),
            serverless=None if serverless is None else _read_serverless(serverless),
            containers=container_names(model or {}),
            is_direct=is_direct(model or {}),
            is_shadow=is_shadow,
            managed_scaling=config.get("ManagedInstanceScaling") or {},
            notices=variant_notices(self.config, config, model),
        )


def _read_serverless(config: Json) -> Serverless:
    return Serverless(
        max_concurrency=int(config["MaxConcurrency"]),
        provisioned_concurrency=int(config.get("ProvisionedConcurrency", 0)),
    )


class HostInstance(RecordPart, frozen=True, kw_only=True):
    """A virtual instance of a variant that hosts inference components."""

    id: str
    """`i-0123456789abcdef0`"""
    idle_s: float | None = None
    """Time at which it became empty; None while it has copies."""
    num_copies: int = 0
    """Number of its copies at the last pass."""
    changed_s: float = 0.0
    """Time of the last change of its copies."""
    leaving_s: float | None = None
    """Time at which emptying it for removal began; None if it stays."""


class EndpointSpec(DeployableSpec[EndpointRevision], frozen=True, kw_only=True):
    """The desired state of an endpoint."""


class EndpointStatus(DeployableStatus[EndpointRevision], frozen=True, kw_only=True):
    placements: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Sentences about the GPUs that workers run on, by variant."""
    instances: dict[str, list[HostInstance]] = msgspec.field(default_factory=dict)
    """Instances for inference components, by variant."""


EndpointRecord = Record[EndpointSpec, EndpointStatus]


ENDPOINT: Final = Kind("endpoint", EndpointSpec, EndpointStatus, oldest=2)
JOB_ENDPOINT: Final = Kind("job-endpoint", EndpointSpec, EndpointStatus)
"""The workers of a running job: reconciled like an endpoint, which no operation on endpoints sees."""


def variant_configs(config: Json) -> list[Json]:
    """Return the production variants and the shadow variants of a configuration, whose names are unique."""
    return [*config[PRODUCTION], *(config.get(SHADOWS) or ())]


def initial_capacity(variant: Json) -> DesiredCapacity:
    """Return a variant's weight and count in its configuration; serverless variants begin with one worker."""
    count = variant.get("InitialInstanceCount", 1)
    return DesiredCapacity(weight=float(variant.get("InitialVariantWeight", 1.0)), count=int(count))


def model_name_of(variant: Json) -> str | None:
    """Return the name of a production variant's model; None for a host of inference components."""
    return _first_pool(variant).get("ModelNameOverride") or variant.get("ModelName")


def _first_pool(variant: Json) -> Json:
    """Return the first choice of a variant's `InstancePools`; empty if it has none."""
    pools: list[Json] = variant.get("InstancePools") or []
    return min(pools, key=lambda pool: pool["Priority"], default={})


def updatable_revision(record: EndpointRecord, arn: str) -> EndpointRevision:
    """Return the serving revision. Raises `AwsError` if the endpoint has failed, or is being updated."""
    progress = record.status.progress
    if is_updatable(record) and progress is not None and progress.stable is not None:
        return record.status.revisions[progress.stable]
    if visible_state(record) is State.FAILED:
        raise validation_error(f'Cannot update failed endpoint "{arn}". Delete it, and create it again.')
    raise validation_error(f'Cannot update in-progress endpoint "{arn}".')


def with_capacities(record: EndpointRecord, desired: Mapping[str, DesiredCapacity], *, arn: str) -> EndpointSpec:
    """
    Return an endpoint's spec with other weights and counts of all variants of the serving revision.

    Raises `AwsError`: the endpoint is being updated, has failed, or would have too many workers.
    """
    current = updatable_revision(record, arn)
    check_num_workers(desired)
    revision = msgspec.structs.replace(current.with_desired(desired), deployment=record.spec.revision.deployment)
    return EndpointSpec(generation=record.spec.generation + 1, revision=revision)


def check_num_workers(desired: Mapping[str, DesiredCapacity]) -> None:
    """Refuse more workers than an endpoint may have. Raises `AwsError`: ResourceLimitExceeded."""
    number = sum(capacity.count for capacity in desired.values())
    if number > MAX_WORKERS:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit 'Number of instances for an endpoint' is {MAX_WORKERS} Instances, "
            f"and {number} were requested. Request fewer.",
        )


def has_capacity(state: State) -> bool:
    """Return whether an endpoint in this state has workers or instances to count."""
    return state not in (State.CREATING, State.FAILED)


def variant_counts(record: EndpointRecord, revision: EndpointRevision, workload: Workload) -> tuple[int, int]:
    """Return the current and the desired number of a variant's instances."""
    desired = desired_workload(record, revision, workload)
    if not workload.is_host:
        return record.status.ready.get(ready_key(workload.variant, revision.number), 0), desired.count
    instances = record.status.instances.get(workload.variant, []) if has_capacity(visible_state(record)) else []
    num_staying = sum(instance.leaving_s is None for instance in instances)
    is_managed = workload.managed_scaling.get("Status") == "ENABLED"
    return len(instances), num_staying if is_managed and num_staying else desired.count


def desired_workload(record: EndpointRecord, revision: EndpointRevision, workload: Workload) -> Workload:
    """Return the workload with the weight and count that were requested last."""
    if record.spec.revision.number != revision.number:
        return workload
    return record.spec.revision.workload(workload.variant) or workload


def variant_notices(config: Json, variant: Json, model: Json | None) -> tuple[str, ...]:
    """Return sentences about members of the three Create requests that SageMaker acts on and Headrace does not."""
    config_alone = {name: value for name, value in config.items() if name not in (PRODUCTION, SHADOWS)}
    found = [
        *member_notices("CreateEndpointConfigInput", config_alone),
        *member_notices("CreateModelInput", model or {}),
        *member_notices("ProductionVariant", variant),
    ]
    if (variant.get("RoutingConfig") or {}).get("RoutingStrategy") == "KV_AWARE":
        found.append("KV_AWARE routing is done as PREFIX_AWARE.")
    return tuple(found)


def member_notices(shape: str, members: Json) -> tuple[str, ...]:
    """Return such sentences about the members of one shape."""
    return notices(members, services.shape("sagemaker", shape), MEMBERS["sagemaker"])
