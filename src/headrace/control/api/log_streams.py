"""
The streams of a log group, of ended workers too, and their lines in the order of time.

A group may have thousands of streams of ended workers. One that ended before another one began is read before that, so
that few are open at a time, and the token of a long answer names only those that are not done.
"""

import base64
import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.control.api.context import CallContext
from headrace.control.model.log_reader import LogEvent
from headrace.control.model.worker import WORKER
from headrace.state.records import Record

_BLOCK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStream:
    """What one worker wrote, or writes. All times are milliseconds since 1970."""

    worker: str
    group: str
    name: str
    created_ms: int
    is_ended: bool = False
    times_ms: tuple[int, int] | None = None
    """Of the first and of the last line, if the worker has ended."""
    ended_ms: int = 0

    @property
    def order(self) -> tuple[int, str]:
        """When it began, and its worker. Not its creation alone: another machine's clock may be slow."""
        return (self.created_ms if self.times_ms is None else min(self.times_ms[0], self.created_ms)), self.worker

    def may_have(self, start_ms: int | None, end_ms: int | None) -> bool:
        """Whether lines of these times may be in it."""
        if self.times_ms is None:
            return True
        first_ms, last_ms = self.order[0], max(self.times_ms[1], self.ended_ms)
        return (start_ms is None or last_ms >= start_ms) and (end_ms is None or first_ms < end_ms)


@dataclass(slots=True)
class Reading:
    """How far several streams have been read."""

    positions: dict[str, int] = field(default_factory=dict)
    """By worker: where the next line of a stream begins that was begun and may have more."""
    begun: tuple[int, str] = (-1, "")
    """`order` of the last ended stream that was begun; one that is not after it and has no position is done."""

    def token(self) -> str:
        """It as text."""
        return base64.urlsafe_b64encode(json.dumps([self.positions, *self.begun]).encode()).decode()

    def is_done(self, stream: LogStream) -> bool:
        """Whether nothing more is to be read of a stream."""
        return stream.is_ended and stream.order <= self.begun and stream.worker not in self.positions

    def begin(self, stream: LogStream) -> int:
        """Where to go on in a stream."""
        if stream.is_ended:
            self.begun = max(self.begun, stream.order)
        return self.positions.setdefault(stream.worker, 0)


def read_token(token: str) -> Reading:
    """
    What `Reading.token` made.

    Raises:
        ValueError: it made something else.
    """
    try:
        positions, created_ms, worker = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (TypeError, RecursionError) as error:
        raise ValueError(token) from error
    is_known = isinstance(positions, dict) and all(_is_number(value) for value in positions.values())
    if not (is_known and isinstance(created_ms, int) and isinstance(worker, str)):
        raise ValueError(token)
    return Reading(positions=positions, begun=(created_ms, worker))


def all_streams(context: CallContext) -> list[LogStream]:
    """The streams of the workers that there are, and of those that were; the oldest first."""
    found = {
        record.name: LogStream(
            worker=record.name,
            group=record.spec.log_group,
            name=record.spec.log_stream,
            created_ms=int(record.created_s * 1000),
        )
        for record in context.store.list(WORKER)
        if isinstance(record, Record)
    }
    for ended in context.logs.ended():  # after the records, or one that ends meanwhile would be in neither
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
    context: CallContext, streams: Sequence[LogStream], params: dict[str, Any], reading: Reading
) -> Iterator[tuple[LogEvent, LogStream]]:
    """
    The lines of streams in the order of their times, from where `reading` says.

    Whoever takes a line writes down in `reading` where the next one begins, before asking for another one.
    """
    start_ms, end_ms = params.get("startTime"), params.get("endTime")

    def lines(stream: LogStream) -> Iterator[LogEvent]:
        position, num_read = reading.begin(stream), _BLOCK
        while num_read == _BLOCK:
            block = context.logs.read(stream.worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=_BLOCK)
            yield from block
            num_read, position = len(block), block[-1].next_position if block else position
        if stream.is_ended:
            del reading.positions[stream.worker]

    wanted = [one for one in streams if one.may_have(start_ms, end_ms) and not reading.is_done(one)]
    later = [one for one in wanted if one.is_ended and one.worker not in reading.positions]
    now = [one for one in wanted if not one.is_ended or one.worker in reading.positions]
    return _merged(now, sorted(later, key=lambda stream: stream.order), lines)


def _merged(
    now: Sequence[LogStream], later: Sequence[LogStream], lines: Callable[[LogStream], Iterator[LogEvent]]
) -> Iterator[tuple[LogEvent, LogStream]]:
    """Lines in the order of time; the streams of `later` are begun when their times have come."""
    waiting, heads = deque(later), list[tuple[int, str, LogEvent, LogStream, Iterator[LogEvent]]]()

    def put(stream: LogStream, rest: Iterator[LogEvent]) -> None:
        if (event := next(rest, None)) is not None:
            heapq.heappush(heads, (event.timestamp_ms, stream.worker, event, stream, rest))

    for stream in now:
        put(stream, lines(stream))
    while waiting or heads:
        while waiting and not (heads and heads[0][0] < waiting[0].order[0]):
            stream = waiting.popleft()
            put(stream, lines(stream))
        if heads:
            _, _, event, stream, rest = heapq.heappop(heads)
            yield event, stream
            put(stream, rest)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
