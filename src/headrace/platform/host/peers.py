"""
Reports between the members of a platform: each one's loads, held requests, and workers that take no connection.

Each member routes by the loads of all, and the leader scales by them. A report is the whole state, posted when it has
changed and every `REPEAT_S`, so that a lost one costs time only. A member that is gone has no load.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.metrics.worker_page import WorkerReading
from headrace.platform.gateway.stored_responses import StoredResponses
from headrace.platform.host.folders import short_path
from headrace.platform.state.coordination import Coordination, Member, Standing
from headrace.serving.wire.openai.stored_responses import ResponseKey, StoredResponse

REPORT_S: Final = 0.2
"""Seconds between reports while requests are in flight, here or elsewhere."""
IDLE_S: Final = 1.0
"""Seconds between looks at the reports of others while there is nothing in flight."""
REPEAT_S: Final = 10.0
"""Seconds until an unchanged report is posted again: a new member, or one that was cut off, may not have read it."""
_LOADS: Final = "loads"
QUARANTINE: Final = "quarantine"
"""A worker takes no connection: its reconciler looks at it now."""
ASYNC: Final = "async"
"""An asynchronous invocation or a batch was accepted: the leader runs it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    workers: dict[str, int] = {}
    """Worker → requests in flight."""
    held: dict[str, int] = {}
    """Endpoint → requests held for a replica."""
    readings: dict[str, WorkerReading] = {}
    """Worker → its newest numbers; the leader has them."""
    keys: dict[str, list[int]] = {}
    """The counts of access keys, if other machines limit them too (`KeyUsages.own`)."""


@dataclass(slots=True, kw_only=True)
class Peers:
    """A task that posts this member's reports and collects those of the others."""

    coordination: Coordination
    read_own: Callable[[], Report]
    on_reports: Callable[[Mapping[str, int], Mapping[str, int]], None]
    """Called with the summed loads and held requests of the other members."""
    on_quarantine: Callable[[], None]
    """Called when another member has a worker in quarantine."""
    on_async: Callable[[], Awaitable[None]]
    """Called when another member has accepted an asynchronous invocation."""
    on_keys: Callable[[Sequence[Mapping[str, Sequence[int]]]], None] = lambda _: None
    """Called with the counts of access keys of each member on another machine."""
    idle_s: float = IDLE_S
    _reports: dict[str, Report] = field(default_factory=dict)
    _posted: Report | None = field(default_factory=Report)
    """None: the last post failed, and may have been stored all the same."""
    _posted_s: float = field(default_factory=time.monotonic)
    _events: set[str] = field(default_factory=set)
    """Topics to post."""
    _others: frozenset[str] = frozenset()
    _elsewhere: frozenset[str] = frozenset()
    """The members on other machines: those on this one count keys in the same files."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def readings(self) -> Mapping[str, WorkerReading]:
        """Worker → its newest numbers, from another member that leads."""
        return {worker: found for report in self._reports.values() for worker, found in report.readings.items()}

    def tell(self, event: str) -> None:
        """Post an event at once: `QUARANTINE` or `ASYNC`."""
        self._events.add(event)
        self._wake.set()

    def set_standing(self, standing: Standing) -> None:
        own = self.coordination.member
        self._others = frozenset(member.id for member in standing.members) - {own.id}
        self._elsewhere = frozenset(member.id for member in standing.members if member.machine != own.machine)
        if self._reports.keys() - self._others:
            self._reports = {name: report for name, report in self._reports.items() if name in self._others}
            self._sum()

    async def run(self) -> None:
        """Report until cancelled; while there are no other members, do nothing."""
        while True:
            self._wake.clear()  # first: what happens during an exchange is posted by the next one, at once
            is_busy = False
            if self._others:
                try:
                    is_busy = await self.exchange()
                except Unavailable as error:
                    get_logger().debug("peers.unavailable", message=error.message)
            try:
                async with asyncio.timeout(REPORT_S if is_busy else self.idle_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def exchange(self) -> bool:
        """Post what has changed, and read what the others have posted; return whether requests are in flight."""
        own, now_s = self.read_own(), time.monotonic()
        is_due = own != self._posted or now_s - self._posted_s > REPEAT_S
        bulletins = {_LOADS: msgspec.json.encode(own)} if is_due else {}
        events, self._events = self._events, set()
        bulletins |= dict.fromkeys(events, b"")
        if bulletins:
            try:
                await asyncio.to_thread(self.coordination.post, bulletins)
            except Unavailable:
                self._events |= events
                self._posted = None
                raise
            if is_due:
                self._posted, self._posted_s = own, now_s
        for bulletin in await asyncio.to_thread(self.coordination.read):
            if bulletin.topic == QUARANTINE:
                self.on_quarantine()
            elif bulletin.topic == ASYNC:
                await self.on_async()
            elif bulletin.topic == _LOADS and bulletin.member in self._others:
                self._keep_report(bulletin.member, bulletin.body)
        self._sum()
        return any(report.workers or report.held for report in (own, *self._reports.values()))

    def _keep_report(self, member: str, body: bytes) -> None:
        try:
            self._reports[member] = msgspec.json.decode(body, type=Report)
        except UNREADABLE as error:
            get_logger().warning("peers.unreadable_report", member=member, reason=str(error))

    def _sum(self) -> None:
        loads: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for report in self._reports.values():
            loads.update(report.workers)
            held.update(report.held)
        self.on_reports(loads, held)
        self.on_keys([report.keys for name, report in self._reports.items() if name in self._elsewhere])


TIMEOUT_S: Final = 2.0
_LARGE_BYTES: Final = 1 << 20
"""Longer answers are decoded on another thread."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding JSON, such as that of a member of another version."""

