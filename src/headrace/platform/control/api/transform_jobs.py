"""
CreateTransformJob, DescribeTransformJob, ListTransformJobs, StopTransformJob.

They only write what is requested; the loop of `platform.jobs` reads it from the store and runs the jobs.
"""

from collections.abc import Iterator
from typing import Final

from headrace.platform.control.api.context import CallContext, check_environment, list_page, without
from headrace.platform.control.model.definitions import MODEL, containers_of, is_direct
from headrace.platform.control.model.endpoint import MAX_WORKERS
from headrace.platform.control.model.names import unreadable_message
from headrace.platform.control.model.transform_job import (
    ENDED,
    TRANSFORM_JOB,
    TransformJobRecord,
    TransformJobSpec,
    visible_job_state,
)
from headrace.platform.state.records import Json, Unreadable
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.json_path import JsonPathError, parse_json_path

MAX_PAYLOAD_MB: Final = 100
"""Also for all concurrent requests of an instance together. Source: API reference, CreateTransformJob."""
_FILTERABLE: Final = ("text/csv", "application/json", "application/jsonlines")
"""Source: developer guide, "Associate Prediction Results with Input Records"."""


def create_transform_job(context: CallContext, params: Json) -> Json:
    name = params["TransformJobName"]
    model = context.get(MODEL, params["ModelName"]).spec.deployed()
    _check_data(params)
    _check_processing(params)
    _check_resources(params, model)
    if context.store.find(TRANSFORM_JOB, name) is not None:
        raise AwsError(
            "ResourceInUse",
            "Job name must be unique within an AWS account and region, and a job with this name already exists "
            f"({context.arn(TRANSFORM_JOB, name)})",
        )
    spec = TransformJobSpec(members=without(params, "Tags"), model=model)
    return {"TransformJobArn": context.create(TRANSFORM_JOB, name, spec=spec, params=params)}


def describe_transform_job(context: CallContext, params: Json) -> Json:
    record = context.find(TRANSFORM_JOB, params["TransformJobName"])
    if isinstance(record, Unreadable):
        raise validation_error(unreadable_message(record))
    started: Json = {} if record.status.started_s is None else {"TransformStartTime": record.status.started_s}
    return {**record.spec.members, **without(_summary(context, record), "LastModifiedTime"), **started}


def list_transform_jobs(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        return (_summary(context, record) for record in context.store.each(TRANSFORM_JOB, selection))

    return list_page(read, params, word="TransformJob", member="TransformJobSummaries")


def stop_transform_job(context: CallContext, params: Json) -> Json:
    record = context.get(TRANSFORM_JOB, params["TransformJobName"])
    if record.status.state in ENDED:
        raise validation_error(
            f"The request was rejected because the transform job is in status {record.status.state}."
        )
    if record.spec.stop_requested_s is None:
        spec = TransformJobSpec(members=record.spec.members, model=record.spec.model, stop_requested_s=context.now_s)
        context.store.update(record, spec=spec)
    return {}


def _summary(context: CallContext, record: TransformJobRecord | Unreadable) -> Json:
    """Return the members that Describe and List share."""
    summary: Json = {
        "TransformJobName": record.name,
        "TransformJobArn": context.arn(TRANSFORM_JOB, record.name),
        "CreationTime": record.created_s,
        "LastModifiedTime": record.modified_s,
        "TransformJobStatus": visible_job_state(record),
    }
    if isinstance(record, Unreadable):
        return {**summary, "FailureReason": unreadable_message(record)}
    if record.status.ended_s is not None:
        summary["TransformEndTime"] = record.status.ended_s
    if record.status.failure_reason:
        summary["FailureReason"] = record.status.failure_reason
    return summary


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
    content_type = _media_type(source.get("ContentType", ""))
    if content_type not in _FILTERABLE:
        raise validation_error(
            f"DataProcessing needs a TransformInput.ContentType of {', '.join(_FILTERABLE)}; it is "
            f"{content_type or 'missing'}."
        )
    if source.get("SplitType", "None") not in ("None", "Line"):
        raise validation_error("DataProcessing works on records that SplitType None or Line separates.")
    accept = _media_type(output.get("Accept", ""))
    if joins and accept and ("csv" in accept) != ("csv" in content_type):
        raise validation_error(
            f"JoinSource Input needs outputs of the type of the inputs; Accept is {accept} and ContentType "
            f"{content_type}."
        )


def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


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
