"""Change sets: operations on a stack whose changes are shown before they are executed."""

import uuid
from typing import Final

from msgspec.structs import replace

from headrace.platform.cloudformation.api.requests import existing_stack, find_stack, read_operation, validation_error
from headrace.platform.cloudformation.api.stacks import check_updatable, create_record, new_stack_name, preview_of
from headrace.platform.cloudformation.changes import Preview
from headrace.platform.cloudformation.exports import stacks
from headrace.platform.cloudformation.records import (
    REVIEW,
    SETTLED,
    STACK_TYPE,
    ChangeSet,
    StackEvent,
    StackRecord,
    StackSpec,
    StackStatus,
    visible_state,
)
from headrace.platform.cloudformation.stack_names import StackName, arn_of, is_archived, parse_arn, stack_name_of
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

MAX_CHANGE_SETS: Final = 100
"""Of one stack."""
NO_CHANGES: Final = (
    "The submitted information didn't contain changes. Submit different information to create a change set."
)


def create_change_set(context: CallContext, params: Json) -> Json:
    kind = params.get("ChangeSetType", "UPDATE")
    if kind == "IMPORT":
        raise validation_error("ChangeSetType IMPORT is not supported by Headrace. Use CREATE or UPDATE.")
    record = find_stack(context, params["StackName"])
    if record is not None and is_archived(record):
        record = None
    if kind == "UPDATE" and record is None:
        raise validation_error(f"Stack [{params['StackName']}] does not exist")
    if record is not None:
        return _add(context, record, params, is_create=kind == "CREATE")
    stack = new_stack_name(context, params["StackName"])
    change_set = _change_set(context, params, stack, None, is_create=True)
    begun = StackEvent(
        id=str(uuid.uuid4()),
        time_s=context.now_s,
        logical_id=stack.name,
        physical_id="",  # the id of the stack, which it gets now
        type=STACK_TYPE,
        state=REVIEW,
        reason="User Initiated",
    )
    record = create_record(context, stack.name, StackSpec(change_sets=[change_set]), [begun])
    return _ids(context, record, change_set)


def _add(context: CallContext, record: StackRecord, params: Json, *, is_create: bool) -> Json:
    stack, name = stack_name_of(record, context.aws_scope), params["ChangeSetName"]
    if is_create and visible_state(record) != REVIEW:
        raise validation_error(
            f"Stack [{stack.name}] already exists and cannot be created again with the changeSet [{name}]."
        )
    if not is_create:
        check_updatable(record, stack)
    others = [other for other in record.spec.change_sets if other.execution != "EXECUTE_COMPLETE"]
    if any(other.name == name for other in others):
        raise AwsError(
            "AlreadyExistsException",
            f"ChangeSet {name} cannot be created due to a mismatch with existing attribute Name",
        )
    if len(others) >= MAX_CHANGE_SETS:
        raise AwsError("LimitExceededException", f"ChangeSet limit exceeded for stack {stack.name}")
    change_set = _change_set(context, params, stack, record, is_create=is_create)
    context.store.update(record, spec=replace(record.spec, change_sets=[*others, change_set]))
    return _ids(context, record, change_set)


def _change_set(
    context: CallContext, params: Json, stack: StackName, record: StackRecord | None, *, is_create: bool
) -> ChangeSet:
    action = "CREATE" if is_create else "UPDATE"
    requested = read_operation(context, params, action=action, stack=stack, before=record)
    if record is None:
        preview = Preview(evaluation=requested.evaluation, status=StackStatus(), exports=lambda _: "")
    else:
        preview = preview_of(context, record, requested.evaluation)
    changes = preview.changes()
    is_empty = not changes and preview.is_same()
    identifier = uuid.uuid4().hex
    return ChangeSet(
        id=identifier,
        name=params["ChangeSetName"],
        description=params.get("Description"),
        operation=replace(requested.operation, change_set=identifier, token=None),
        changes=changes,
        status="FAILED" if is_empty else "CREATE_COMPLETE",
        reason=NO_CHANGES if is_empty else None,
        execution="UNAVAILABLE" if is_empty else "AVAILABLE",
        created_s=context.now_s,
    )


