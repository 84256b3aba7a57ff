"""
The operations of CloudWatch Logs on log streams and their events: those of workers, and those that callers put.

A log group is an endpoint or a component, a log stream is one of its workers, named as in SageMaker. The log of a
worker outlives the worker and its endpoint, bounded in size and age (`cluster.platform_logs`).
"""

from collections.abc import Iterator

from headrace.platform.account.resource import StoredRecord, StoredSpec
from headrace.platform.cluster.log_streams import LogStream, Reading, lines_of, read_token
from headrace.platform.cluster.worker_logs import WorkerLogEvent
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.json_patterns import JsonFilter
from headrace.platform.control.api.log_groups import (
    LOG_GROUPS,
    LOG_PAGES,
    STANDARD,
    expiry_ms,
    group_json,
    invalid,
    stored_groups,
)
from headrace.platform.control.api.log_lines import (
    LineFilter,
    all_streams,
    read_pattern,
)
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

_MAX_EVENTS = 10_000
_MAX_ANSWER_CHARACTERS = 1_000_000
"""Source: CloudWatch Logs, FilterLogEvents: a response has at most 1 MB."""
_PAGE_SIZE = 50
_MAX_SPAN_MS = 86_400_000
_MAX_PAST_MS, _MAX_FUTURE_MS = 14 * _MAX_SPAN_MS, 2 * 3_600_000
_MAX_BATCH_BYTES, _EVENT_BYTES = 1_048_576, 26
"""Span, age, and bytes of a batch, with those that each event counts beside its message. Source: PutLogEvents."""
_MAX_SCANNED = 200_000
"""Maximum lines scanned in a call; a pattern that rarely matches continues with `nextToken`."""


def describe_log_groups(context: CallContext, params: Json) -> Json:
    groups: dict[str, list[LogStream]] = {}
    for stream in all_streams(context):
        groups.setdefault(stream.group, []).append(stream)
    prefix, part = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "").lower()
    named = {_group_name(identifier) for identifier in params.get("logGroupIdentifiers") or []}
    stored = stored_groups(context)
    found = [
        name
        for name in groups.keys() | stored.keys()
        if name.startswith(prefix) and part in name.lower() and (not named or name in named)
    ]
    found = [name for name in found if params.get("logGroupClass") in (None, _class_of(stored.get(name)))]
    size = params.get("limit", _PAGE_SIZE)
    page, token = LOG_PAGES.page(found, params, listing="log groups", key=lambda name: (name,), size=size)
    shown = [group_json(context, name, stored.get(name), groups.get(name, [])) for name in page]
    return {"logGroups": shown, **token}


def _class_of(record: StoredRecord | None) -> str:
    return STANDARD if record is None else record.spec.members.get("logGroupClass", STANDARD)


def describe_log_streams(context: CallContext, params: Json) -> Json:
    prefix, is_descending = params.get("logStreamNamePrefix", ""), params.get("descending", False)
    streams = [stream for stream in _streams(context, params) if stream.name.startswith(prefix)]
    is_by_time = params.get("orderBy") == "LastEventTime"
    last_ms = {stream.worker: (_times_ms(context, stream) or (0, 0))[1] if is_by_time else 0 for stream in streams}
    page, token = LOG_PAGES.page(
        streams,
        params,
        listing="log streams by time" if is_by_time else "log streams",
        key=lambda stream: (last_ms[stream.worker], stream.name, stream.worker),
        size=params.get("limit", _PAGE_SIZE),
        is_descending=is_descending,
    )
    return {"logStreams": [_stream(context, stream) for stream in page], **token}


def filter_log_events(context: CallContext, params: Json) -> Json:
    """Answer FilterLogEvents: the lines of several streams, ordered by time."""
    streams = _chosen(_streams(context, params), params)
    wanted = read_pattern(params.get("filterPattern", ""))
    try:
        reading = read_token(params["nextToken"]) if "nextToken" in params else Reading()
    except ValueError:
        raise invalid("The specified nextToken is invalid.") from None
    lines = lines_of(
        context.logs, streams, reading, start_ms=_start_ms(context, params, streams), end_ms=params.get("endTime")
    )
    events, is_more = _take(lines, wanted, reading, limit=params.get("limit", _MAX_EVENTS))
    answer: Json = {"events": events, "searchedLogStreams": []}
    if is_more:
        answer["nextToken"] = reading.token()
    return answer


