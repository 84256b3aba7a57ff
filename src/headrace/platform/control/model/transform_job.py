"""Batch transform jobs: the request, the state, the workers, and the parameters by which a job sends its input."""

from typing import Any, Final, Literal

from headrace.platform.control.model.endpoint import EndpointRevision, EndpointSpec
from headrace.platform.state.records import Json, Kind, Record, RecordPart, Unreadable
from headrace.platform.state.routes import INTERNAL

JobState = Literal["InProgress", "Completed", "Failed", "Stopping", "Stopped"]
ENDED: Final[frozenset[JobState]] = frozenset({"Completed", "Failed", "Stopped"})
VARIANT: Final = "AllTraffic"
DEFAULT_PAYLOAD_MB: Final = 6
"""Source: SageMaker API reference, CreateTransformJob, as all defaults here."""
DEFAULT_TIMEOUT_S: Final = 600
DEFAULT_RETRIES: Final = 3
_MIB: Final = 1 << 20
_MAX_BATCH_BYTES: Final = 256 * _MIB
"""Largest request with `MaxPayloadInMB` 0, which sets no limit: requests are held in memory."""


class TransformJobSpec(RecordPart, frozen=True, kw_only=True):
    members: Json
    """CreateTransformJob's members."""
    model: Json
    """CreateModel's members, copied when the job was created."""
    stop_requested_s: float | None = None


class ExecutionParameters(RecordPart, frozen=True, kw_only=True):
    """Rules for the requests of a job: from the call, else from the container, else the defaults."""

    max_concurrent: int
    """Requests in flight at each instance."""
    max_batch_bytes: int
    is_multi_record: bool


class TransformJobStatus(RecordPart, frozen=True, kw_only=True):
    state: JobState = "InProgress"
    parameters: ExecutionParameters | None = None
    """Fixed when the first request is sent, so that a job which goes on after a restart forms the same requests."""
    started_s: float | None = None
    ended_s: float | None = None
    failure_reason: str = ""


TransformJobRecord = Record[TransformJobSpec, TransformJobStatus]
TRANSFORM_JOB: Final = Kind("transform-job", TransformJobSpec, TransformJobStatus)


def visible_job_state(record: TransformJobRecord | Unreadable) -> JobState:
    """Return the state to show: a stop is visible before it has been acted on."""
    if isinstance(record, Unreadable):
        return "Failed"
    is_stopping = record.spec.stop_requested_s is not None and record.status.state not in ENDED
    return "Stopping" if is_stopping else record.status.state


def job_endpoint_name(job: str) -> str:
    """Return the name of a job's workers in records and routes, which no endpoint of a user can have."""
    return f"{INTERNAL}{job}"


def job_endpoint_spec(record: TransformJobRecord) -> EndpointSpec:
    """Return the workers of a job, as an endpoint with one variant."""
    members, model = record.spec.members, _with_environment(record.spec.model, _container_environment(record))
    name, resources = members["ModelName"], members["TransformResources"]
    variant = {
        "VariantName": VARIANT,
        "ModelName": name,
        "InstanceType": resources["InstanceType"],
        "InitialInstanceCount": resources["InstanceCount"],
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    config = {"EndpointConfigName": record.name, "ProductionVariants": [variant]}
    return EndpointSpec(generation=1, revision=EndpointRevision(number=1, config=config, models={name: model}))


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


def _with_environment(model: Json, environment: dict[str, str]) -> Json:
    """Return the model with further variables in its container."""

    def extended(container: Json) -> Json:
        return {**container, "Environment": {**(container.get("Environment") or {}), **environment}}

    if model.get("PrimaryContainer"):
        return {**model, "PrimaryContainer": extended(model["PrimaryContainer"])}
    return {**model, "Containers": [extended(container) for container in model.get("Containers") or []]}


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
