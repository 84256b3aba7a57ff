"""Operations on a stack from the members of a call: the template is checked before anything is written."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.platform.cloudformation.evaluation import Evaluation, check_types, needed_capabilities
from headrace.platform.cloudformation.records import STACK, StackOperation, StackRecord
from headrace.platform.cloudformation.stack_names import StackName, parse_arn
from headrace.platform.cloudformation.template.parameters import check_declarations, given_texts, resolve_names
from headrace.platform.cloudformation.template.template import Template, parse_template
from headrace.platform.control.api.context import CallContext
from headrace.platform.gateway.objects import ObjectFailed
from headrace.platform.state.records import Json, Unreadable
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import MAX_TAGS

MAX_BODY_BYTES: Final = 51_200
"""Source: CloudFormation user guide, "Understand quotas", as the next one."""
MAX_OBJECT_BYTES: Final = 1_000_000
NEW_STACK_NAME: Final = re.compile("[a-zA-Z][-a-zA-Z0-9]{0,127}")


def validation_error(message: str) -> AwsError:
    """Return CloudFormation's error for most of what can be wrong."""
    return AwsError("ValidationError", message)


def find_stack(context: CallContext, name: str) -> StackRecord | None:
    """Return a stack by its name or its id; by its id also one that was deleted."""
    identified = parse_arn(name)
    record: StackRecord | Unreadable | None
    if identified is None:
        record = context.store.get(STACK, name) if "/" not in name else None
    else:
        record = context.store.get(STACK, identified[0])
        if record is None or record.uid != identified[1]:
            record = context.store.get(STACK, "/".join(identified))
    if isinstance(record, Unreadable):
        raise validation_error(f"The record of stack {record.name} cannot be read ({record.reason}).")
    return record


def existing_stack(context: CallContext, name: str, *, message: str = "Stack [{}] does not exist") -> StackRecord:
    record = find_stack(context, name)
    if record is None:
        raise validation_error(message.format(name))
    return record


def template_text(context: CallContext, params: Json, previous: str | None = None) -> str:
    """Return the text of a call's template. Raises `AwsError`: it has none, or several, or it is too long."""
    given = [name for name in ("TemplateBody", "TemplateURL", "UsePreviousTemplate") if params.get(name)]
    if len(given) != 1:
        raise validation_error("Either Template URL or Template Body must be specified.")
    if given == ["UsePreviousTemplate"]:
        if previous is None:
            raise validation_error("UsePreviousTemplate is given, and the stack has no template.")
        return previous
    if given == ["TemplateBody"]:
        text: str = params["TemplateBody"]
        if len(text.encode(errors="replace")) > MAX_BODY_BYTES:
            raise validation_error(
                "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: Member must have "
                f"length less than or equal to {MAX_BODY_BYTES}"
            )
        return text
    return _from_url(context, params["TemplateURL"])


