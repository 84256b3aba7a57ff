"""
CreateOptimizationJob and the other operations of optimization jobs.

What is asked for is resolved here to a plan: the files, the bits of a weight, and whether the weights are packed.
Source: SageMaker developer guide, "Inference optimization for Amazon SageMaker AI models".
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.platform.control.api.context import CallContext, without
from headrace.platform.control.api.definitions import check_eula
from headrace.platform.control.api.jobs import IN_CAPITALS, JobCalls
from headrace.platform.control.model.definitions import MODEL, container_of
from headrace.platform.control.model.jobs import OPTIMIZATION_JOB, AnyJob, ResolvedJobSpec
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import validation_error

QUANTIZERS: Final[Mapping[str, int]] = {"awq": 4, "fp8": 8, "smoothquant": 8}
"""Bits of a weight by `OPTION_QUANTIZE`, as AWS's image takes it; with 8 bits activations have 8 bits too."""
_TYPES: Final = {"ModelQuantizationConfig": "Quantization", "ModelCompilationConfig": "Compilation"}
_IMAGE: Final = "763104351884.dkr.ecr.{region}.amazonaws.com/djl-inference:0.36.0-lmi18.0.0-cu128"
"""The image that serves the result if the job names none."""
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
DEFAULT_RUNTIME_S: Final = 86_400
"""Source: SageMaker API reference, StoppingCondition."""


def create_optimization_job(context: CallContext, params: Json) -> Json:
    plan = {
        **_quantization(params),
        "packs": "Compilation" in _types(params),
        "source": _source(context, params),
        "image": _image(context, params),
        "environment": _environment(params, "ModelCompilationConfig", "ModelQuantizationConfig"),
        "max_runtime_s": params["StoppingCondition"].get("MaxRuntimeInSeconds", DEFAULT_RUNTIME_S),
    }
    if plan["bits"] is None and not plan["source"].startswith("s3://"):
        raise validation_error(
            f"The model is {plan['source']}, which has no files in S3, and is not quantized. Add a "
            "ModelQuantizationConfig."
        )
    spec = ResolvedJobSpec(members=without(params, "Tags"), resolved=plan)
    return OPTIMIZATION_JOBS.create(context, params, spec=spec)


def list_optimization_jobs(context: CallContext, params: Json) -> Json:
    """Answer ListOptimizationJobs, of which a page may have fewer jobs than asked for: types are in no column."""
    answer = OPTIMIZATION_JOBS.list(context, params)
    part = params.get("OptimizationContains", "").lower()
    rows = answer["OptimizationJobSummaries"]
    found = [row for row in rows if any(part in name.lower() for name in row.get("OptimizationTypes", ("",)))]
    return {**answer, "OptimizationJobSummaries": found}


def _types(members: Json) -> list[str]:
    """Return the techniques of a job. Raises `AwsError`: there is none, or one is given twice."""
    names = [name for config in members["OptimizationConfigs"] for name in config if name in _TYPES]
    if not names:
        raise validation_error(
            "OptimizationConfigs is empty. Give a ModelQuantizationConfig or ModelCompilationConfig."
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise validation_error(f"OptimizationConfigs has {twice} twice. Give it once.")
    return [_TYPES[name] for name in names]


def _configs(members: Json) -> Json:
    return {name: config or {} for each in members["OptimizationConfigs"] for name, config in each.items()}


def _environment(params: Json, *techniques: str) -> dict[str, str]:
    found: dict[str, str] = {**params.get("OptimizationEnvironment", {})}
    for technique in techniques:
        found |= (_configs(params).get(technique) or {}).get("OverrideEnvironment", {})
    return found


def _quantization(params: Json) -> Json:
    config = _configs(params).get("ModelQuantizationConfig")
    if config is None:
        return {"bits": None, "alpha": None}
    environment = _environment(params, "ModelQuantizationConfig")
    method = environment.get("OPTION_QUANTIZE", "")
    if method.lower() not in QUANTIZERS:
        raise validation_error(
            f"OPTION_QUANTIZE in OverrideEnvironment is {method or 'missing'}; expected one of {', '.join(QUANTIZERS)}."
        )
    bits, alpha = QUANTIZERS[method.lower()], environment.get("OPTION_SMOOTHQUANT_ALPHA")
    return {"bits": bits, "alpha": alpha if bits == 8 else None}


def _source(context: CallContext, params: Json) -> str:
    """Return the model to optimise: an S3 prefix, or what a `headrace` command calls a model."""
    source: Json = params["ModelSource"]
    if ("S3" in source) == ("SageMakerModel" in source):
        raise validation_error("ModelSource has both S3 and SageMakerModel, or neither. Give one of them.")
    if "S3" in source:
        data = source["S3"]
    else:
        container = container_of(context.get(MODEL, source["SageMakerModel"].get("ModelName", "")).spec.deployed())
        data = (container.get("ModelDataSource") or {}).get("S3DataSource") or {}
        named = (container.get("Environment") or {}).get("HF_MODEL_ID")
        if not data and named:
            return str(named)
    uri: str = data.get("S3Uri", "")
    check_eula(context, {"ModelDataSource": {"S3DataSource": data}})
    row = context.jumpstart.find_artifacts(uri)
    if row is not None:
        return row.model
    if not uri or uri.endswith(_ARCHIVES):
        raise validation_error(
            f"The model is {uri or 'not in S3'}; expected an S3Uri whose prefix has the unpacked files of a model."
        )
    return uri


def _image(context: CallContext, params: Json) -> str:
    """Return the image that the job recommends: the one that it names, else AWS's for large models."""
    named = next((config["Image"] for config in _configs(params).values() if config.get("Image")), None)
    return named or _IMAGE.format(region=context.aws_scope.region)


def _result(record: AnyJob) -> Json:
    if record.status.state != "Completed":
        return {}
    return {"OptimizationOutput": {"RecommendedInferenceImage": record.spec.resolved["image"]}}


def _summary(record: AnyJob) -> Json:
    members: dict[str, Any] = record.spec.members
    started: Json = {} if record.status.started_s is None else {"OptimizationStartTime": record.status.started_s}
    kept: Json = {name: members[name] for name in ("DeploymentInstanceType", "MaxInstanceCount") if name in members}
    return {**kept, **started, "OptimizationTypes": _types(members)}


OPTIMIZATION_JOBS: Final = JobCalls(
    kind=OPTIMIZATION_JOB,
    name_member="OptimizationJobName",
    list_member="OptimizationJobSummaries",
    times=("OptimizationStartTime", "OptimizationEndTime"),
    states=IN_CAPITALS,
    state_before_start="STARTING",
    result=_result,
    summary=_summary,
)
