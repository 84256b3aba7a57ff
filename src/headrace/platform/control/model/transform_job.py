"""Batch transform jobs: the request, the state, the workers, and the parameters by which a job sends its input."""

from typing import Any, Final

from headrace.platform.control.model.endpoint import EndpointRevision, EndpointSpec
from headrace.platform.control.model.jobs import JobSpec, JobStatus
from headrace.platform.state.records import Json, Kind, Record, RecordPart

VARIANT: Final = "AllTraffic"
DEFAULT_PAYLOAD_MB: Final = 6
"""Source: SageMaker API reference, CreateTransformJob, as all defaults here."""
DEFAULT_TIMEOUT_S: Final = 600
DEFAULT_RETRIES: Final = 3
_MIB: Final = 1 << 20
_MAX_BATCH_BYTES: Final = 256 * _MIB
"""Largest request with `MaxPayloadInMB` 0, which sets no limit: requests are held in memory."""


class TransformJobSpec(JobSpec, frozen=True, kw_only=True):
    model: Json
    """CreateModel's members, copied when the job was created."""


class ExecutionParameters(RecordPart, frozen=True, kw_only=True):
    """Rules for the requests of a job: from the call, else from the container, else the defaults."""

    max_concurrent: int
    """Requests in flight at each instance."""
    max_batch_bytes: int
    is_multi_record: bool


class TransformJobStatus(JobStatus, frozen=True, kw_only=True):
    parameters: ExecutionParameters | None = None
    """Fixed when the first request is sent, so that a job which goes on after a restart forms the same requests."""


TransformJobRecord = Record[TransformJobSpec, TransformJobStatus]
TRANSFORM_JOB: Final = Kind("transform-job", TransformJobSpec, TransformJobStatus)


def job_endpoint_spec(record: TransformJobRecord) -> EndpointSpec:
    """Return the workers of a job, as an endpoint with one variant."""
    resources = record.spec.members["TransformResources"]
    return workers_spec(
        record.name,
        record.spec.members["ModelName"],
        with_environment(record.spec.model, _container_environment(record)),
        instance_type=resources["InstanceType"],
        count=resources["InstanceCount"],
    )


def workers_spec(job: str, model_name: str, model: Json, *, instance_type: str, count: int = 1) -> EndpointSpec:
    """Return an endpoint with one variant of a model."""
    variant = {
        "VariantName": VARIANT,
        "ModelName": model_name,
        "InstanceType": instance_type,
        "InitialInstanceCount": count,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    config = {"EndpointConfigName": job, "ProductionVariants": [variant]}
    models = {model_name: model}
    return EndpointSpec(generation=1, revision=EndpointRevision(number=1, config=config, models=models))


def _container_environment(record: TransformJobRecord) -> dict[str, str]:
    """Return the variables of a job's containers. Source: developer guide, "Custom inference code with batch"."""
    members = record.spec.members
    environment = {"SAGEMAKER_BATCH": "true"}
    if members.get("MaxPayloadInMB"):
        environment["SAGEMAKER_MAX_PAYLOAD_IN_MB"] = str(members["MaxPayloadInMB"])
    if "BatchStrategy" in members:
        is_multi = members["BatchStrategy"] == "MultiRecord"
        environment["SAGEMAKER_BATCH_STRATEGY"] = "MULTI_RECORD" if is_multi else "SINGLE_RECORD"
    if members.get("MaxConcurrentTransforms"):
        environment["SAGEMAKER_MAX_CONCURRENT_TRANSFORMS"] = str(members["MaxConcurrentTransforms"])
    own: dict[str, str] = members.get("Environment", {})
    return environment | own


def with_environment(model: Json, environment: dict[str, str]) -> Json:
    """Return the model with further variables in its container."""

    def extended(container: Json) -> Json:
        return {**container, "Environment": {**(container.get("Environment") or {}), **environment}}

    if model.get("PrimaryContainer"):
        return {**model, "PrimaryContainer": extended(model["PrimaryContainer"])}
    return {**model, "Containers": [extended(container) for container in model.get("Containers") or []]}


def output_type(members: Json) -> str:
    """Return the media type of a job's outputs, in lower case: what it asks for, else that of its inputs."""
    accept = media_type(members["TransformOutput"].get("Accept", ""))
    return media_type(members["TransformInput"].get("ContentType", "")) if accept in ("", "*/*") else accept


def media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


def asks_container(members: Json) -> bool:
    """Return whether the container's `/execution-parameters` count for a job."""
    return not members.get("MaxConcurrentTransforms") or not {"BatchStrategy", "MaxPayloadInMB"} <= members.keys()


def resolve_parameters(members: Json, answer: Any) -> ExecutionParameters:
    """Return the parameters of a job; `answer` is what the container says, and anything if it says nothing usable."""
    said: Json = answer if isinstance(answer, dict) else {}
    payload_mb = members.get("MaxPayloadInMB", _whole(said.get("MaxPayloadInMB"), DEFAULT_PAYLOAD_MB))
    strategy = str(members.get("BatchStrategy") or said.get("BatchStrategy") or "MultiRecord")
    concurrent = members.get("MaxConcurrentTransforms") or _whole(said.get("MaxConcurrentTransforms"), 1)
    return ExecutionParameters(
        max_concurrent=max(1, concurrent),
        max_batch_bytes=min(payload_mb * _MIB or _MAX_BATCH_BYTES, _MAX_BATCH_BYTES),
        is_multi_record=strategy.replace("_", "").lower() == "multirecord",
    )


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
