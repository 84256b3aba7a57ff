"""Names and ids of stacks and change sets. A deleted stack is kept under another name."""

import re
from dataclasses import dataclass
from typing import Final

from headrace.platform.cloudformation.records import StackRecord
from headrace.platform.state.records import StoredRecord
from headrace.serving.wire.aws.scope import AwsScope, partition_of

_SEPARATOR: Final = "/"
"""No name of a stack has it."""
_ARN: Final = re.compile(
    r"arn:[^:]+:cloudformation:[^:]*:[^:]*:(?P<type>stack|changeSet)/(?P<name>[^/]+)/(?P<id>[^/]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackName:
    """Names of a stack, as its template sees them."""

    aws_scope: AwsScope
    name: str
    arn: str
    uid: str


def stack_name_of(record: StackRecord, scope: AwsScope) -> StackName:
    name, _, uid = record.name.partition(_SEPARATOR)
    uid = uid or record.uid
    return StackName(aws_scope=scope, name=name, arn=arn_of(scope, "stack", name, uid), uid=uid)


def arn_of(scope: AwsScope, kind: str, name: str, uid: str) -> str:
    shown = f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"
    return f"arn:{partition_of(scope.region)}:cloudformation:{scope.region}:{scope.account}:{kind}/{name}/{shown}"


def parse_arn(text: str) -> tuple[str, str] | None:
    """Return the name and the id, without hyphens, of a stack's or a change set's ARN; None for a name."""
    found = _ARN.fullmatch(text)
    return (found["name"], found["id"].replace("-", "")) if found is not None else None


def archive_name(record: StackRecord) -> str:
    return f"{record.name}{_SEPARATOR}{record.uid}"


def is_archived(record: StoredRecord) -> bool:
    return _SEPARATOR in record.name


def created_s(record: StackRecord) -> float:
    """Return when a stack was created; of a deleted one, not when it was kept."""
    return float(record.tags.get("created", record.created_s)) if is_archived(record) else record.created_s
