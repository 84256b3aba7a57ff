"""
Log streams, and their lines ordered by time.

A group may have thousands of streams of ended workers. Streams that do not overlap in time are read one after another,
so that few are open at a time and the token of a long answer names only unfinished ones.
"""

import base64
import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.cluster.worker_logs import WorkerLogEvent

_BLOCK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStream:
    """The log of a running or ended worker. All times are milliseconds since 1970."""

    worker: str
    group: str
    name: str
    created_ms: int
    is_ended: bool = False
    is_open: bool = False
    """Callers write to it, not a worker."""
    times_ms: tuple[int, int] | None = None
    """Times of the first and the last line, if the worker has ended."""
    ended_ms: int = 0

    @property
    def is_running(self) -> bool:
        """True while a worker may write to it."""
        return not self.is_ended and not self.is_open

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


def lines_of(
    logs: PlatformLogs,
    streams: Sequence[LogStream],
    reading: Reading,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Iterator[tuple[WorkerLogEvent, LogStream]]:
    """
    Yield the lines of streams ordered by time, starting at the positions of `reading`.

    The caller stores the position of the next line in `reading` before it takes another line.
    """

    def lines(stream: LogStream) -> Iterator[WorkerLogEvent]:
        position, num_read = reading.begin(stream), _BLOCK
        while num_read == _BLOCK:
            block = logs.read(stream.worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=_BLOCK)
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