def _ids(context: CallContext, record: StackRecord, change_set: ChangeSet) -> Json:
    arn = stack_name_of(record, context.aws_scope).arn
    return {"Id": change_set_arn(context, change_set), "StackId": arn}


def change_set_arn(context: CallContext, change_set: ChangeSet) -> str:
    return arn_of(context.aws_scope, "changeSet", change_set.name, change_set.id)


def find_change_set(context: CallContext, params: Json) -> tuple[StackRecord, ChangeSet]:
    """Return a change set by its id, or by its name and that of its stack. Raises `AwsError`."""
    name, identified = params["ChangeSetName"], parse_arn(params["ChangeSetName"])
    if "StackName" in params:
        records = [existing_stack(context, params["StackName"])]
    elif identified is not None:
        records = [
            record
            for record in stacks(context.store)
            if any(change_set.id == identified[1] for change_set in record.spec.change_sets)
        ]
    else:
        raise validation_error("StackName must be specified if ChangeSetName is not specified as an ARN.")
    for record in records:
        for change_set in reversed(record.spec.change_sets):
            if change_set.id == identified[1] if identified is not None else change_set.name == name:
                return record, change_set
    raise AwsError("ChangeSetNotFoundException", f"ChangeSet [{name}] does not exist", status=404)


def execution_of(record: StackRecord, change_set: ChangeSet) -> str:
    """Return the execution status of a change set, which follows that of its stack."""
    operation = record.spec.operation
    if change_set.execution != "EXECUTE_IN_PROGRESS" or operation is None or operation.change_set != change_set.id:
        return change_set.execution
    state = visible_state(record)
    if state not in SETTLED:
        return "EXECUTE_IN_PROGRESS"
    return "EXECUTE_COMPLETE" if state in ("CREATE_COMPLETE", "UPDATE_COMPLETE") else "EXECUTE_FAILED"


def execute_change_set(context: CallContext, params: Json) -> Json:
    record, change_set = find_change_set(context, params)
    if change_set.execution != "AVAILABLE":
        arn = change_set_arn(context, change_set)
        raise AwsError(
            "InvalidChangeSetStatus",
            f"ChangeSet [{arn}] cannot be executed in its current execution status of "
            f"[{execution_of(record, change_set)}]",
        )
    if visible_state(record) != REVIEW:
        check_updatable(record, stack_name_of(record, context.aws_scope))
    number = record.spec.operation.number + 1 if record.spec.operation is not None else 1
    on_failure = "DO_NOTHING" if params.get("DisableRollback") else change_set.operation.on_failure
    operation = replace(
        change_set.operation,
        number=number,
        on_failure=on_failure,
        token=params.get("ClientRequestToken"),
        requested_s=context.now_s,
    )
    executed = replace(change_set, execution="EXECUTE_IN_PROGRESS")
    context.store.update(record, spec=replace(record.spec, operation=operation, change_sets=[executed]))
    return {}


def delete_change_set(context: CallContext, params: Json) -> Json:
    """Answer DeleteChangeSet; one that does not exist is deleted."""
    try:
        record, change_set = find_change_set(context, params)
    except AwsError as error:
        if error.code != "ChangeSetNotFoundException":
            raise
        return {}
    if execution_of(record, change_set) == "EXECUTE_IN_PROGRESS":
        raise AwsError(
            "InvalidChangeSetStatus",
            f"ChangeSet [{change_set_arn(context, change_set)}] cannot be deleted while it is executed",
        )
    kept = [other for other in record.spec.change_sets if other.id != change_set.id]
    context.store.update(record, spec=replace(record.spec, change_sets=kept))
    return {}
