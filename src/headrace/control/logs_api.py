"""
The part of CloudWatch Logs that reads: DescribeLogGroups, DescribeLogStreams, FilterLogEvents, GetLogEvents.

A group is an endpoint, a stream one of its workers, named as SageMaker names them. What a worker wrote is there until
its endpoint is deleted (failed workers: the newest few).
"""

import base64
import heapq
import json
from collections.abc import Iterator
from typing import Any

from headrace.control.context import CallContext
from headrace.control.log_filter import LineFilter, read_pattern
from headrace.control.log_reader import LogEvent
from headrace.state.records import Kind, Record
from headrace.wire.aws.errors import AwsError

_MAX_EVENTS = 10_000
_MAX_ANSWER_CHARACTERS = 1_000_000
"""Source: CloudWatch Logs, FilterLogEvents: an answer has at most 1 MB."""
_MAX_SCANNED = 200_000
"""Lines that one call looks at; a pattern that seldom fits goes on with `nextToken`."""
_BLOCK = 1000


def describe_log_groups(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeLogGroups."""
    groups: dict[str, list[Record]] = {}
    for worker in context.store.list(Kind.WORKER):
        groups.setdefault(worker.spec["log_group"], []).append(worker)
    prefix, part = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "").lower()
    found = sorted(name for name in groups if name.startswith(prefix) and part in name.lower())
    page, token = _page(found, params)
    return {"logGroups": [_group(context, name, groups[name]) for name in page], **token}


def describe_log_streams(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeLogStreams."""
    workers = _workers(context, params)
    prefix = params.get("logStreamNamePrefix", "")
    streams = [_stream(context, one) for one in workers if one.spec["log_stream"].startswith(prefix)]
    by_time = params.get("orderBy") == "LastEventTime"
    streams.sort(
        key=lambda one: (one.get("lastEventTimestamp", 0) if by_time else 0, one["logStreamName"]),
        reverse=params.get("descending", False),
    )
    page, token = _page(streams, params)
    return {"logStreams": page, **token}


def filter_log_events(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """FilterLogEvents: the lines of several streams, in the order of their times."""
    workers = _chosen(_workers(context, params), params)
    wanted = read_pattern(params.get("filterPattern", ""))
    positions = _read_token(params.get("nextToken"))
    lines = heapq.merge(
        *(_lines(context, worker, params, positions.get(worker.name)) for worker in workers),
        key=lambda line: (line[0].timestamp_ms, line[1].name),
    )
    events, is_more = _take(lines, wanted, positions, limit=params.get("limit", _MAX_EVENTS))
    answer: dict[str, Any] = {"events": events, "searchedLogStreams": []}
    if is_more:
        answer["nextToken"] = _token(positions)
    return answer


def get_log_events(context: CallContext, params: dict[str, Any]) -> dict[str, Any]:
    """GetLogEvents: one stream, forwards or backwards; at its end the token stays the same."""
    worker = _worker(_workers(context, params), params["logStreamName"])
    direction, position = _read_place(params.get("nextToken"))
    is_forward = direction == "f" if direction else params.get("startFromHead", False)
    events = context.logs.read(
        worker.name,
        start_ms=params.get("startTime"),
        end_ms=params.get("endTime"),
        position=position,
        limit=params.get("limit", _MAX_EVENTS),
        is_backward=not is_forward,
    )
    first = events[0].position if events else position or 0
    last = events[-1].next_position if events else position or 0
    ingested_ms = int(context.now_s * 1000)
    return {
        "events": [{**_event(event), "ingestionTime": min(ingested_ms, event.timestamp_ms)} for event in events],
        "nextForwardToken": f"f/{last:020d}",
        "nextBackwardToken": f"b/{first:020d}",
    }


def _take(
    lines: Iterator[tuple[LogEvent, Record]], wanted: LineFilter, positions: dict[str, int], *, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Events until an answer is full, `positions` brought forward, and whether there is more."""
    events: list[dict[str, Any]] = []
    room = _MAX_ANSWER_CHARACTERS
    for number, (event, worker) in enumerate(lines):
        is_fitting = wanted.fits(event.message)
        if len(events) >= limit or number >= _MAX_SCANNED or (is_fitting and events and room < len(event.message)):
            return events, True
        positions[worker.name] = event.next_position
        if is_fitting:
            room -= len(event.message)
            stream = worker.spec["log_stream"]
            identity = f"{worker.name}:{event.position:020d}"
            events.append(
                {**_event(event), "logStreamName": stream, "ingestionTime": event.timestamp_ms, "eventId": identity}
            )
    return events, False


def _event(event: LogEvent) -> dict[str, Any]:
    return {"timestamp": event.timestamp_ms, "message": event.message or " "}


def _lines(
    context: CallContext, worker: Record, params: dict[str, Any], position: int | None
) -> Iterator[tuple[LogEvent, Record]]:
    """All lines of a worker within the times, a block at a time."""
    while True:
        block = context.logs.read(
            worker.name,
            start_ms=params.get("startTime"),
            end_ms=params.get("endTime"),
            position=position,
            limit=_BLOCK,
        )
        for event in block:
            yield event, worker
        if len(block) < _BLOCK:
            return
        position = block[-1].next_position


def _chosen(workers: list[Record], params: dict[str, Any]) -> list[Record]:
    names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
    if names and prefix:
        raise _invalid("Both logStreamNames and logStreamNamePrefix were given. Give one of them.")
    if names:
        return [_worker(workers, name) for name in dict.fromkeys(names)]
    return [worker for worker in workers if worker.spec["log_stream"].startswith(prefix)]


def _workers(context: CallContext, params: dict[str, Any]) -> list[Record]:
    """The workers of a log group."""
    group = params.get("logGroupName") or params.get("logGroupIdentifier", "")
    if not group:
        raise _invalid("Neither logGroupName nor logGroupIdentifier was given. Give one of them.")
    group = group.partition(":log-group:")[2].removesuffix(":*") or group
    found = [worker for worker in context.store.list(Kind.WORKER) if worker.spec["log_group"] == group]
    if not found:
        raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")
    return found


def _worker(workers: list[Record], stream: str) -> Record:
    found = next((worker for worker in workers if worker.spec["log_stream"] == stream), None)
    if found is None:
        raise AwsError("ResourceNotFoundException", "The specified log stream does not exist.")
    return found


def _group(context: CallContext, name: str, workers: list[Record]) -> dict[str, Any]:
    arn = _group_arn(context, name)
    return {
        "logGroupName": name,
        "creationTime": int(min(worker.created_s for worker in workers) * 1000),
        "metricFilterCount": 0,
        "arn": f"{arn}:*",
        "logGroupArn": arn,
        "storedBytes": sum(context.logs.size_bytes(worker.name) for worker in workers),
        "logGroupClass": "STANDARD",
    }


def _stream(context: CallContext, worker: Record) -> dict[str, Any]:
    name = worker.spec["log_stream"]
    stream: dict[str, Any] = {
        "logStreamName": name,
        "creationTime": int(worker.created_s * 1000),
        "arn": f"{_group_arn(context, worker.spec['log_group'])}:log-stream:{name}",
        "storedBytes": context.logs.size_bytes(worker.name),
    }
    first = context.logs.read(worker.name, limit=1)
    last = context.logs.read(worker.name, limit=1, is_backward=True)
    if first and last:
        times = {"firstEventTimestamp": first[0].timestamp_ms, "lastEventTimestamp": last[-1].timestamp_ms}
        stream |= {**times, "lastIngestionTime": last[-1].timestamp_ms}
    return stream


def _group_arn(context: CallContext, name: str) -> str:
    return f"arn:aws:logs:{context.site.region}:{context.site.account}:log-group:{name}"


def _page(things: list[Any], params: dict[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """A page of at most 50, and the token of the next one."""
    token = params.get("nextToken", "0")
    if not (token.isascii() and token.isdigit() and len(token) < 10):
        raise _invalid("The specified nextToken is invalid.")
    begin = int(token)
    end = begin + params.get("limit", 50)
    return things[begin:end], {"nextToken": str(end)} if end < len(things) else {}


def _token(positions: dict[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(positions).encode()).decode()


def _read_token(token: str | None) -> dict[str, int]:
    if token is None:
        return {}
    try:
        positions = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError):
        positions = None
    if not isinstance(positions, dict) or not all(_is_position(value) for value in positions.values()):
        raise _invalid("The specified nextToken is invalid.")
    return positions


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_place(token: str | None) -> tuple[str, int | None]:
    """Direction and position of GetLogEvents' token."""
    if token is None:
        return "", None
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or not (digits.isascii() and digits.isdigit() and len(digits) == 20):
        raise _invalid("The specified nextToken is invalid.")
    return direction, int(digits)


def _invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterException", message)
