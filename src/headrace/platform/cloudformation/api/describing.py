"""Operations that describe and list stacks, their resources, events, templates and change sets."""

import json
from collections.abc import Sequence
from typing import Any, Final

from headrace.platform.cloudformation.api.change_sets import change_set_arn, execution_of, find_change_set
from headrace.platform.cloudformation.api.requests import existing_stack, template_text, validation_error
from headrace.platform.cloudformation.evaluation import check_types, needed_capabilities
from headrace.platform.cloudformation.exports import exports, stacks, users_of
from headrace.platform.cloudformation.records import (
    STACK,
    ChangeSet,
    StackOperation,
    StackRecord,
    StackResource,
    visible_state,
)
from headrace.platform.cloudformation.stack_names import created_s, stack_name_of
from headrace.platform.cloudformation.template.parameters import check_declarations
from headrace.platform.cloudformation.template.template import Template, parse_template
from headrace.platform.control.api.context import CallContext
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws.paging import Paginator

PAGE_SIZE: Final = 100
HIDDEN: Final = "****"
"""The shown value of a parameter with NoEcho."""
_PAGES: Final = Paginator(invalid_token=lambda: validation_error("The NextToken is not other of this list."))


def _page(params: Json, member: str, items: Sequence[Any], size: int = PAGE_SIZE) -> Json:
    """Return other page of items that are made when they are needed."""
    begin = _PAGES.begin(params, listing=member)
    end = begin + size
    token = _PAGES.token_at(end, listing=member) if end < len(items) else {}
    return {member: list(items[begin:end]), **token}


def describe_stacks(context: CallContext, params: Json) -> Json:
    if "StackName" in params:
        record = existing_stack(context, params["StackName"], message="Stack with id {} does not exist")
        return {"Stacks": [_describe(context, record)]}
    page = _page(params, "Stacks", list(stacks(context.store)))
    return {**page, "Stacks": [_describe(context, record) for record in page["Stacks"]]}


def list_stacks(context: CallContext, params: Json) -> Json:
    wanted = params.get("StackStatusFilter")
    records = [record for record in context.store.each(STACK) if isinstance(record, Record)]
    fitting = [record for record in reversed(records) if not wanted or visible_state(record) in wanted]
    page = _page(params, "StackSummaries", fitting)
    return {**page, "StackSummaries": [_summary(context, record) for record in page["StackSummaries"]]}