def _from_url(context: CallContext, url: str) -> str:
    """Read a template from the platform's object storage, whichever host its URL names."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", unquote(parts.path.lstrip("/"))
    virtual = re.fullmatch(r"(?P<bucket>[a-z0-9.-]+?)\.s3[.-][a-z0-9.-]*amazonaws\.com(?:\.cn)?", host)
    bucket, _, key = f"{virtual['bucket']}/{path}".partition("/") if virtual else path.partition("/")
    if parts.scheme not in ("http", "https") or not bucket or not key:
        raise validation_error(f"TemplateURL must be a supported URL: {url[:200]}")
    if context.read_object is None:
        raise validation_error("TemplateURL needs an object storage; none is configured.")
    try:
        return context.read_object(f"s3://{bucket}/{key}", MAX_OBJECT_BYTES).decode()
    except ObjectFailed as error:
        raise validation_error(f"S3 error: {error}") from None
    except UnicodeDecodeError:
        raise validation_error("Template format error: the template is no UTF-8.") from None


@dataclass(frozen=True, slots=True)
class Requested:
    operation: StackOperation
    evaluation: Evaluation


def read_operation(
    context: CallContext, params: Json, *, action: str, stack: StackName, before: StackRecord | None = None
) -> Requested:
    """Return the operation that a call requests, checked. Raises `AwsError`."""
    newest = before.spec.operation if before is not None else None
    old = before.status.deployed or newest if before is not None else None
    text = template_text(context, params, old.template if old is not None else None)
    template = parse_template(text)
    check_types(template, context.operations)
    check_declarations(template)
    check_capabilities(template, params.get("Capabilities", []))
    texts = given_texts(template, params.get("Parameters", []), old.parameters if old is not None else {})
    operation = StackOperation(
        number=newest.number + 1 if newest is not None else 1,
        action=action,
        template=text,
        description=template.description,
        parameters=texts,
        resolved=resolve_names(template, texts, lambda name: read_ssm_parameter(context, name)),
        hidden=[
            name for name, declared in template.parameters.items() if str(declared.get("NoEcho")).lower() == "true"
        ],
        tags=_tags(params, old),
        capabilities=params.get("Capabilities", []),
        notification_arns=params.get("NotificationARNs", []),
        role_arn=params.get("RoleARN"),
        on_failure=_on_failure(params),
        timeout_s=params["TimeoutInMinutes"] * 60.0 if "TimeoutInMinutes" in params else None,
        token=params.get("ClientRequestToken"),
        requested_s=context.now_s,
    )
    evaluation = Evaluation.of(template, operation, stack)
    evaluation.check(context.operations)
    return Requested(operation, evaluation)


def _tags(params: Json, old: StackOperation | None) -> dict[str, str]:
    if "Tags" not in params:
        return dict(old.tags) if old is not None else {}
    tags = {tag["Key"]: tag["Value"] for tag in params["Tags"]}
    if len(tags) < len(params["Tags"]) or len(tags) > MAX_TAGS or any(key.startswith("aws:") for key in tags):
        raise validation_error(f"Tags has a key twice, more than {MAX_TAGS} keys, or one that begins with aws:.")
    return tags


def _on_failure(params: Json) -> str:
    if "OnFailure" in params and "DisableRollback" in params:
        raise validation_error("Either DisableRollback or OnFailure can be specified, not both.")
    if params.get("DisableRollback") or check_mode(params).get("DisableRollback"):
        return "DO_NOTHING"
    return str(params.get("OnFailure", params.get("OnStackFailure", "ROLLBACK")))


def check_mode(params: Json) -> Json:
    """Return the DeploymentConfig of a call. Raises `AwsError`: it asks not to wait for resources."""
    config: Json = params.get("DeploymentConfig", {})
    if config.get("Mode", "STANDARD") != "STANDARD":
        raise validation_error("DeploymentConfig.Mode EXPRESS is not supported by Headrace. Use STANDARD.")
    return config


def check_capabilities(template: Template, given: list[str]) -> None:
    needed, _ = needed_capabilities(template)
    if needed and not {*given} & {*needed, "CAPABILITY_NAMED_IAM"}:
        raise AwsError("InsufficientCapabilitiesException", f"Requires capabilities : [{needed[0]}]")


def read_ssm_parameter(context: CallContext, name: str) -> str:
    try:
        return str(get_parameter(context, {"Name": name})["Parameter"]["Value"])
    except AwsError:
        raise validation_error(f"Unable to fetch parameters [{name}] from parameter store for this account.") from None


_BOOTSTRAP: Final = re.compile(r"/cdk-bootstrap/[a-zA-Z0-9_-]+/version")
BOOTSTRAP_VERSION: Final = "30"
"""The version of the CDK's bootstrap stack that a platform stands for: newer than all that templates ask for."""


def get_parameter(context: CallContext, params: Json) -> Json:
    """Answer GetParameter of SSM: the CDK asks for the version of its bootstrap stack; there are no others."""
    name = params["Name"]
    if not _BOOTSTRAP.fullmatch(name):
        raise AwsError("ParameterNotFound", f"Headrace has no parameter {name}: it serves that of the CDK's bootstrap.")
    arn = f"arn:aws:ssm:{context.aws_scope.region}:{context.aws_scope.account}:parameter{name}"
    members: Json = {"Name": name, "Type": "String", "Value": BOOTSTRAP_VERSION, "Version": 1}
    return {"Parameter": {**members, "ARN": arn, "DataType": "text", "LastModifiedDate": 1_700_000_000.0}}
