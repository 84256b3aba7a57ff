"""Operations that change a stack. They only write what is requested."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from headrace.platform.cloudformation.api.requests import (
    NEW_STACK_NAME,
    check_mode,
    existing_stack,
    find_stack,
    read_operation,
    validation_error,
)
from headrace.platform.cloudformation.changes import Preview
from headrace.platform.cloudformation.evaluation import Evaluation
from headrace.platform.cloudformation.exports import export_value, exports, users_of
from headrace.platform.cloudformation.records import (
    ROLLBACK,
    SETTLED,
    STACK,
    UPDATABLE,
    StackEvent,
    StackOperation,
    StackRecord,
    StackSpec,
    StackStatus,
    visible_state,
)
from headrace.platform.cloudformation.stack_names import StackName, is_archived, stack_name_of
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import AlreadyExists, Json
from headrace.serving.wire.aws.errors import AwsError

MAX_STACKS: Final = 5000
"""Deleted ones among them. Source: CloudFormation user guide, "Understand quotas": 2,000 stacks."""


def create_stack(context: CallContext, params: Json) -> Json:
    name = params["StackName"]
    existing = find_stack(context, name)
    if existing is not None and not is_archived(existing):
        if _is_repeated(existing, params):
            return {"StackId": stack_name_of(existing, context.aws_scope).arn}
        raise AwsError("AlreadyExistsException", f"Stack [{name}] already exists")
    stack = new_stack_name(context, name)
    requested = read_operation(context, params, action="CREATE", stack=stack)
    is_protected = bool(params.get("EnableTerminationProtection"))
    spec = StackSpec(operation=requested.operation, is_protected=is_protected)
    return {"StackId": stack_name_of(create_record(context, name, spec), context.aws_scope).arn}


def new_stack_name(context: CallContext, name: str) -> StackName:
    """Return the names by which the template of a new stack is checked: its id is known when it is written."""
    if not NEW_STACK_NAME.fullmatch(name):
        raise validation_error(
            f"1 validation error detected: Value '{name[:200]}' at 'stackName' failed to satisfy constraint: Member "
            "must satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*"
        )
    return StackName(aws_scope=context.aws_scope, name=name, arn="", uid="")


def create_record(context: CallContext, name: str, spec: StackSpec, events: Sequence[StackEvent] = ()) -> StackRecord:
    if context.store.count(STACK) >= MAX_STACKS:
        raise AwsError("LimitExceededException", f"Limit for stack has been exceeded: {MAX_STACKS}")
    try:
        return context.store.create(STACK, name, spec=spec, status=StackStatus(events=list(events)))
    except AlreadyExists:
        raise AwsError("AlreadyExistsException", f"Stack [{name}] already exists") from None


def _is_repeated(record: StackRecord, params: Json) -> bool:
    """Return whether a call has the `ClientRequestToken` of the latest one, which is no secret."""
    latest = None if record.spec.operation is None else record.spec.operation.token
    sent = params.get("ClientRequestToken")
    return sent is not None and sent == latest


def update_stack(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"])
    stack = stack_name_of(record, context.aws_scope)
    if _is_repeated(record, params):
        return {"StackId": stack.arn}
    check_updatable(record, stack)
    requested = read_operation(context, params, action="UPDATE", stack=stack, before=record)
    preview = preview_of(context, record, requested.evaluation)
    if not preview.changes() and preview.is_same():
        raise validation_error("No updates are to be performed.")
    context.store.update(record, spec=replace(record.spec, operation=requested.operation, change_sets=[]))
    return {"StackId": stack.arn}


def preview_of(context: CallContext, record: StackRecord, evaluation: Evaluation) -> Preview:
    return Preview(
        evaluation=evaluation,
        status=record.status,
        exports=lambda name: export_value(context.store, name),
    )


def check_updatable(record: StackRecord, stack: StackName) -> None:
    state = visible_state(record)
    if state not in UPDATABLE:
        raise validation_error(f"Stack:{stack.arn} is in {state} state and can not be updated.")


def cancel_update_stack(context: CallContext, params: Json) -> Json:
    """Answer CancelUpdateStack: roll back the update that runs."""
    record = existing_stack(context, params["StackName"])
    if _is_repeated(record, params):
        return {}
    if visible_state(record) != "UPDATE_IN_PROGRESS" or record.status.deployed is None:
        raise validation_error("CancelUpdateStack cannot be called from current stack status")
    _request_again(context, record, params, action=ROLLBACK, retained=[])
    return {}


def continue_update_rollback(context: CallContext, params: Json) -> Json:
    """Answer ContinueUpdateRollback: try a rollback again, without the resources to skip."""
    record = existing_stack(context, params["StackName"])
    if _is_repeated(record, params):
        return {}
    state, stack = visible_state(record), stack_name_of(record, context.aws_scope)
    if state != "UPDATE_ROLLBACK_FAILED":
        raise validation_error(f"Stack:{stack.arn} is in {state} state and can not continue rolling back the update.")
    skipped = params.get("ResourcesToSkip", [])
    for name in skipped:
        resource = record.status.resources.get(name)
        if resource is None or resource.state != "UPDATE_FAILED":
            found = "no resource of the stack" if resource is None else f"in the state {resource.state}"
            raise validation_error(f"ResourcesToSkip has {name}, which is {found}; expected UPDATE_FAILED.")
    _request_again(context, record, params, action=ROLLBACK, retained=skipped)
    return {}


def _request_again(
    context: CallContext, record: StackRecord, params: Json, *, action: str, retained: list[str]
) -> None:
    """Request an operation with a template that the stack has: that of before for a rollback, else the newest."""
    newest = record.spec.operation or StackOperation(number=0, action="CREATE")
    template = record.status.deployed if action == ROLLBACK else newest
    assert template is not None, "a stack without a deployed template is not rolled back to it"
    operation = replace(
        template,
        number=newest.number + 1,
        action=action,
        retained=retained,
        token=params.get("ClientRequestToken"),
        requested_s=context.now_s,
    )
    context.store.update(record, spec=replace(record.spec, operation=operation, change_sets=[]))


def delete_stack(context: CallContext, params: Json) -> Json:
    """Answer DeleteStack; one that does not exist, or is being deleted, is deleted."""
    check_mode(params)
    record = find_stack(context, params["StackName"])
    if record is None or is_archived(record):
        return {}
    state, stack = visible_state(record), stack_name_of(record, context.aws_scope)
    if state == "DELETE_IN_PROGRESS":
        return {}
    if record.spec.is_protected:
        raise validation_error(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
    retained = params.get("RetainResources", [])
    if retained and state != "DELETE_FAILED":
        raise validation_error(
            "Invalid operation on stack. RetainResources can only be specified when the stack is in the DELETE_FAILED "
            "state."
        )
    for name in exports(record):
        if users := users_of(context.store, name):
            raise validation_error(f"Export {name} cannot be deleted as it is in use by {', '.join(users)}")
    _request_again(context, record, params, action="DELETE", retained=retained)
    return {}


def update_termination_protection(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"])
    if visible_state(record) not in SETTLED:
        raise validation_error(f"Stack [{record.name}] is being changed. Try again when it has settled.")
    spec = replace(record.spec, is_protected=params["EnableTerminationProtection"])
    context.store.update(record, spec=spec)
    return {"StackId": stack_name_of(record, context.aws_scope).arn}
