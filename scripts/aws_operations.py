"""
The page of AWS's operations for the documentation: what is handled, the replacements of the rest, unapplied members.

`markdown` is pure; `docs.py` calls it with the operations that `control` and `gateway` register.
"""

from collections.abc import Collection, Iterable, Iterator

from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.members import MEMBERS

Handled = Collection[tuple[str, str]]
"""Pairs of service and operation in boto3's names: `("sagemaker", "CreateModel")`."""

_INSTEAD = (
    (
        "nested stacks, stack sets, imports, custom resources, macros and other types of CloudFormation",
        "the [types that it has](infrastructure-as-code.md#types)",
    ),
    ("parameters of SSM", "parameters of the template"),
    ("users, groups and instance profiles of IAM", "access keys (`headrace keys`), and roles"),
    (
        "training, processing, pipelines, notebooks (`CreateTrainingJob`, `CreateProcessingJob`, `CreatePipeline`, …)",
        "AWS or your own scripts; `ModelDataUrl` deploys what they wrote",
    ),
    ("private hubs (`CreateHub`, `CreateHubContentReference`, …)", "rows of your own in [JumpStart](jumpstart.md)"),
    (
        "AI recommendation jobs (`CreateAIRecommendationJob`)",
        "[inference recommendations jobs](optimize.md#inference-recommendations), or a benchmark of each candidate",
    ),
    (
        "algorithms (`CreateAlgorithm`), exports of model cards (`CreateModelCardExportJob`)",
        "`InferenceSpecification` of a [model package](endpoints.md#model-registry)",
    ),
    ("explainers (`ExplainerConfig`)", "a model whose answers have the explanation"),
    (
        "predictive scaling (`GetPredictiveScalingForecast`, `PredictiveScaling` policies)",
        "[target tracking, steps or schedules](autoscaling.md)",
    ),
    ("Bedrock (`Converse`)", "`InvokeEndpoint`, or [OpenAI's API](dialects/openai.md)"),
)
"""Features that AWS's examples use and the platform does not serve, and their replacements."""


def markdown(handled: Handled) -> Iterator[str]:
    """Yield the lines of the page's tables. Raises `ValueError`: a handled operation is in no model."""
    unknown = [
        f"{service}.{name}" for service, name in sorted(handled) if name not in services.operation_names(service)
    ]
    if unknown:
        raise ValueError(f"No model has these operations: {', '.join(unknown)}")
    yield from ("| service | operations that work |", "|---|---|")
    for service in services.MODELLED:
        names = sorted(name for owner, name in handled if owner == service and _works(service, name))
        yield f"| `{service}` | {_code_list(names)} |"
    yield "\nEvery other operation, and every other service, fails with an error that names it: Headrace sends no"
    yield "request to AWS, but for objects in its public buckets with `--public-buckets aws`. The embedded S3 server,"
    yield "or the one of `--s3-endpoint`, answers S3."
    yield "\n## What to use instead\n"
    yield from ("| Headrace does not serve | use |", "|---|---|")
    yield from (f"| {what} | {instead} |" for what, instead in _INSTEAD)
    yield "\n## Members without effect, and members that fail\n"
    yield "A call with a member without effect works. Its response names the member in the header `x-headrace-notice`,"
    yield "and the log in a line `call.member_kept`. Headrace applies all members that this table does not list.\n"
    yield from ("| service | members | a call with them | because, or instead |", "|---|---|---|---|")
    for service in services.MODELLED:
        yield from _members(service)


def _works(service: str, name: str) -> bool:
    """Return whether an operation has a member that is applied, or none at all."""
    shape = services.operation(service, name).input_shape
    members = MEMBERS[service].get(shape.name) if shape is not None else None
    return members is None or bool(members.applied) or not members.refused


def _members(service: str) -> Iterator[str]:
    rows: dict[tuple[str, str], list[str]] = {}
    for structure, members in sorted(MEMBERS[service].items()):
        if not members.applied and not members.kept:
            continue  # the whole operation fails
        owner = structure.removesuffix("Input").removesuffix("Request")
        for effect, found in (("works, without effect", members.kept), ("fails", members.refused)):
            for member, why in sorted(found.items()):
                rows.setdefault((effect, why or "the error says what to do"), []).append(f"{owner}.{member}")
    for (effect, why), names in rows.items():
        yield f"| {service} | {_code_list(names)} | {effect} | {why} |"


def _code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
