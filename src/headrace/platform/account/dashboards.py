"""CloudWatch's dashboards: bodies in JSON, which tools store and read; Headrace draws none."""

import json
import re
from typing import Final

from headrace.platform.account.resource import Pages, Refusal, Resource, stored_kind
from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.cloudwatch.validation import PAGES
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_ABSENT: Final = Refusal("ResourceNotFound", "Dashboard {name} does not exist", 404)


def _check(members: Json) -> None:
    name = members["DashboardName"]
    if not _NAME.fullmatch(name):
        raise AwsError(
            "InvalidParameterInput",
            f"The value {name} for field DashboardName contains invalid characters. It can only contain alphanumerics, "
            "dash (-) and underscore (_).",
        )
    try:
        is_object = isinstance(json.loads(members["DashboardBody"]), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise AwsError("InvalidParameterInput", "The field DashboardBody must be a valid JSON object")


DASHBOARDS: Final = Resource(
    kind=stored_kind("dashboard"),
    key="DashboardName",
    list_member="DashboardEntries",
    arn="cloudwatch::{account}:dashboard/{name}",
    names=("DashboardName",),
    pages=Pages(paginator=PAGES, size=1000),
    absent=_ABSENT,
    present=Refusal("ConflictException", "Another call creates the dashboard {name}.", 409),
    full=Refusal("LimitExceeded", "There are {most} dashboards already; delete some first."),
    invalid=Refusal("InvalidParameterValue", "{why}"),
    most=5000,
    arn_member="DashboardArn",
    prefix_member="DashboardNamePrefix",
    check=_check,
    shown=lambda _, record: {
        "LastModified": record.modified_s,
        "Size": len(record.spec.members["DashboardBody"].encode(errors="surrogatepass")),
    },
)


def put_dashboard(context: CloudWatchCall, params: Json) -> Json:
    DASHBOARDS.put(context, params)
    return {"DashboardValidationMessages": []}


def delete_dashboards(context: CloudWatchCall, params: Json) -> Json:
    """Answer DeleteDashboards: none is deleted if one does not exist."""
    for name in params["DashboardNames"]:
        if context.store.get(DASHBOARDS.kind, name) is None:
            raise _ABSENT.error(name=name)
    for name in dict.fromkeys(params["DashboardNames"]):
        DASHBOARDS.delete(context, {"DashboardName": name})
    return {}