def describe_stack_events(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"])
    page = _page(params, "StackEvents", list(reversed(record.status.events)))
    name, arn = _named(context, record)
    return {
        **page,
        "StackEvents": [
            {
                "StackId": arn,
                "StackName": name,
                "EventId": event.id if event.logical_id == name else f"{event.logical_id}-{event.state}-{event.id}",
                "LogicalResourceId": event.logical_id,
                "PhysicalResourceId": event.physical_id or (arn if event.logical_id == name else ""),
                "ResourceType": event.type,
                "ResourceStatus": event.state,
                "ResourceStatusReason": event.reason,
                "Timestamp": event.time_s,
                "ClientRequestToken": event.token,
            }
            for event in page["StackEvents"]
        ],
    }


def list_stack_resources(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"], message="Stack with id {} does not exist")
    items = list(record.status.resources.items())
    page = _page(params, "StackResourceSummaries", items)
    rows = [_resource(*item, time="LastUpdatedTimestamp") for item in page["StackResourceSummaries"]]
    return {**page, "StackResourceSummaries": rows}


def describe_stack_resources(context: CallContext, params: Json) -> Json:
    """Answer DescribeStackResources: of a stack, or of that with a resource of the given physical id."""
    physical_id = params.get("PhysicalResourceId")
    if ("StackName" in params) == (physical_id is not None):
        raise validation_error("Give either StackName or PhysicalResourceId.")
    if physical_id is None:
        record = existing_stack(context, params["StackName"], message="Stack with id {} does not exist")
    else:
        owners = (
            other
            for other in stacks(context.store)
            if any(r.physical_id == physical_id for r in other.status.resources.values())
        )
        found = next(owners, None)
        if found is None:
            raise validation_error(f"Stack for {physical_id} does not exist")
        record = found
    name, arn = _named(context, record)
    return {
        "StackResources": [
            {"StackName": name, "StackId": arn, **_resource(logical_id, resource, time="Timestamp")}
            for logical_id, resource in record.status.resources.items()
            if params.get("LogicalResourceId") in (None, logical_id)
        ]
    }


def describe_stack_resource(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"], message="Stack '{}' does not exist")
    name, arn = _named(context, record)
    logical_id = params["LogicalResourceId"]
    resource = record.status.resources.get(logical_id)
    if resource is None:
        raise validation_error(f"Resource {logical_id} does not exist for stack {name}")
    shown = _resource(logical_id, resource, time="LastUpdatedTimestamp")
    return {"StackResourceDetail": {"StackName": name, "StackId": arn, **shown}}


def _resource(logical_id: str, resource: StackResource, *, time: str) -> Json:
    return {
        "LogicalResourceId": logical_id,
        "PhysicalResourceId": resource.physical_id or None,
        "ResourceType": resource.type,
        "ResourceStatus": resource.state,
        "ResourceStatusReason": resource.reason,
        time: resource.modified_s,
        "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
    }


def _named(context: CallContext, record: StackRecord) -> tuple[str, str]:
    stack = stack_name_of(record, context.aws_scope)
    return stack.name, stack.arn


def _summary(context: CallContext, record: StackRecord) -> Json:
    name, arn = _named(context, record)
    operation = record.spec.operation
    return {
        "StackName": name,
        "StackId": arn,
        "TemplateDescription": operation.description if operation is not None else None,
        "CreationTime": created_s(record),
        "LastUpdatedTime": record.status.updated_s,
        "DeletionTime": record.status.deleted_s,
        "StackStatus": visible_state(record),
        "StackStatusReason": record.status.reason,
        "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
    }


def _describe(context: CallContext, record: StackRecord) -> Json:
    summary, operation = _summary(context, record), record.spec.operation
    description = summary.pop("TemplateDescription")
    described = {
        **summary,
        "EnableTerminationProtection": record.spec.is_protected,
        "NotificationARNs": [],
        "RollbackConfiguration": {},
        "Tags": [],
    }
    if "ROLLBACK" in visible_state(record) and record.status.deployed is not None:
        operation = record.status.deployed
    if operation is None:
        return described
    timeout = {} if operation.timeout_s is None else {"TimeoutInMinutes": round(operation.timeout_s / 60)}
    change_set = operation.change_set
    executed = next((other for other in record.spec.change_sets if other.id == change_set), None)
    return {
        **described,
        **timeout,
        "ChangeSetId": change_set_arn(context, executed) if executed is not None else None,
        "Description": description,
        "Parameters": _parameters(operation),
        "Capabilities": operation.capabilities,
        "DisableRollback": operation.on_failure == "DO_NOTHING",
        "NotificationARNs": operation.notification_arns,
        "Outputs": list(record.status.outputs.values()),
        "RoleARN": operation.role_arn,
        "Tags": _tags(operation),
    }


def _tags(operation: StackOperation) -> list[Json]:
    return [{"Key": key, "Value": value} for key, value in operation.tags.items()]


def _parameters(operation: StackOperation) -> list[Json]:
    return [
        {
            "ParameterKey": name,
            "ParameterValue": HIDDEN if name in operation.hidden else text,
            "ResolvedValue": operation.resolved.get(name),
        }
        for name, text in operation.parameters.items()
    ]


def list_change_sets(context: CallContext, params: Json) -> Json:
    record = existing_stack(context, params["StackName"])
    page = _page(params, "Summaries", record.spec.change_sets)
    return {**page, "Summaries": [_change_set(context, record, change_set) for change_set in page["Summaries"]]}


def describe_change_set(context: CallContext, params: Json) -> Json:
    record, change_set = find_change_set(context, params)
    operation = change_set.operation
    return {
        **_change_set(context, record, change_set),
        **_page(params, "Changes", change_set.changes),
        "Parameters": _parameters(operation),
        "NotificationARNs": operation.notification_arns,
        "RollbackConfiguration": {},
        "Capabilities": operation.capabilities,
        "Tags": _tags(operation),
    }


def _change_set(context: CallContext, record: StackRecord, change_set: ChangeSet) -> Json:
    name, arn = _named(context, record)
    return {
        "ChangeSetName": change_set.name,
        "ChangeSetId": change_set_arn(context, change_set),
        "StackId": arn,
        "StackName": name,
        "Description": change_set.description,
        "CreationTime": change_set.created_s,
        "ExecutionStatus": execution_of(record, change_set),
        "Status": change_set.status,
        "StatusReason": change_set.reason,
        "IncludeNestedStacks": False,
    }


def get_template(context: CallContext, params: Json) -> Json:
    if "ChangeSetName" in params:
        _, change_set = find_change_set(context, params)
        operation: StackOperation | None = change_set.operation
    elif "StackName" in params:
        record = existing_stack(context, params["StackName"], message="Stack with id {} does not exist")
        operation = record.spec.operation
        if "ROLLBACK" in visible_state(record) and record.status.deployed is not None:
            operation = record.status.deployed
    else:
        raise validation_error("StackName must be specified.")
    body = operation.template if operation is not None else None
    return {"TemplateBody": body, "StagesAvailable": ["Original", "Processed"]}


def validate_template(context: CallContext, params: Json) -> Json:
    template = _read(context, params)
    capabilities, reason = needed_capabilities(template)
    names = ("ParameterKey", "DefaultValue", "NoEcho", "Description")
    return {
        "Parameters": [{name: shown.get(name) for name in names} for shown in _declared(template)],
        "Description": template.description,
        "Capabilities": capabilities,
        "CapabilitiesReason": reason or None,
        "DeclaredTransforms": list(template.transforms),
    }


def get_template_summary(context: CallContext, params: Json) -> Json:
    if "StackName" in params:
        template = parse_template(get_template(context, {"StackName": params["StackName"]})["TemplateBody"] or "")
    else:
        template = _read(context, params)
    capabilities, reason = needed_capabilities(template)
    return {
        "Parameters": _declared(template),
        "Description": template.description,
        "Capabilities": capabilities,
        "CapabilitiesReason": reason or None,
        "ResourceTypes": list(dict.fromkeys(resource.type for resource in template.resources.values())),
        "Version": "2010-09-09",
        "Metadata": json.dumps(template.metadata) if template.metadata else None,
        "DeclaredTransforms": list(template.transforms),
    }


def _read(context: CallContext, params: Json) -> Template:
    template = parse_template(template_text(context, params))
    check_types(template, context.operations)
    check_declarations(template)
    return template


def _declared(template: Template) -> list[Json]:
    return [
        {
            "ParameterKey": name,
            "DefaultValue": str(declared["Default"]) if "Default" in declared else None,
            "ParameterType": declared["Type"],
            "NoEcho": str(declared.get("NoEcho", False)).lower() == "true",
            "Description": declared.get("Description"),
            "ParameterConstraints": {"AllowedValues": [str(value) for value in declared.get("AllowedValues") or []]},
        }
        for name, declared in template.parameters.items()
    ]


def list_exports(context: CallContext, params: Json) -> Json:
    found = [
        {"ExportingStackId": _named(context, record)[1], "Name": name, "Value": value}
        for record in stacks(context.store)
        for name, value in exports(record).items()
    ]
    return _page(params, "Exports", found)


def list_imports(context: CallContext, params: Json) -> Json:
    name = params["ExportName"]
    users = users_of(context.store, name)
    if not users:
        raise validation_error(f"Export '{name}' is not imported by any stack.")
    return _page(params, "Imports", users)
