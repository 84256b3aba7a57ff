"""
The table of operations for the documentation: all operations of botocore's models, and which of them are handled.

`markdown` is pure; `docs.py` calls it with the operations that `control` and `gateway` register.
"""

from collections.abc import Collection, Sequence
from itertools import starmap

from botocore.model import StructureShape

from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.members import MEMBERS

Handled = Collection[tuple[str, str]]
"""Pairs of service and operation in boto3's names: `("sagemaker", "CreateModel")`."""

_PER_LINE = 4
_INSTEAD = (
    ("CloudFormation, and with it the CDK and SAM", "`headrace deploy`, boto3 or the SageMaker SDK"),
    (
        "`iam:CreateRole`, `iam:AttachRolePolicy`, … (Terraform: `aws_iam_role`), `sts:AssumeRole`",
        "any ARN, such as `arn:aws:iam::000000000000:role/any`: every role exists and may do everything",
    ),
    (
        "`logs:CreateLogGroup` (Terraform: `aws_cloudwatch_log_group`)",
        "nothing: an endpoint's [log group](endpoints.md#logs) is created with it",
    ),
    ("batch transform (`CreateTransformJob`)", "a loop over `InvokeEndpoint`, or `InvokeEndpointAsync`"),
    (
        "model packages, multi-model containers, pipelines of containers",
        "a model and an endpoint, or an [inference component](components.md), for each",
    ),
    ("shadow variants, explainers", "a second endpoint; production variants share traffic by weight"),
    (
        "data capture (`DataCaptureConfig` is stored and returned, but nothing is captured)",
        "[logs](endpoints.md#logs) and [traces](tracing.md), which have no prompts and answers",
    ),
    ("Bedrock (`Converse`)", "`InvokeEndpoint`, or [OpenAI's API](dialects/openai.md)"),
)
"""Features that AWS's examples use and the platform does not serve, and their replacements."""


def markdown(handled: Handled, *, documented: Sequence[str] = services.MODELLED) -> str:
    """Return a summary, then each service's operations. Raises `ValueError`: a handled operation is in no model."""
    known = {(service, name) for service in documented for name in services.operation_names(service)}
    unknown = sorted(set(handled) - known)
    if unknown:
        raise ValueError(f"No model has these operations: {', '.join('.'.join(pair) for pair in unknown)}")
    by_service = {service: {name for owner, name in handled if owner == service} for service in documented}
    lines = ["| service | operations | handled |", "|---|---:|---:|"]
    for service, names in by_service.items():
        lines.append(f"| `{service}` | {len(services.operation_names(service))} | {len(names)} |")
    lines += [
        "",
        "A call of another service, or of an operation that is not handled, returns an error that says so; nothing",
        "reaches AWS. The embedded S3 server, or the one of `--s3-endpoint`, answers S3.",
        "What examples use that is not served:",
        "",
        "| not served | instead |",
        "|---|---|",
        *(f"| {what} | {instead} |" for what, instead in _INSTEAD),
    ]
    return "\n\n".join(["\n".join(lines), *starmap(_service, by_service.items())]) + "\n"


def _service(service: str, handled: set[str]) -> str:
    others = sorted(services.operation_names(service) - handled)
    lines = [f"## {service} ({services.model(service).metadata['apiVersion']})"]
    if handled:
        lines += ["", "| operation | request members | response members |", "|---|---|---|"]
        for name in sorted(handled):
            operation = services.operation(service, name)
            lines.append(f"| `{name}` | {_members(operation.input_shape)} | {_members(operation.output_shape)} |")
    rows = [
        f"| `{structure}.{member}` | {how} | {why} |"
        for structure, members in sorted(MEMBERS[service].items())
        for how, found in (("accepted, without effect", members.kept), ("refused", members.refused))
        for member, why in sorted(found.items())
    ]
    if rows:
        lines += ["", "Members that are not applied, by their structure:", ""]
        lines += ["| member | it is | |", "|---|---|---|", *rows]
    if others:
        lines += ["", f"Not supported; a call returns an error that says so ({len(others)}):", ""]
        lines += [
            ", ".join(f"`{name}`" for name in others[at : at + _PER_LINE]) + ","
            for at in range(0, len(others), _PER_LINE)
        ]
        lines[-1] = lines[-1].rstrip(",") + "."
    return "\n".join(lines)


def _members(shape: StructureShape | None) -> str:
    """Return the names of a structure's members, the required ones bold."""
    if shape is None or not shape.members:
        return "-"
    required = set(shape.required_members)
    return ", ".join(f"**{name}**" if name in required else name for name in shape.members)
