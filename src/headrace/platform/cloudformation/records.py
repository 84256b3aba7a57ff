"""
Stacks as records: what is requested of a stack, and which resources it has.

The newest operation of a stack is in `spec`; the loop takes it up and writes `status`. A change set is a part of its
stack, so that one write executes it.
"""

from typing import Final

import msgspec

from headrace.platform.state.records import Json, Kind, Record, RecordPart

MAX_EVENTS: Final = 1000
"""Events of a stack that are kept, the newest."""
STACK_TYPE: Final = "AWS::CloudFormation::Stack"
"""The type of a stack in its own events."""
ROLLBACK: Final = "UPDATE_ROLLBACK"
"""The action of a rollback that was requested: CancelUpdateStack and ContinueUpdateRollback."""
REVIEW: Final = "REVIEW_IN_PROGRESS"
SETTLED: Final = frozenset(
    {
        *("CREATE_COMPLETE", "CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"),
        *("UPDATE_COMPLETE", "UPDATE_FAILED", "UPDATE_ROLLBACK_COMPLETE", "UPDATE_ROLLBACK_FAILED"),
        *("DELETE_COMPLETE", "DELETE_FAILED", REVIEW),
    }
)
UPDATABLE: Final = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "UPDATE_FAILED"})


class StackOperation(RecordPart, frozen=True, kw_only=True):
    """A create, an update or a delete of a stack."""

    number: int
    """Grows with each operation on the stack."""
    action: str
    """`CREATE`, `UPDATE`, `UPDATE_ROLLBACK` or `DELETE`, as the states of the stack begin."""
    template: str = ""
    description: str | None = None
    parameters: dict[str, str] = msgspec.field(default_factory=dict)
    resolved: dict[str, str] = msgspec.field(default_factory=dict)
    """Values of SSM parameters."""
    hidden: list[str] = msgspec.field(default_factory=list)
    """Parameters with NoEcho, whose values are never shown."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    capabilities: list[str] = msgspec.field(default_factory=list)
    notification_arns: list[str] = msgspec.field(default_factory=list)
    role_arn: str | None = None
    on_failure: str = "ROLLBACK"
    """`ROLLBACK`, `DELETE` or `DO_NOTHING`."""
    retained: list[str] = msgspec.field(default_factory=list)
    """Resources that a delete leaves, or that a rollback skips."""
    timeout_s: float | None = None
    token: str | None = None
    change_set: str | None = None
    """The id of the change set that was executed."""
    requested_s: float = 0.0


class ChangeSet(RecordPart, frozen=True, kw_only=True):
    id: str
    name: str
    description: str | None = None
    operation: StackOperation
    changes: list[Json]
    """Members of AWS's `Change`."""
    status: str
    reason: str | None = None
    execution: str
    created_s: float


class StackSpec(RecordPart, frozen=True, kw_only=True):
    operation: StackOperation | None = None
    """The newest one; None for a stack that has change sets only."""
    change_sets: list[ChangeSet] = msgspec.field(default_factory=list)
    is_protected: bool = False
    """Has termination protection."""


class Instance(RecordPart, frozen=True, kw_only=True):
    """A resource that exists, or is about to."""

    type: str
    properties: Json
    """Without functions."""
    identity: dict[str, str]
    """Members that name it in operations."""
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    """What `Ref` and `Fn::GetAtt` return, by attribute; `Ref` is its physical id."""
    policy: str = "Delete"
    """What happens to it when the stack no longer needs it."""


class StackResource(RecordPart, frozen=True, kw_only=True):
    state: str
    reason: str | None = None
    modified_s: float
    type: str
    policy: str = "Delete"
    depends_on: list[str] = msgspec.field(default_factory=list)
    """Resources that are created before it and deleted after it."""
    current: Instance | None = None
    pending: Instance | None = None
    """Being created. Recorded before it is, so that a platform which was killed finds it again."""
    attempted: Json | None = None
    """Properties of an update that has not ended."""
    stale: list[Instance] = msgspec.field(default_factory=list)
    """Replaced or failed; deleted after the update, or taken back by its rollback."""
    num_created: int = 0
    """Instances so far, from which generated names differ."""

    @property
    def physical_id(self) -> str:
        shown = self.pending or self.current
        return "" if shown is None else shown.attributes.get("Ref", "")


class StackEvent(RecordPart, frozen=True, kw_only=True):
    id: str
    time_s: float
    logical_id: str
    physical_id: str
    type: str
    state: str
    reason: str | None = None
    token: str | None = None


class StackStatus(RecordPart, frozen=True, kw_only=True):
    state: str = REVIEW
    reason: str | None = None
    number: int = 0
    """The operation that the loop has taken up last."""
    deployed: StackOperation | None = None
    """The operation to which a rollback returns."""
    resources: dict[str, StackResource] = msgspec.field(default_factory=dict)
    outputs: dict[str, Json] = msgspec.field(default_factory=dict)
    """Members of AWS's `Output`, by key."""
    imports: list[str] = msgspec.field(default_factory=list)
    """Exports of other stacks that this one uses."""
    events: list[StackEvent] = msgspec.field(default_factory=list)
    updated_s: float | None = None
    deleted_s: float | None = None


StackRecord = Record[StackSpec, StackStatus]
STACK: Final = Kind("stack", StackSpec, StackStatus)


def visible_state(record: StackRecord) -> str:
    """Return the state to show: an operation is visible before the loop has taken it up."""
    operation = record.spec.operation
    if operation is not None and operation.number > record.status.number:
        return f"{operation.action}_IN_PROGRESS"
    return record.status.state
