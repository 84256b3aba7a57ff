"""
The operations of CloudWatch Logs Insights.

A query runs in a process of its own (`insights.runner`) of the member that took the call. Its result is a record, so
that every member answers GetQueryResults.
"""

import uuid
from typing import Final

import msgspec

from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.log_groups import LOG_GROUPS, LOG_PAGES, expiry_ms, invalid
from headrace.platform.control.api.log_lines import all_streams
from headrace.platform.control.model.log_query import LOG_QUERY, LogQuerySpec, LogQueryStatus
from headrace.platform.insights.jobs import QueryJob, QueryOutcome
from headrace.platform.insights.runner import MAX_RUNNING, TIMEOUT_S
from headrace.platform.insights.syntax import MAX_ROWS, BadQuery, read_query
from headrace.platform.state.records import Conflict, Json, Record, readable
from headrace.platform.state.selection import Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError

_MAX_KEPT: Final = 50
"""Queries whose results are kept; the oldest are removed first."""
_GRACE_S: Final = 30.0
"""Seconds after its time limit until a query counts as lost, because the process that ran it has ended."""
_LANGUAGE: Final = "CWLI"

QueryRecord = Record[LogQuerySpec, LogQueryStatus]


def start_query(context: CallContext, params: Json) -> Json:
    if params.get("queryLanguage", _LANGUAGE) != _LANGUAGE:
        raise invalid(f"queryLanguage is {params['queryLanguage']}; Headrace supports {_LANGUAGE}.")
    try:
        read_query(params["queryString"])
    except BadQuery as error:
        message = str(error)
        compile_error = {"queryCompileError": {"message": message}}
        raise AwsError("MalformedQueryException", message, members=compile_error) from None
    if params["endTime"] < params["startTime"]:
        raise invalid("End time should not be less than start time.")
    groups = _groups(context, params)
    spec = LogQuerySpec(
        query=params["queryString"],
        groups=groups,
        start_s=params["startTime"],
        end_s=params["endTime"],
        limit=params.get("limit", MAX_ROWS),
    )
    record = context.store.create(LOG_QUERY, str(uuid.uuid4()), spec=spec)
    store = context.store
    if not context.queries.start(record.name, _job(context, spec), lambda found: _end(store, record, found)):
        store.remove(record)
        raise AwsError("LimitExceededException", f"Account maximum query concurrency limit of [{MAX_RUNNING}] reached.")
    _remove_oldest(store)
    return {"queryId": record.name}


def _groups(context: CallContext, params: Json) -> list[str]:
    given = [
        *((params["logGroupName"],) if "logGroupName" in params else ()),
        *params.get("logGroupNames", ()),
        *params.get("logGroupIdentifiers", ()),
    ]
    if not given:
        raise invalid("None of logGroupName, logGroupNames and logGroupIdentifiers was given. Give one of them.")
    found = [LOG_GROUPS.find(context, {"resourceArn": name.removesuffix(":*")}).name for name in given]
    return list(dict.fromkeys(found))


def _job(context: CallContext, spec: LogQuerySpec) -> QueryJob:
    workers, ended = context.logs.folders
    streams = [stream for stream in all_streams(context) if stream.group in spec.groups]
    for stream in streams:
        context.logs.fetch(stream.worker)
    return QueryJob(
        query=spec.query,
        start_ms=int(spec.start_s * 1000),
        end_ms=int(spec.end_s * 1000) + 1000,
        limit=spec.limit,
        account=context.aws_scope.account,
        workers=str(workers),
        ended=str(ended),
        streams=streams,
        retention_ms={group: expiry_ms(context, group) for group in spec.groups},
    )


def _end(store: Store, record: QueryRecord, found: QueryOutcome | None) -> None:
    """Store the outcome of a query, unless it was stopped or removed."""
    if found is None:
        status = LogQueryStatus(state="Timeout")
    else:
        members = {name: getattr(found, name) for name in ("error", "rows", "num_scanned", "num_matched", "num_bytes")}
        status = LogQueryStatus(state="Failed" if found.error else "Complete", **members)
    try:
        written = store.update(record, status=status)
        store.update(written, status=msgspec.structs.replace(status, ended_s=written.modified_s))
    except Conflict:
        return


def _remove_oldest(store: Store) -> None:
    entries = list(store.entries(LOG_QUERY, Selection(order="created", is_descending=True)))
    for entry in entries[_MAX_KEPT:]:
        if (record := store.get(LOG_QUERY, entry.name)) is not None:
            store.remove(record)


def get_query_results(context: CallContext, params: Json) -> Json:
    record = _find(context, params["queryId"])
    status, listing = record.status, f"results of {record.name}"
    begin = LOG_PAGES.begin(params, listing=listing)
    end = begin + params.get("maxItems", MAX_ROWS)
    token = LOG_PAGES.token_at(end, listing=listing) if end < len(status.rows) else {}
    return {
        "queryLanguage": _LANGUAGE,
        "results": status.rows[begin:end],
        "statistics": {
            "recordsMatched": float(status.num_matched),
            "recordsScanned": float(status.num_scanned),
            "bytesScanned": float(status.num_bytes),
            "logGroupsScanned": float(len(record.spec.groups)),
            "resultCount": float(len(status.rows)),
        },
        "status": _state(context, record),
        **token,
    }


def stop_query(context: CallContext, params: Json) -> Json:
    record = _find(context, params["queryId"])
    if _state(context, record) != "Running":
        raise invalid(f"Query {record.name} has already ended with the status {_state(context, record)}.")
    context.store.update(record, status=LogQueryStatus(state="Cancelled"))
    context.queries.stop(record.name)
    return {"success": True}


def describe_queries(context: CallContext, params: Json) -> Json:
    found: list[Json] = [
        {
            "queryLanguage": _LANGUAGE,
            "queryId": record.name,
            "queryString": record.spec.query,
            "status": _state(context, record),
            "createTime": int(record.created_s * 1000),
            "logGroupName": record.spec.groups[0],
        }
        for record in readable(context.store.each(LOG_QUERY))
        if params.get("logGroupName") in (None, *record.spec.groups)
        and params.get("status") in (None, _state(context, record))
        and params.get("queryLanguage", _LANGUAGE) == _LANGUAGE
    ]
    page, token = LOG_PAGES.page(
        found,
        params,
        listing="queries",
        key=lambda query: (query["createTime"], query["queryId"]),
        size=params.get("maxResults", _MAX_KEPT),
        is_descending=True,
    )
    return {"queries": page, **token}


def _state(context: CallContext, record: QueryRecord) -> str:
    is_lost = context.now_s - record.created_s > TIMEOUT_S + _GRACE_S
    return "Timeout" if record.status.state == "Running" and is_lost else record.status.state


def _find(context: CallContext, query_id: str) -> QueryRecord:
    record = context.store.get(LOG_QUERY, query_id)
    if not isinstance(record, Record):
        raise AwsError("ResourceNotFoundException", "The specified query does not exist.")
    return record
