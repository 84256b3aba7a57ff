"""
Asynchronous invocations: the clients that send them, and the rules of their outcomes.

An accepted invocation is stored before its client knows, is removed only when its outcome is in the object storage, and
has one outcome, which one leader at a time may write. No more run at a time than the endpoint allows, and none begins
after it has expired.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from benchmarks.chaos.history import DEADLINE_S, EndpointState

from headrace.platform.gateway.async_files import PENDING
from tests.simulation.clients import Clients
from tests.simulation.database import CONNECTION, LONG_S, TERM
from tests.simulation.loop import Process
from tests.simulation.member import HOLD_S
from tests.simulation.network import Connection
from tests.simulation.requester import post
from tests.simulation.scenario import Operation
from tests.simulation.world import Broken, World

LATER: Final = "later"
"""The endpoint of asynchronous invocations."""
_BUCKET: Final = "s3://bucket"
_OUT: Final = f"{_BUCKET}/out/"
_FAILED: Final = f"{_BUCKET}/failed/"
_PAUSE_S: Final = 2.0
_CONCURRENT: Final = 2
"""Invocations that the endpoint runs at a time."""
_TTL_S: Final = 60.0
"""Shortest time after which an invocation that waits expires."""
_BACKLOG_S: Final = 50.0
"""Work of the invocations behind which others expire: half as long again until the answer is complete."""
_LATE_S: Final = 2.0
_FAULTY_LATE_S: Final = HOLD_S + 15.0
_EXPIRED: Final = b"expired before"
_REPEATED: Final = frozenset({"broken", "ServiceUnavailable", "ThrottlingException"})
_WAITING: Final = "SELECT key, content FROM headrace_blobs WHERE space = ? AND part = 0"


@dataclass
class Asynchronous:
    """The invocations of one simulation."""

    kinds: ClassVar = ("async",)
    clients: Clients
    world: World = field(init=False)
    findings: list[str] = field(default_factory=list)
    _accepted: dict[str, int] = field(default_factory=dict)
    """Invocation that was acknowledged → number of times that the endpoint was gone before it was sent."""
    _stored: dict[str, str] = field(default_factory=dict)
    """Key of an invocation that has been stored → its id."""
    _waiting: frozenset[str] = frozenset()
    """Keys of those that are stored now."""
    _written: dict[tuple[str, int], str] = field(default_factory=dict)
    """Invocation and term → the address of the outcome that was written in it."""
    _begun: dict[str, tuple[tuple[Any, ...], int]] = field(default_factory=dict)
    """Invocation → the process that ran it last with how often it had begun to lead, and the answers until then."""
    _sent_s: dict[str, float] = field(default_factory=dict)
    """Invocation → when it was sent."""
    _expiring: dict[str, float] = field(default_factory=dict)
    """Invocation that expires → when it was acknowledged."""
    _left: set[str] = field(default_factory=set)
    """Invocations that an endpoint accepted which is deleted; the next one has its name."""
    _ended_s: dict[str, float] = field(default_factory=dict)
    """Invocation → when its outcome was written first."""
    _num_sent: int = 0
    _num_deleted: int = 0
    _is_gone: bool = False
    """The endpoint is deleted, and not yet created again."""
    _config: str = ""

    def __post_init__(self) -> None:
        self.world = self.clients.world
        self.world.database.on_blobs = self._stored_blobs
        self.world.objects.on_put = self._putting
        self.world.machine.on_work = self._working

    async def prepare(self) -> None:
        """Create the endpoint."""
        output = {"S3OutputPath": _OUT, "S3FailurePath": _FAILED}
        limit = {"MaxConcurrentInvocationsPerInstance": _CONCURRENT}
        config = {"OutputConfig": output, "ClientConfig": limit}
        self._config = await self.clients.define(1, AsyncInferenceConfig=config)
        await self._create()

    async def _create(self) -> None:
        await self.clients.call(
            "CreateEndpoint", done="already existing", EndpointName=LATER, EndpointConfigName=self._config
        )
        self.world.history.asked[LATER] = EndpointState(config=self._config, count=1)
        self.clients.counts.setdefault(LATER, {1})

    async def run(self, operation: Operation) -> None:
        """Send some invocations, sometimes behind a backlog, or to an endpoint that is at zero or deleted then."""
        kind = operation.amount % 10
        # With the lease as shipped a slow database changes the leader too often for the backlog to end.
        is_behind = kind == 2 and self.world.scenario.knobs.lease_s > LONG_S
        if is_behind:
            await self._fill()
            await asyncio.sleep(_PAUSE_S)
        if kind == 1:
            await self.clients.set_count(LATER, 0)
        async with asyncio.TaskGroup() as group:
            for number in range(1 + operation.target % 3):
                group.create_task(self._send(is_inline=number % 2 == operation.amount % 2, is_expiring=is_behind))
        if kind == 0:
            async with self.clients.locks[LATER]:
                self._num_deleted, self._is_gone = self._num_deleted + 1, True
                await self.clients.call("DeleteEndpoint", done="Could not find", EndpointName=LATER)
                await self.clients.until_gone("DescribeEndpoint", EndpointName=LATER)
                self._left |= self._accepted.keys()
                await self._create()
                self._is_gone = not await self.clients.until_changeable(LATER)

    async def _fill(self) -> None:
        """Send invocations that keep the endpoint busy for longer than others wait."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENT):
                group.create_task(self._send(is_inline=True, work_s=_BACKLOG_S))

    async def _send(self, *, is_inline: bool, is_expiring: bool = False, work_s: float = 0.0) -> None:
        """Send an invocation until one is accepted: each attempt is another one."""
        deadline_s = self.world.loop.now_s + 2 * DEADLINE_S
        while self.world.loop.now_s < deadline_s:
            self._num_sent += 1
            id_, num_deleted = f"{LATER}-{self._num_sent}", self._num_deleted - self._is_gone
            self._sent_s[id_] = self.world.loop.now_s
            error = await self._attempt(id_, is_inline=is_inline, is_expiring=is_expiring, work_s=work_s)
            if not error:
                self._accepted[id_] = num_deleted
                if is_expiring:
                    self._expiring[id_] = self.world.loop.now_s
                if id_ not in self._stored.values():
                    self.findings.append(f"Invocation {id_} was accepted before it was stored.")
                return
            if error not in _REPEATED and num_deleted == self._num_deleted:
                self.findings.append(f"Invocation {id_} was refused: {error}")
                return
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self, id_: str, *, is_inline: bool, is_expiring: bool, work_s: float) -> str:
        """Send an invocation once; return the code of its error, empty if it was accepted."""
        headers = [(b"content-type", b"application/json"), (b"x-amzn-sagemaker-inference-id", id_.encode())]
        if is_expiring:
            headers.append((b"x-amzn-sagemaker-requestttlseconds", str(int(_TTL_S)).encode()))
        body, uri = json.dumps({"id": id_, "work_s": work_s}).encode(), f"{_BUCKET}/in/{id_}"
        if not is_inline:
            self.world.objects.contents[uri] = body
            headers.append((b"x-amzn-sagemaker-inputlocation", uri.encode()))
        path = f"/endpoints/{LATER}/async-invocations"
        try:
            async with asyncio.timeout(DEADLINE_S):
                error, _ = await self.world.ask(
                    self._num_sent, lambda member: post(member, path, headers, body if is_inline else b"")
                )
        except (Broken, TimeoutError):
            error = "broken"
        self.world.note(f"invocation {id_} {error or 'accepted'}")
        return error

    # Rules

    def _working(self, connection: Connection, attempt: str) -> None:
        """Check that an invocation that begins has not expired, and that a process runs no more than it may."""
        if not attempt.startswith(f"{LATER}-"):
            return
        num_led = next((member.num_led for member in self.world.slots if member.process is connection.process), 0)
        num_answers, (leader, num_before) = self.world.machine.executed[attempt], self._begun.get(attempt, ((), 0))
        if leader == (connection.process, num_led) and num_answers > num_before:
            self.findings.append(f"Invocation {attempt} was answered, and the same leader runs it again.")
        self._begun[attempt] = (connection.process, num_led), num_answers
        if attempt in self._left:
            self.findings.append(f"Invocation {attempt} runs on the namesake of its endpoint.")
        running = [
            id_
            for other, id_ in self.world.machine.working.items()
            if other.process is connection.process and id_.startswith(f"{LATER}-") and not other.is_closing()
        ]
        if len(running) > _CONCURRENT:
            self.findings.append(f"{connection.process.name} runs {running}; expected at most {_CONCURRENT}.")
        waited_s = self.world.loop.now_s - self._expiring.get(attempt, self.world.loop.now_s)
        if waited_s > _TTL_S + self._late_s() and not self.world.invariants.has_jumped:
            self.findings.append(f"Invocation {attempt} begins after {waited_s:.0f} s; it expires after {_TTL_S:.0f}.")

    def _late_s(self) -> float:
        """Return how long after its last moment an invocation may begin: in time, it may be held for a replica."""
        return _FAULTY_LATE_S if self.world.scenario.faults else _LATE_S

    def _stored_blobs(self) -> None:
        """Check that an invocation is removed only when it has an outcome."""
        rows = CONNECTION.execute(_WAITING, (PENDING,)).fetchall()
        self._stored |= {key: json.loads(content)["inference_id"] for key, content in rows}
        waiting = frozenset(key for key, _ in rows)
        for key in sorted(self._waiting - waiting):
            if not any(uri in self.world.objects.contents for uri in _outcomes(self._stored[key])):
                self.findings.append(f"Invocation {self._stored[key]} was removed without an outcome.")
        self._waiting = waiting

    def _putting(self, process: Process, uri: str) -> None:
        """Check that the leader writes an outcome, and only once."""
        id_, term = uri.rpartition("/")[2].removesuffix(".out").removesuffix("-error"), TERM.get()
        if not uri.startswith((_OUT, _FAILED)) or term is None:
            return
        self._ended_s.setdefault(id_, self.world.loop.now_s)
        database = self.world.database
        if term < database.term:  # at once: it asks for its lease before each write
            self.findings.append(f"{process.name} writes {uri} for its term {term} in term {database.term}.")
        before = self._written.setdefault((id_, term), uri)
        is_stored = any(self._stored[key] == id_ for key in self._waiting)
        if before != uri or not (is_stored or term < database.term):
            self.findings.append(f"Invocation {id_} is written to {uri} after it had an outcome.")

    async def describe(self) -> list[str]:
        described = self.world.history.described.get(LATER)
        is_ended = not self._waiting or (described is not None and described.reason)
        return [] if is_ended else [f"{len(self._waiting)} asynchronous invocations wait."]

    async def check(self) -> list[str]:
        return list(self._wrong())

    def _wrong(self) -> Iterator[str]:
        """Yield the invocations without exactly one outcome, or with one that has no cause."""
        contents, executed = self.world.objects.contents, self.world.machine.executed
        waiting = {self._stored[key] for key in self._waiting}
        for id_, num_deleted in self._accepted.items():
            answer, failure = (contents.get(uri) for uri in _outcomes(id_))
            if (answer is None) == (failure is None) and id_ not in waiting:
                yield f"Invocation {id_} has {'no outcome' if answer is None else f'two outcomes: {failure!r}'}."
            elif answer is not None and (json.loads(answer)["id"] != id_ or not executed[id_]):
                yield f"Invocation {id_} has the answer {answer!r}."
            elif failure is not None and b"was deleted" in failure and self._num_deleted == num_deleted:
                yield f"Invocation {id_} has failed: {failure.decode()}"
            elif failure is not None and _EXPIRED in failure:
                yield from self._wrongly_expired(id_)
            elif failure is not None and not (self._num_deleted or self.world.scenario.loses_workers()):
                yield f"Invocation {id_} has failed without a fault of workers: {failure.decode()}"
        for key, id_ in self._stored.items():
            if key not in self._waiting and executed[id_] > 1 + self.world.database.term:
                yield f"Invocation {id_} was run {executed[id_]} times."

    def _wrongly_expired(self, id_: str) -> Iterator[str]:
        waited_s = self._ended_s[id_] - self._sent_s[id_]
        if id_ not in self._expiring:
            yield f"Invocation {id_} has expired after {waited_s:.0f} s."
        elif waited_s < _TTL_S and not self.world.invariants.has_jumped:
            yield f"Invocation {id_} has expired after {waited_s:.0f} s; expected {_TTL_S:.0f}."


def _outcomes(id_: str) -> tuple[str, str]:
    return f"{_OUT}{id_}.out", f"{_FAILED}{id_}-error.out"