def get_log_events(context: CallContext, params: Json) -> Json:
    """Answer GetLogEvents: one stream, forwards or backwards; at its end the token stays the same."""
    stream = _named(_streams(context, params), params["logStreamName"])
    direction, position = _read_place(params.get("nextToken"))
    is_forward = direction == "f" if direction else params.get("startFromHead", False)
    events = context.logs.read(
        stream.worker,
        start_ms=_start_ms(context, params, [stream]),
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


def delete_log_group(context: CallContext, params: Json) -> Json:
    """Answer DeleteLogGroup: delete the logs of ended workers, or refuse if the group has running workers."""
    streams = _streams(context, params)
    if any(stream.is_running for stream in streams):
        raise AwsError("OperationAbortedException", f"{params['logGroupName']} has running workers, which write to it.")
    record = context.store.get(LOG_GROUPS.kind, _group_name(params["logGroupName"]))
    if record is not None:
        context.store.remove(record)
    context.logs.drop([stream.worker for stream in streams])
    return {}


def delete_log_stream(context: CallContext, params: Json) -> Json:
    """Answer DeleteLogStream: delete the log of an ended worker."""
    stream = _named(_streams(context, params), params["logStreamName"])
    if stream.is_running:
        raise AwsError("OperationAbortedException", f"The worker of {stream.name} is running and may write to it.")
    context.logs.drop([stream.worker])
    return {}


def create_log_stream(context: CallContext, params: Json) -> Json:
    group, name = LOG_GROUPS.find(context, params).name, params["logStreamName"]
    is_taken = any(stream.group == group and stream.name == name for stream in all_streams(context))
    try:
        if is_taken or not context.logs.open(group, name):
            raise AwsError("ResourceAlreadyExistsException", "The specified log stream already exists")
    except OSError as error:
        raise AwsError("ServiceUnavailableException", f"The log cannot be created: {error.strerror}.") from error
    return {}


def put_log_events(context: CallContext, params: Json) -> Json:
    """Answer PutLogEvents: append events to a stream that CreateLogStream has made; sequence tokens are not needed."""
    stream = _named(_streams(context, params), params["logStreamName"])
    if not stream.is_open:
        raise invalid(f"The log stream {stream.name} is that of a worker. Create a stream of your own.")
    events = [(event["timestamp"], event["message"]) for event in params["logEvents"]]
    times_ms = [timestamp_ms for timestamp_ms, _ in events]
    if times_ms != sorted(times_ms) or times_ms[-1] - times_ms[0] > _MAX_SPAN_MS:
        raise invalid("Log events in a single PutLogEvents request must be in chronological order, within 24 hours.")
    if sum(len(message.encode(errors="replace")) + _EVENT_BYTES for _, message in events) > _MAX_BATCH_BYTES:
        raise invalid(f"Upload too large: more than {_MAX_BATCH_BYTES} bytes.")
    taken, rejected = _accepted(context, stream.group, events)
    try:
        context.logs.put(stream.worker, taken)
    except ValueError as error:
        raise invalid(f"Log event too large: {error}.") from None
    except OSError as error:
        raise AwsError("ServiceUnavailableException", f"The events cannot be stored: {error.strerror}.") from error
    return {"nextSequenceToken": "0", **({"rejectedLogEventsInfo": rejected} if rejected else {})}


def _accepted(context: CallContext, group: str, events: list[tuple[int, str]]) -> tuple[list[tuple[int, str]], Json]:
    """Return the events that are neither too old nor too new, and which ones are rejected."""
    now_ms = int(context.now_s * 1000)
    too_old = sum(time_ms < now_ms - _MAX_PAST_MS for time_ms, _ in events)
    expired = sum(time_ms < expiry_ms(context, group) for time_ms, _ in events)
    end = sum(time_ms <= now_ms + _MAX_FUTURE_MS for time_ms, _ in events)
    rejected = {
        **({"tooOldLogEventEndIndex": too_old} if too_old else {}),
        **({"expiredLogEventEndIndex": expired} if expired else {}),
        **({"tooNewLogEventStartIndex": end} if end < len(events) else {}),
    }
    return events[max(too_old, expired) : end], rejected


def _take(
    lines: Iterator[tuple[WorkerLogEvent, LogStream]], wanted: LineFilter | JsonFilter, reading: Reading, *, limit: int
) -> tuple[list[Json], bool]:
    """Return events until the response is full, and whether there are more; advance `reading`."""
    events: list[Json] = []
    room = _MAX_ANSWER_CHARACTERS
    for number, (event, stream) in enumerate(lines):
        is_fitting = wanted.fits(event.message)
        # Before the line counts as read: the next call begins with it.
        if len(events) >= limit or number >= _MAX_SCANNED or (is_fitting and events and room < len(event.message)):
            return events, True
        reading.positions[stream.worker] = event.next_position
        if is_fitting:
            room -= len(event.message)
            identity = f"{stream.worker}:{event.position:020d}"
            events.append(
                {
                    **_event(event),
                    "logStreamName": stream.name,
                    "ingestionTime": event.timestamp_ms,
                    "eventId": identity,
                }
            )
    return events, False


def _event(event: WorkerLogEvent) -> Json:
    return {"timestamp": event.timestamp_ms, "message": event.message or " "}


def _chosen(streams: list[LogStream], params: Json) -> list[LogStream]:
    names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
    if names and prefix:
        raise invalid("Both logStreamNames and logStreamNamePrefix were given. Give one of them.")
    if names:
        return [_named(streams, name) for name in dict.fromkeys(names)]
    return [stream for stream in streams if stream.name.startswith(prefix)]


def _streams(context: CallContext, params: Json) -> list[LogStream]:
    group = params.get("logGroupName") or params.get("logGroupIdentifier", "")
    if not group:
        raise invalid("Neither logGroupName nor logGroupIdentifier was given. Give one of them.")
    group = _group_name(group)
    found = [stream for stream in all_streams(context) if stream.group == group]
    if found and (oldest_ms := expiry_ms(context, group)):
        expired = [stream for stream in found if stream.times_ms is not None and stream.times_ms[1] < oldest_ms]
        context.logs.drop([stream.worker for stream in expired])
        found = [stream for stream in found if stream not in expired]
    if not found and context.store.get(LOG_GROUPS.kind, group) is None:
        raise LOG_GROUPS.absent.error()
    return found


def _start_ms(context: CallContext, params: Json, streams: list[LogStream]) -> int | None:
    """Return the time from which lines of a group's streams are read; None: from the first one."""
    oldest_ms = max((expiry_ms(context, stream.group) for stream in streams[:1]), default=0)
    return max(params.get("startTime", 0), oldest_ms) or None


def _group_name(identifier: str) -> str:
    """Return the name of a log group that is given by its name or its ARN."""
    return identifier.partition(":log-group:")[2].removesuffix(":*") or identifier


def _named(streams: list[LogStream], name: str) -> LogStream:
    found = next((stream for stream in streams if stream.name == name), None)
    if found is None:
        raise AwsError("ResourceNotFoundException", "The specified log stream does not exist.")
    return found


def _stream(context: CallContext, stream: LogStream) -> Json:
    found: Json = {
        "logStreamName": stream.name,
        "creationTime": stream.created_ms,
        "arn": f"{_group_arn(context, stream.group)}:log-stream:{stream.name}",
        "storedBytes": context.logs.size_bytes(stream.worker),
    }
    if times_ms := _times_ms(context, stream):
        first_ms, last_ms = times_ms
        found |= {"firstEventTimestamp": first_ms, "lastEventTimestamp": last_ms, "lastIngestionTime": last_ms}
    return found


def _times_ms(context: CallContext, stream: LogStream) -> tuple[int, int] | None:
    """Return the times of the first and the last line, or None if there are no lines."""
    if stream.times_ms is not None:
        return stream.times_ms
    first = context.logs.read(stream.worker, limit=1)
    last = context.logs.read(stream.worker, limit=1, is_backward=True)
    return (first[0].timestamp_ms, last[-1].timestamp_ms) if first and last else None


def _group_arn(context: CallContext, name: str) -> str:
    return LOG_GROUPS.arn_of(context, name, StoredSpec(members={}))


def _read_place(token: str | None) -> tuple[str, int | None]:
    """Parse direction and position from a token of GetLogEvents."""
    if token is None:
        return "", None
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or not (digits.isascii() and digits.isdigit() and len(digits) == 20):
        raise invalid("The specified nextToken is invalid.")
    return direction, int(digits)
