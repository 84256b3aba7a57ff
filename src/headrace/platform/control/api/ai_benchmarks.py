"""AI workload configs and AI benchmark jobs, which measure an endpoint by `headrace bench`."""

from collections.abc import Iterator
from typing import Final

from headrace.platform.control.api.context import CallContext, list_page, without
from headrace.platform.control.api.jobs import JobCalls
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import DefinitionSpec
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.jobs import (
    AI_BENCHMARK_JOB,
    AI_WORKLOAD_CONFIG,
    ENDED,
    AnyJob,
    ResolvedJobSpec,
)
from headrace.platform.control.model.names import JOB_LOG_GROUPS
from headrace.platform.control.model.workload_spec import WorkloadInvalid, bench_arguments, read_workload
from headrace.platform.state.records import Json, Record
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError, validation_error


def create_workload_config(context: CallContext, params: Json) -> Json:
    name = params["AIWorkloadConfigName"]
    channels = (params.get("DatasetConfig") or {}).get("InputDataConfig") or []
    if len(channels) > 1:
        raise validation_error(f"DatasetConfig has {len(channels)} channels; expected at most one in Headrace.")
    if not params.get("AIWorkloadConfigs"):
        raise validation_error("AIWorkloadConfigs is missing: it says how many requests are sent.")
    try:
        read_workload(params["AIWorkloadConfigs"]["WorkloadSpec"].get("Inline", ""))
    except WorkloadInvalid as error:
        raise validation_error(str(error)) from None
    context.refuse_existing(AI_WORKLOAD_CONFIG, name)
    spec = DefinitionSpec(members=without(params, "Tags"))
    return {"AIWorkloadConfigArn": context.create(AI_WORKLOAD_CONFIG, name, spec=spec, params=params)}


def describe_workload_config(context: CallContext, params: Json) -> Json:
    record = _config(context, params["AIWorkloadConfigName"])
    tags = [{"Key": key, "Value": value} for key, value in sorted(record.tags.items())]
    arn = context.arn(AI_WORKLOAD_CONFIG, record.name)
    shown = {**record.spec.members, "AIWorkloadConfigArn": arn, "CreationTime": record.created_s}
    return {**shown, **({"Tags": tags} if tags else {})}


def list_workload_configs(context: CallContext, params: Json) -> Json:

    def read(selection: Selection) -> Iterator[Json]:
        for entry in context.store.entries(AI_WORKLOAD_CONFIG, selection):
            arn = context.arn(AI_WORKLOAD_CONFIG, entry.name)
            yield {"AIWorkloadConfigName": entry.name, "AIWorkloadConfigArn": arn, "CreationTime": entry.created_s}

    return list_page(read, params, word="AIWorkloadConfig")


def delete_workload_config(context: CallContext, params: Json) -> Json:
    """Answer DeleteAIWorkloadConfig; jobs have a copy, but one that a running job names is in use, as on AWS."""
    record = _config(context, params["AIWorkloadConfigName"])
    for job in context.store.each(AI_BENCHMARK_JOB):
        if isinstance(job, Record) and job.status.state not in ENDED and job.spec.resolved["config"] == record.name:
            raise AwsError("ResourceInUse", f"AI benchmark job {job.name} uses the workload config. Stop it first.")
    context.store.remove(record)
    return {"AIWorkloadConfigArn": context.arn(AI_WORKLOAD_CONFIG, record.name)}


def create_benchmark_job(context: CallContext, params: Json) -> Json:
    target = params["BenchmarkTarget"].get("Endpoint")
    if target is None:
        raise validation_error("BenchmarkTarget has no member; expected Endpoint.")
    endpoint = context.get(ENDPOINT, context.name_of(ENDPOINT, target["Identifier"]))
    components = target.get("InferenceComponents") or []
    if len(components) > 1:
        raise validation_error(f"{len(components)} InferenceComponents were given. Create a job for each.")
    path = f"/endpoints/{endpoint.name}"
    for each in components:
        component = context.get(INFERENCE_COMPONENT, context.name_of(INFERENCE_COMPONENT, each["Identifier"]))
        path = f"{path}/inference-components/{component.name}"
    config = _config(context, params["AIWorkloadConfigIdentifier"])
    members = config.spec.members
    workload = read_workload(members["AIWorkloadConfigs"]["WorkloadSpec"]["Inline"])
    channels = (members.get("DatasetConfig") or {}).get("InputDataConfig") or []
    plan = {
        "path": f"{path}/openai",
        "config": config.name,
        "arguments": bench_arguments(workload),
        "dataset": channels[0]["DataSource"].get("S3DataSource", {}).get("S3Uri", "") if channels else "",
        "output": f"{params['OutputConfig']['S3OutputLocation'].rstrip('/')}/{params['AIBenchmarkJobName']}",
    }
    spec = ResolvedJobSpec(members=without(params, "Tags"), resolved=plan)
    return AI_BENCHMARK_JOBS.create(context, params, spec=spec)


def describe_benchmark_job(context: CallContext, params: Json) -> Json:
    shown = AI_BENCHMARK_JOBS.describe(context, params)
    scope, group = context.aws_scope, JOB_LOG_GROUPS[AI_BENCHMARK_JOB]
    arn = f"arn:aws:logs:{scope.region}:{scope.account}:log-group:{group}"
    logs = [{"LogGroupArn": arn, "LogStreamName": f"{shown['AIBenchmarkJobName']}/execution"}]
    return {**shown, "OutputConfig": {**shown["OutputConfig"], "CloudWatchLogs": logs}}


def _result(record: AnyJob) -> Json:
    """Return where the results are: below a folder of the job, as jobs share locations."""
    return {"OutputConfig": {"S3OutputLocation": f"{record.spec.resolved['output']}/"}}


def _summary(record: AnyJob) -> Json:
    return {"AIWorkloadConfigName": record.spec.resolved["config"]}


def _config(context: CallContext, name_or_arn: str) -> Record[DefinitionSpec, object]:
    name = context.name_of(AI_WORKLOAD_CONFIG, name_or_arn)
    if context.store.find(AI_WORKLOAD_CONFIG, name) is None:
        arn = context.arn(AI_WORKLOAD_CONFIG, name)
        raise AwsError("ResourceNotFound", f'Could not find AI workload config "{arn}".')
    return context.get(AI_WORKLOAD_CONFIG, name)


AI_BENCHMARK_JOBS: Final = JobCalls(
    kind=AI_BENCHMARK_JOB,
    name_member="AIBenchmarkJobName",
    list_member="AIBenchmarkJobs",
    times=("StartTime", "EndTime"),
    result=_result,
    summary=_summary,
)
