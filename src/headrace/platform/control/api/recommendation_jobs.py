"""CreateInferenceRecommendationsJob and the other operations of inference recommendations jobs."""

from typing import Final

from headrace.platform.control.api.context import PAGE_SIZE, PAGES, CallContext, without
from headrace.platform.control.api.jobs import JobCalls
from headrace.platform.control.api.packages import package_containers
from headrace.platform.control.model.definitions import MODEL
from headrace.platform.control.model.jobs import RECOMMENDATIONS_JOB, AnyJob, ResolvedJobSpec
from headrace.platform.control.model.packages import MODEL_PACKAGE
from headrace.platform.control.model.recommendation import (
    DEFAULT_TYPES,
    MAX_TESTS,
    Limits,
    recommendations,
    scaling_policy,
    step_members,
    tests_of,
)
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError, validation_error

_TARGET_PERCENT: Final = 50
"""Source: API reference, GetScalingConfigurationRecommendation."""
_LISTED: Final = ("JobType", "RoleArn")
_FILTERS: Final = {"ModelNameEquals": "ModelName", "ModelPackageVersionArnEquals": "ModelPackageVersionArn"}
_NAMED: Final = tuple(_FILTERS.values())


def create_recommendations_job(context: CallContext, params: Json) -> Json:
    source: Json = params["InputConfig"]
    if sum(bool(source.get(name)) for name in _NAMED) != 1:
        raise validation_error(
            "InputConfig has both ModelName and ModelPackageVersionArn, or neither. Give one of them."
        )
    if params["JobType"] == "Advanced" and not source.get("EndpointConfigurations") and context.is_strict:
        raise validation_error("An Advanced job needs EndpointConfigurations.")
    plan = _plan(context, source)
    most = (source.get("ResourceLimit") or {}).get("MaxNumberOfTests", MAX_TESTS)
    if len(plan["tests"]) > most:
        raise validation_error(
            f"EndpointConfigurations make {len(plan['tests'])} tests; expected at most {most} (MaxNumberOfTests)."
        )
    try:
        Limits.of(params)
    except ValueError as error:
        raise validation_error(f"The Percentile is {error}; expected one such as P95.") from None
    spec = ResolvedJobSpec(members=without(params, "Tags"), resolved=plan)
    return RECOMMENDATIONS_JOBS.create(context, params, spec=spec)


def _plan(context: CallContext, source: Json) -> Json:
    """Return the model, the tests and the payload of a job."""
    config: Json = source.get("ContainerConfig") or {}
    registered: Json = {}
    if source.get("ModelName"):
        name = source["ModelName"]
        model = context.get(MODEL, name).spec.deployed()
    else:
        arn = source["ModelPackageVersionArn"]
        registered = context.get(MODEL_PACKAGE, context.name_of(MODEL_PACKAGE, arn)).spec.members
        name = "model-package"
        model = {"Containers": package_containers(context, {"ModelPackageName": arn})}
    specification: Json = registered.get("InferenceSpecification") or {}
    types = config.get("SupportedInstanceTypes") or specification.get("SupportedRealtimeInferenceInstanceTypes")
    payload: Json = config.get("PayloadConfig") or {}
    content_types = payload.get("SupportedContentTypes") or specification.get("SupportedContentTypes") or []
    return {
        "model_name": name,
        "model": model,
        "tests": tests_of(source, (types or DEFAULT_TYPES)[:MAX_TESTS]),
        "payload": payload.get("SamplePayloadUrl") or registered.get("SamplePayloadUrl") or "",
        "content_type": content_types[0] if content_types else "",
    }


def describe_recommendations_job(context: CallContext, params: Json) -> Json:
    return without(RECOMMENDATIONS_JOBS.describe(context, params), "Tags")


def list_recommendations_jobs(context: CallContext, params: Json) -> Json:
    """Answer ListInferenceRecommendationsJobs, of which a page may have fewer jobs than asked for."""
    answer = RECOMMENDATIONS_JOBS.list(context, params)
    rows = [
        row
        for row in answer["InferenceRecommendationsJobs"]
        if all(row.get(name) == params.get(filter_, row.get(name)) for filter_, name in _FILTERS.items())
    ]
    return {**answer, "InferenceRecommendationsJobs": rows}


def list_steps(context: CallContext, params: Json) -> Json:
    """Answer ListInferenceRecommendationsJobSteps: a benchmark for each test that has begun."""
    record = RECOMMENDATIONS_JOBS.find_readable(context, params)
    steps = [
        {
            "StepType": "BENCHMARK",
            "JobName": record.name,
            "Status": "FAILED" if step["reason"] else "COMPLETED",
            "InferenceBenchmark": step_members(record.name, step),
            "Number": step["number"],
        }
        for step in record.status.result.get("steps", [])
    ]
    page, token = PAGES.page(
        [step for step in steps if params.get("Status", step["Status"]) == step["Status"]],
        params,
        listing=f"steps of {record.name}",
        key=lambda step: (step["Number"],),
        size=params.get("MaxResults", PAGE_SIZE),
    )
    return {"Steps": page, **token}


def get_scaling_recommendation(context: CallContext, params: Json) -> Json:
    """Answer GetScalingConfigurationRecommendation for a recommendation, the best one if none is named."""
    record = RECOMMENDATIONS_JOBS.find_readable(context, {"JobName": params["InferenceRecommendationsJobName"]})
    found = recommendations(record.name, record.status.result.get("steps", []))
    wanted = params.get("RecommendationId")
    chosen = next((row for row in found if wanted in (None, row["RecommendationId"])), None)
    if chosen is None:
        raise AwsError("ResourceNotFound", f"The job {record.name} has no recommendation {wanted or 'yet'}.")
    objective: Json = params.get("ScalingPolicyObjective") or {}
    most = objective.get("MaxInvocationsPerMinute") or chosen["Metrics"]["MaxInvocations"]
    policy = scaling_policy(
        chosen["Metrics"],
        target_percent=params.get("TargetCpuUtilizationPerCore", _TARGET_PERCENT),
        min_per_minute=objective.get("MinInvocationsPerMinute", 0),
        max_per_minute=most,
    )
    return {"TargetCpuUtilizationPerCore": _TARGET_PERCENT, **params, **policy}


def _result(record: AnyJob) -> Json:
    found = recommendations(record.name, record.status.result.get("steps", []))
    return {"InferenceRecommendations": found[:MAX_TESTS]} if found else {}


def _summary(record: AnyJob) -> Json:
    members, source = record.spec.members, record.spec.members["InputConfig"]
    named = {name: source[name] for name in _NAMED if source.get(name)}
    kept = {name: members[name] for name in _LISTED}
    payload = record.spec.resolved["payload"]
    url = {"SamplePayloadUrl": payload} if payload else {}
    return {"JobDescription": members.get("JobDescription", ""), **kept, **named, **url}


RECOMMENDATIONS_JOBS: Final = JobCalls(
    kind=RECOMMENDATIONS_JOB,
    name_member="JobName",
    list_member="InferenceRecommendationsJobs",
    status_member="Status",
    times=("", "CompletionTime"),
    states={
        "InProgress": "IN_PROGRESS",
        "Completed": "COMPLETED",
        "Failed": "FAILED",
        "Stopping": "STOPPING",
        "Stopped": "STOPPED",
    },
    state_before_start="PENDING",
    result=_result,
    summary=_summary,
)
