"""
Names of resources as AWS forms them: ARNs, log groups and log streams.

Names in ARNs are in lower case, as on AWS; the lookup of names therefore ignores case.
"""

import re
import secrets

from headrace.platform.control.model.cards import MODEL_CARD
from headrace.platform.control.model.component import INFERENCE_COMPONENT
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL
from headrace.platform.control.model.endpoint import ENDPOINT, JOB_ENDPOINT
from headrace.platform.control.model.experiment import INFERENCE_EXPERIMENT
from headrace.platform.control.model.jobs import (
    AI_BENCHMARK_JOB,
    AI_WORKLOAD_CONFIG,
    OPTIMIZATION_JOB,
    RECOMMENDATIONS_JOB,
)
from headrace.platform.control.model.packages import MODEL_PACKAGE, MODEL_PACKAGE_GROUP
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.state.records import AnyKind, Unreadable
from headrace.serving.wire.aws.scope import AwsScope, partition_of

ARN_TYPES: dict[AnyKind, str] = {
    MODEL: "model",
    ENDPOINT_CONFIG: "endpoint-config",
    ENDPOINT: "endpoint",
    INFERENCE_COMPONENT: "inference-component",
    MODEL_CARD: "model-card",
    MODEL_PACKAGE: "model-package",
    MODEL_PACKAGE_GROUP: "model-package-group",
    TRANSFORM_JOB: "transform-job",
    OPTIMIZATION_JOB: "optimization-job",
    RECOMMENDATIONS_JOB: "inference-recommendations-job",
    AI_BENCHMARK_JOB: "ai-benchmark-job",
    AI_WORKLOAD_CONFIG: "ai-workload-config",
    INFERENCE_EXPERIMENT: "inference-experiment",
}
"""The resource type in an ARN."""
TITLES: dict[AnyKind, str] = {
    MODEL: "model",
    ENDPOINT_CONFIG: "endpoint configuration",
    ENDPOINT: "endpoint",
    INFERENCE_COMPONENT: "inference component",
    MODEL_CARD: "model card",
    MODEL_PACKAGE: "model package",
    MODEL_PACKAGE_GROUP: "model package group",
    JOB_ENDPOINT: "transform job",
    TRANSFORM_JOB: "transform job",
    OPTIMIZATION_JOB: "optimization job",
    RECOMMENDATIONS_JOB: "inference recommendations job",
    AI_BENCHMARK_JOB: "AI benchmark job",
    AI_WORKLOAD_CONFIG: "AI workload config",
    INFERENCE_EXPERIMENT: "inference experiment",
}
"""Resource names in AWS's messages."""
ABSENT: dict[AnyKind, str] = {
    MODEL_PACKAGE: "ModelPackage {arn} does not exist.",
    MODEL_PACKAGE_GROUP: "ModelPackageGroup {arn} does not exist.",
}
"""AWS's messages for a resource that does not exist; for all other kinds "Could not find ..."."""
_JOB_PRESENT = (
    "ResourceInUse",
    "Job name must be unique within an AWS account and region, and a job with this name already exists ({arn})",
)
PRESENT: dict[AnyKind, tuple[str, str]] = {
    MODEL_PACKAGE: ("ValidationException", "Model Package already exists: {arn}"),
    MODEL_PACKAGE_GROUP: ("ValidationException", "Model Package Group already exists: {arn}"),
    MODEL_CARD: ("ConflictException", "Modelcard with name {name} already exists"),
    INFERENCE_EXPERIMENT: ("ResourceInUse", "Inference experiment {name} already exists. Choose another name."),
    AI_WORKLOAD_CONFIG: ("ResourceInUse", "AI workload config already exists: {arn}"),
    **dict.fromkeys((TRANSFORM_JOB, OPTIMIZATION_JOB, RECOMMENDATIONS_JOB, AI_BENCHMARK_JOB), _JOB_PRESENT),
}
"""AWS's codes and messages for a name that is taken; for all other kinds "Cannot create already existing ..."."""
ENDPOINT_LOG_PREFIX = "/aws/sagemaker/Endpoints/"
"""Source: SageMaker developer guide, "Log groups and streams"."""
COMPONENT_LOG_PREFIX = "/aws/sagemaker/InferenceComponents/"
JOB_LOG_GROUPS: dict[AnyKind, str] = {
    TRANSFORM_JOB: "/aws/sagemaker/TransformJobs",
    OPTIMIZATION_JOB: "/aws/sagemaker/OptimizationJobs",
    RECOMMENDATIONS_JOB: "/aws/sagemaker/InferenceRecommendationsJobs",
    AI_BENCHMARK_JOB: "/aws/sagemaker/AIBenchmarkJobs",
}
"""The log groups of jobs, by their kinds."""

_ARN = re.compile(
    r"arn:(?P<partition>[^:]*):sagemaker:(?P<region>[^:]*):(?P<account>[^:]*):(?P<type>[^/]*)/(?P<name>.+)"
)


def arn_of(aws_scope: AwsScope, kind: AnyKind, name: str) -> str:
    """Return the ARN of a resource of SageMaker."""
    partition = partition_of(aws_scope.region)
    return f"arn:{partition}:sagemaker:{aws_scope.region}:{aws_scope.account}:{ARN_TYPES[kind]}/{name.lower()}"


def parse_arn(arn: str) -> tuple[AnyKind, str] | None:
    """Return kind and name of the resource with an ARN; None if it is of no known kind."""
    found = _ARN.fullmatch(arn)
    if found is None:
        return None
    kinds = {arn_type: kind for kind, arn_type in ARN_TYPES.items()}
    kind = kinds.get(found["type"])
    return (kind, found["name"]) if kind is not None else None


def unreadable_message(record: Unreadable) -> str:
    """Return the error for a record that cannot be decoded."""
    title = TITLES[record.kind]
    advice = f"Delete the {title.split()[-1]}, and create it again."
    if record.is_newer:
        advice = f"Start the newer version of Headrace again. Or delete the {title.split()[-1]}, and create it again."
    return (
        f'The record of {title} "{record.name}" cannot be read ({record.reason}). It was written by another version of '
        f"Headrace, or changed by hand. {advice}"
    )


def new_instance_id() -> str:
    """Return an id like those of EC2 instances."""
    return f"i-{secrets.token_hex(9)[:17]}"
