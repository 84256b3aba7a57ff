"""The operations of CloudFormation, and that of SSM, whose modules are imported with their first call: few use them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from headrace.platform.control.api.context import CallContext, Handler
from headrace.platform.state.records import Json

_HANDLERS: Final = {
    "stacks": {
        "CreateStack": "create_stack",
        "UpdateStack": "update_stack",
        "CancelUpdateStack": "cancel_update_stack",
        "ContinueUpdateRollback": "continue_update_rollback",
        "DeleteStack": "delete_stack",
        "UpdateTerminationProtection": "update_termination_protection",
    },
    "change_sets": {
        "CreateChangeSet": "create_change_set",
        "ExecuteChangeSet": "execute_change_set",
        "DeleteChangeSet": "delete_change_set",
    },
    "describing": {
        "DescribeChangeSet": "describe_change_set",
        "DescribeStackEvents": "describe_stack_events",
        "DescribeStackResource": "describe_stack_resource",
        "DescribeStackResources": "describe_stack_resources",
        "DescribeStacks": "describe_stacks",
        "GetTemplate": "get_template",
        "GetTemplateSummary": "get_template_summary",
        "ListChangeSets": "list_change_sets",
        "ListExports": "list_exports",
        "ListImports": "list_imports",
        "ListStackResources": "list_stack_resources",
        "ListStacks": "list_stacks",
        "ValidateTemplate": "validate_template",
    },
}


def _imported(module: str, name: str) -> Handler:

    def handle(context: CallContext, params: Json) -> Json:
        handler: Handler = getattr(import_module(f"headrace.platform.cloudformation.api.{module}"), name)
        return handler(context, params)

    return handle


STACK_OPERATIONS: Final[Mapping[tuple[str, str], Handler]] = {
    **{
        ("cloudformation", operation): _imported(module, name)
        for module, handlers in _HANDLERS.items()
        for operation, name in handlers.items()
    },
    ("ssm", "GetParameter"): _imported("requests", "get_parameter"),
}