Answer = Callable[[Any], object]
"""Answers a question with a JSON value, or with an awaitable of one; called with its argument, on the event loop."""

Ask = Callable[[str, object], Awaitable[Sequence[Any]]]
"""Returns the answers of the platform's other processes to a question with its argument."""


async def answer(answers: Mapping[str, Answer], question: str, argument: object) -> Any:
    """Return the answer of this process. Raises `KeyError`: it does not know the question."""
    found = answers[question](argument)
    return await found if isawaitable(found) else found


@dataclass(slots=True, kw_only=True)
class Siblings:
    """
    Questions between the processes of a platform: what one has in memory only, such as the traffic that it has served.

    Each process listens on a Unix socket in the folder that they share, which only their user can reach. A question is
    a line of JSON, the answer is JSON until the end of the connection. A process that does not answer in time is left
    out.
    """

    folder: Path
    """The folder of the sockets; created by `start`."""
    own_id: str
    answers: dict[str, Answer] = field(default_factory=dict)
    """By the name of the question."""
    _ids: Sequence[str] = ()
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with short_path(self.folder) as folder:
            self._server = await asyncio.start_unix_server(self._serve, f"{folder}/{self.own_id}")

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            (self.folder / self.own_id).unlink(missing_ok=True)

    def set_members(self, members: Sequence[Member]) -> None:
        """Ask these members from now on, without this one."""
        self._ids = [member.id for member in members if member.id != self.own_id]

    async def ask(self, question: str, argument: object = None) -> list[Any]:
        asked = msgspec.json.encode([question, argument]) + b"\n"
        answers = await asyncio.gather(*(self._ask(name, asked) for name in self._ids))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, name: str, asked: bytes) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with short_path(self.folder) as folder:
                    reader, writer = await asyncio.open_unix_connection(f"{folder}/{name}")
                try:
                    writer.write(asked)
                    text = await reader.read()
                finally:
                    writer.close()
            return (
                msgspec.json.decode(text)
                if len(text) < _LARGE_BYTES
                else await asyncio.to_thread(msgspec.json.decode, text)
            )
        except (OSError, TimeoutError, *UNREADABLE) as error:
            get_logger().debug("sibling.silent", member=name, reason=str(error))
            return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                line = await reader.readuntil(b"\n")
                question, argument = msgspec.json.decode(line, type=tuple[str, Any])
                if question in self.answers:
                    writer.write(msgspec.json.encode(await answer(self.answers, question, argument)))
                    await writer.drain()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, ValueError, *UNREADABLE) as error:
            get_logger().debug("sibling.unanswered", reason=str(error))
        finally:
            writer.close()


QUESTION: Final = "stored response"
"""The question for a response: its owner, its id, and whether it is deleted."""
_MAX_ID_CHARACTERS: Final = 256
"""Longest id to ask for: longer ones are not ours, and a question is a short line."""


def share_responses(responses: StoredResponses, ask: Ask, answers: dict[str, Answer]) -> None:
    """
    Give a gateway access to the stored responses of the other processes, and these to its own.

    Each process keeps those that it has made. A conversation goes on at any process: the one that has the response
    before is asked.
    """

    async def find(key: ResponseKey, *, is_deleted: bool) -> StoredResponse | None:
        if len(key.response_id) > _MAX_ID_CHARACTERS:
            return None
        for found in await ask(QUESTION, [key.owner, key.response_id, is_deleted]):
            try:
                return msgspec.convert(found, StoredResponse)
            except msgspec.ValidationError as error:  # a process of another version
                get_logger().warning("sibling.unreadable_response", reason=str(error))
        return None

    def look_up(argument: list[Any]) -> StoredResponse | None:
        owner, response_id, is_deleted = argument
        key, now_s = ResponseKey(owner, response_id), time.time()
        found = responses.store.get(key, now_s=now_s)
        if is_deleted:
            responses.store.delete(key, now_s=now_s)
        return found

    responses.find_elsewhere = find
    answers[QUESTION] = look_up
