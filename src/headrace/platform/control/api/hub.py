"""Operations that read JumpStart's public hub. Private hubs are not supported: no operation creates one."""

from collections.abc import Callable, Iterable
from typing import Final

from headrace.platform.control.api.context import PAGE_SIZE, CallContext
from headrace.platform.control.jumpstart import hub_documents
from headrace.platform.control.jumpstart.catalogue import CatalogueRow
from headrace.platform.control.jumpstart.hub_documents import PUBLIC_HUB
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.paging import Key, Paginator

_CREATED_S: Final = 1_700_000_000.0
"""Time of creation of the hub and of all that it contains: a row of a catalogue has none."""
_PAGES = Paginator(invalid_token=lambda: validation_error("Invalid NextToken. Start again without it."))


def describe_hub(context: CallContext, params: Json) -> Json:
    _check_hub(params["HubName"])
    return hub_documents.hub_summary(context.aws_scope.region, created_s=_CREATED_S)


def list_hubs(context: CallContext, params: Json) -> Json:
    hub = hub_documents.hub_summary(context.aws_scope.region, created_s=_CREATED_S)
    return _page("HubSummaries", [hub], params, name="HubName")


def list_hub_contents(context: CallContext, params: Json) -> Json:
    """List the newest version of each model; the hub has no content of other types."""
    _check_hub(params["HubName"])
    rows = context.jumpstart.rows.values() if params["HubContentType"] == "Model" else ()
    summaries = (_summary(context, row, row.version) for row in rows)
    return _page("HubContentSummaries", summaries, params, name="HubContentName")


def list_hub_content_versions(context: CallContext, params: Json) -> Json:
    row = _find(context, params)
    least = _number(params.get("MinVersion", "0"))
    summaries = (_summary(context, row, version) for version in row.versions if _number(version) >= least)
    return _page("HubContentSummaries", summaries, params, name="HubContentVersion")


def describe_hub_content(context: CallContext, params: Json) -> Json:
    row = _find(context, params)
    version = params.get("HubContentVersion", row.version)
    if version not in row.versions:
        raise _not_found(f"version {version} of hub content {row.model_id}")
    return hub_documents.content(row, version, context.aws_scope.region, created_s=_CREATED_S)


def _summary(context: CallContext, row: CatalogueRow, version: str) -> Json:
    return hub_documents.content_summary(row, version, context.aws_scope.region, created_s=_CREATED_S)


def _check_hub(name: str) -> None:
    if name.rpartition("/")[2] != PUBLIC_HUB:
        raise _not_found(f"hub {name}", f"Headrace has no private hubs; expected {PUBLIC_HUB}.")


def _find(context: CallContext, params: Json) -> CatalogueRow:
    _check_hub(params["HubName"])
    name, kind = params["HubContentName"], params["HubContentType"]
    row = context.jumpstart.rows.get(name) if kind == "Model" else None
    if row is None:
        raise _not_found(f"{kind} {name} in {PUBLIC_HUB}", f"`headrace jumpstart add {name} --model MODEL` adds it.")
    return row


def _not_found(what: str, advice: str = "") -> AwsError:
    return AwsError("ResourceNotFound", f"Could not find {what}. {advice}".rstrip())


def _number(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _page(member: str, summaries: Iterable[Json], params: Json, *, name: str) -> Json:
    """Return a page of summaries by name: all have the same time and status."""
    fitting = [
        summary
        for summary in summaries
        if params.get("NameContains", "").lower() in summary[name].lower()
        and all(
            params.get(f"{time}After", 0.0) < _CREATED_S < params.get(f"{time}Before", float("inf"))
            for time in ("CreationTime", "LastModifiedTime")
        )
    ]
    page, token = _PAGES.page(
        fitting,
        params,
        listing=f"{member} by {name}",
        key=_by(name),
        size=params.get("MaxResults", PAGE_SIZE),
        is_descending=params.get("SortOrder") == "Descending",
    )
    return {member: page, **token}


def _by(name: str) -> Callable[[Json], Key]:
    if name == "HubContentVersion":
        return lambda summary: tuple(_number(summary[name]))
    return lambda summary: (summary[name],)
