"""CreateTransformJob, DescribeTransformJob, ListTransformJobs, StopTransformJob."""

from typing import Final

from headrace.platform.control.api.context import CallContext, check_environment, without
from headrace.platform.control.api.jobs import JobCalls
from headrace.platform.control.model.definitions import MODEL, containers_of, is_direct, refuse_many_models
from headrace.platform.control.model.endpoint import MAX_WORKERS
from headrace.platform.control.model.transform_job import TRANSFORM_JOB, TransformJobSpec, media_type, output_type
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.json_path import JsonPathError, parse_json_path

MAX_PAYLOAD_MB: Final = 100
"""Also for all concurrent requests of an instance together. Source: API reference, CreateTransformJob."""
_FILTERABLE: Final = ("text/csv", "application/json", "application/jsonlines")
"""Source: developer guide, "Associate Prediction Results with Input Records"."""

TRANSFORM_JOBS: Final = JobCalls(
    kind=TRANSFORM_JOB,
    name_member="TransformJobName",
    list_member="TransformJobSummaries",
    times=("TransformStartTime", "TransformEndTime"),
    absent_code="ValidationException",
)


def create_transform_job(context: CallContext, params: Json) -> Json:
    model = context.get(MODEL, params["ModelName"]).spec.deployed()
    refuse_many_models(model, where="transform jobs")
    _check_data(params)
    _check_processing(params)
    _check_capture(params)
    _check_resources(params, model)
    spec = TransformJobSpec(members=without(params, "Tags"), model=model)
    return TRANSFORM_JOBS.create(context, params, spec=spec)


def _check_data(params: Json) -> None:
    kind = params["TransformInput"]["DataSource"]["S3DataSource"]["S3DataType"]
    if kind not in ("S3Prefix", "ManifestFile"):
        raise validation_error(f"S3DataType is {kind}; expected S3Prefix or ManifestFile for a transform job.")
    payload_mb = params.get("MaxPayloadInMB", 0)
    in_all_mb = payload_mb * max(1, params.get("MaxConcurrentTransforms", 1))
    if in_all_mb > MAX_PAYLOAD_MB:
        raise validation_error(
            f"MaxConcurrentTransforms * MaxPayloadInMB is {in_all_mb} MB; expected at most {MAX_PAYLOAD_MB} MB. "
            "Lower one of them."
        )


def _check_processing(params: Json) -> None:
    """Refuse filters and joins that cannot be done."""
    processing: Json = params.get("DataProcessing") or {}
    source, output = params["TransformInput"], params["TransformOutput"]
    for member in ("InputFilter", "OutputFilter"):
        try:
            parse_json_path(processing.get(member) or "$")
        except JsonPathError as error:
            raise validation_error(f"DataProcessing.{member}: {error}.") from None
    joins = processing.get("JoinSource", "None") == "Input"
    if not joins and all(processing.get(member, "$") in ("", "$") for member in ("InputFilter", "OutputFilter")):
        return
    content_type = media_type(source.get("ContentType", ""))
    if content_type not in _FILTERABLE:
        raise validation_error(
            f"DataProcessing needs a TransformInput.ContentType of {', '.join(_FILTERABLE)}; it is "
            f"{content_type or 'missing'}."
        )
    if source.get("SplitType", "None") not in ("None", "Line"):
        raise validation_error("DataProcessing works on records that SplitType None or Line separates.")
    accept = media_type(output.get("Accept", ""))
    if joins and accept and ("csv" in accept) != ("csv" in content_type):
        raise validation_error(
            f"JoinSource Input needs outputs of the type of the inputs; Accept is {accept} and ContentType "
            f"{content_type}."
        )


def _check_capture(params: Json) -> None:
    """Refuse inference ids in outputs that cannot have them."""
    asks_ids = (params.get("DataCaptureConfig") or {}).get("GenerateInferenceId", False)
    if asks_ids and not any(name in output_type(params) for name in ("csv", "json")):
        raise validation_error(
            "DataCaptureConfig.GenerateInferenceId needs outputs in CSV, JSON or JSON lines; TransformOutput.Accept, "
            f"or else TransformInput.ContentType, is {output_type(params) or 'missing'}."
        )


def _check_resources(params: Json, model: Json) -> None:
    """Refuse too many instances, a model without a pipeline, and containers with too large an environment."""
    resources = params["TransformResources"]
    if resources["InstanceCount"] > MAX_WORKERS:
        raise AwsError(
            "ResourceLimitExceeded",
            f"The account-level service limit '{resources['InstanceType']} for transform job usage' is {MAX_WORKERS} "
            f"Instances, with current utilization of 0 Instances and a request delta of {resources['InstanceCount']} "
            "Instances. Request fewer.",
        )
    if is_direct(model):
        raise validation_error(
            f"Model {params['ModelName']} has the InferenceExecutionConfig.Mode Direct; expected Serial. Records of a "
            "transform job do not name a container."
        )
    for container in containers_of(model):
        environment = {**(container.get("Environment") or {}), **params.get("Environment", {})}
        check_environment({"Environment": environment})
