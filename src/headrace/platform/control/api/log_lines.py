"""
The lines of a log group: its streams, their lines ordered by time, and the filter patterns that select lines.

A group may have thousands of streams of ended workers. Streams that do not overlap in time are read one after another,
so that few are open at a time and the token of a long answer names only unfinished ones.

Filter patterns consist of words, "quoted words", ?alternatives and -exclusions. Patterns for JSON (`{ ... }`), for
columns (`[ ... ]`) and regular expressions (`%...%`) are refused by name rather than misinterpreted.
Source: CloudWatch Logs user guide, "Filter pattern syntax".
"""

import base64
import heapq
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.platform.cluster.worker_logs import WorkerLogEvent
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.records import Json, Record
from headrace.serving.wire.aws.errors import AwsError

_BLOCK = 1000
_TERM = re.compile(r'(?P<sign>[?-]?)(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStream:
    """The log of a running or ended worker. All times are milliseconds since 1970."""

    worker: str
    group: str
    name: str
    created_ms: int
    is_ended: bool = False
    times_ms: tuple[int, int] | None = None
    """Times of the first and the last line, if the worker has ended."""
    ended_ms: int = 0

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: start time and worker. The start may precede the creation: the worker's clock may be slow."""
        return (self.created_ms if self.times_ms is None else min(self.times_ms[0], self.created_ms)), self.worker

    def may_have(self, start_ms: int | None, end_ms: int | None) -> bool:
        if self.times_ms is None:
            return True
        first_ms, last_ms = self.order[0], max(self.times_ms[1], self.ended_ms)
        return (start_ms is None or last_ms >= start_ms) and (end_ms is None or first_ms < end_ms)


@dataclass(slots=True)
class Reading:
    positions: dict[str, int] = field(default_factory=dict)
    """By worker: the position of the next line in a stream that was started and may have more."""
    begun: tuple[int, str] = (-1, "")
    """`order` of the last ended stream that was started; streams up to it without a position are done."""

    def token(self) -> str:
        return base64.urlsafe_b64encode(json.dumps([self.positions, *self.begun]).encode()).decode()

    def is_done(self, stream: LogStream) -> bool:
        return stream.is_ended and stream.order <= self.begun and stream.worker not in self.positions

    def begin(self, stream: LogStream) -> int:
        """Start or resume a stream, and return its read position."""
        if stream.is_ended:
            self.begun = max(self.begun, stream.order)
        return self.positions.setdefault(stream.worker, 0)


def read_token(token: str) -> Reading:
    """Decode a token of `Reading.token`. Raises `ValueError`: the token is invalid."""
    try:
        positions, created_ms, worker = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (TypeError, RecursionError) as error:
        raise ValueError(token) from error
    are_positions = isinstance(positions, dict) and all(
        type(value) is int and value >= 0 for value in positions.values()
    )
    if not (are_positions and isinstance(created_ms, int) and isinstance(worker, str)):
        raise ValueError(token)
    return Reading(positions=positions, begun=(created_ms, worker))


def all_streams(context: CallContext) -> list[LogStream]:
    """Return the streams of all running and ended workers, oldest first."""
    found = {
        record.name: LogStream(
            worker=record.name,
            group=record.spec.log_group,
            name=record.spec.log_stream,
            created_ms=int(record.created_s * 1000),
        )
        for record in context.store.each(WORKER)
        if isinstance(record, Record)
    }
    for ended in context.logs.ended():  # after the records: else a worker that ends in between is in neither
        found.setdefault(
            ended.worker,
            LogStream(
                worker=ended.worker,
                group=ended.log_group,
                name=ended.log_stream,
                created_ms=ended.created_ms,
                is_ended=True,
                times_ms=(ended.first_ms, ended.last_ms),
                ended_ms=ended.ended_ms,
            ),
        )
    return sorted(found.values(), key=lambda stream: stream.order)


def lines_of(
    context: CallContext, streams: Sequence[LogStream], params: Json, reading: Reading
) -> Iterator[tuple[WorkerLogEvent, LogStream]]:
    """
    Yield the lines of streams ordered by time, starting at the positions of `reading`.

    The caller stores the position of the next line in `reading` before it takes another line.
    """
    start_ms, end_ms = params.get("startTime"), params.get("endTime")

    def lines(stream: LogStream) -> Iterator[WorkerLogEvent]:
        position, num_read = reading.begin(stream), _BLOCK
        while num_read == _BLOCK:
            block = context.logs.read(stream.worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=_BLOCK)
            yield from block
            num_read, position = len(block), block[-1].next_position if block else position
        if stream.is_ended:
            del reading.positions[stream.worker]

    unread = [stream for stream in streams if stream.may_have(start_ms, end_ms) and not reading.is_done(stream)]
    later = [stream for stream in unread if stream.is_ended and stream.worker not in reading.positions]
    now = [stream for stream in unread if not stream.is_ended or stream.worker in reading.positions]
    return _merged(now, sorted(later, key=lambda stream: stream.order), lines)


def _merged(
    now: Sequence[LogStream], later: Sequence[LogStream], lines: Callable[[LogStream], Iterator[WorkerLogEvent]]
) -> Iterator[tuple[WorkerLogEvent, LogStream]]:
    """Merge lines by time; a stream of `later` is opened when its start time is reached."""
    waiting, heads = deque(later), list[tuple[int, str, WorkerLogEvent, LogStream, Iterator[WorkerLogEvent]]]()

    def put(stream: LogStream, rest: Iterator[WorkerLogEvent]) -> None:
        if (event := next(rest, None)) is not None:
            heapq.heappush(heads, (event.timestamp_ms, stream.worker, event, stream, rest))

    for stream in now:
        put(stream, lines(stream))
    while waiting or heads:
        # Open a stream only when no open one has an older line, so that few are open at a time.
        while waiting and not (heads and heads[0][0] < waiting[0].order[0]):
            stream = waiting.popleft()
            put(stream, lines(stream))
        if heads:
            _, _, event, stream, rest = heapq.heappop(heads)
            yield event, stream
            put(stream, rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def fits(self, line: str) -> bool:
        """Return whether a line matches; case matters."""
        if any(term in line for term in self.none_of) or not all(term in line for term in self.all_of):
            return False
        return not self.any_of or bool(self.all_of) or any(term in line for term in self.any_of)


def read_pattern(pattern: str) -> LineFilter:
    """Parse a `filterPattern`. Raises `AwsError`: InvalidParameterException, for an unsupported kind of pattern."""
    text = pattern.strip()
    if text[:1] in ("{", "[", "%"):
        raise AwsError(
            "InvalidParameterException",
            f'Invalid filter pattern {pattern!r}: only words, "quoted words", ?alternatives and -exclusions are '
            "supported by Headrace.",
        )
    terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
    for found in _TERM.finditer(text):
        quoted = found["quoted"]
        word = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else found["plain"]
        if word:
            terms[found["sign"]].append(word)
    return LineFilter(all_of=tuple(terms[""]), any_of=tuple(terms["?"]), none_of=tuple(terms["-"]))
