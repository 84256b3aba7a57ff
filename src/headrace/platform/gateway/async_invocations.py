"""
InvokeEndpointAsync: accept now, run when a replica has capacity, store the outcome in object storage.

Source: botocore sagemaker-runtime InvokeEndpointAsync; SageMaker developer guide, "Asynchronous inference".
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.core.tracing import NO_TRACER, Tracer, bind_to_log
from headrace.platform.gateway.async_files import (
    AsyncEnd,
    InputRoom,
    PendingInvocation,
    PendingStore,
    ReceivedBody,
    location_headers,
    pending_of,
)
from headrace.platform.gateway.async_outcomes import EndedElsewhere, Outcomes
from headrace.platform.gateway.async_queue import AsyncOutcome, AsyncPublisher, AsyncQueue, DueInvocations, is_orphaned
from headrace.platform.gateway.metrics import InvocationRecord
from headrace.platform.gateway.objects import ObjectFailed, S3Objects, retry_unavailable
from headrace.platform.gateway.replica_state import REMIND_S
from headrace.platform.gateway.request import Invocation
from headrace.platform.gateway.service import InvocationService
from headrace.platform.gateway.spans import ASYNC_RUN, describe_invocation
from headrace.platform.gateway.table import RouteTable
from headrace.serving.http.body import FREE_BYTES
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ResponseBroken, ResponseTooLarge
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, to_json

BUSY_PAUSE_S = 1.0
"""Pause before a retry when all replicas are full or gone."""
LOOK_S = 10.0
"""Seconds between looks at the stored invocations; one that was accepted is announced at once."""
MAX_FAILURES_STORED = 8
"""Reasons of failures that are stored at the same time: a deleted endpoint can end thousands of invocations."""
FORGET_EVERY = 1000
"""Invocations that end before their ids are forgotten, which takes a look at the stored ones."""

_T = TypeVar("_T")

_NOT_NOW = frozenset({"ModelNotReadyException", "ServiceUnavailable", "ThrottlingException"})


@dataclass(slots=True)
class AsyncInvocations:
    service: InvocationService
    table: RouteTable
    objects: S3Objects
    pending: PendingStore
    log: Callable[[InvocationRecord], None] = field(kw_only=True)
    publisher: AsyncPublisher | None = field(default=None, kw_only=True)
    tracer: Tracer = field(default=NO_TRACER, kw_only=True)
    on_ended: Callable[[AsyncEnd], None] = field(default=lambda _: None, kw_only=True)
    """Called from a thread with each invocation that has an outcome."""
    on_accepted_for_others: Callable[[], None] = field(default=lambda: None, kw_only=True)
    """Called after an acceptance while another process runs the invocations."""
    _inputs: InputRoom = field(init=False)
    _outcomes: Outcomes = field(init=False)
    _queue: AsyncQueue = field(default_factory=AsyncQueue)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_running: bool = False
    _seen: set[str] = field(default_factory=set)
    """Ids of the invocations that were queued, until a look at the stored ones finds them removed."""
    _storing: set[str] = field(default_factory=set)
    """Ids of the invocations that are being accepted: they may be stored, and even have been removed."""
    _inherited: set[str] = field(default_factory=set)
    """Ids of the invocations that an earlier process may have ended, without having removed them."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _storing_failures: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_FAILURES_STORED))
    _num_removed: int = 0
    _num_ending: int = 0
    """Invocations that end without having started: the reason of their failure is being stored."""

    def __post_init__(self) -> None:
        self._inputs, self._outcomes = InputRoom(self.service.budget), Outcomes(self.objects)
        self.table.on_change(lambda _: self.wake())

    async def run(self, has_lease: Callable[[], bool] = lambda: True) -> None:
        """
        Run the stored invocations, those of earlier processes included, until cancelled.

        Only one process at a time may run this; it stores outcomes while it `has_lease`. Cancelled ones stay stored.
        """
        self._queue, self._seen, self._is_running = AsyncQueue(), set(), True
        self._outcomes.has_lease = has_lease
        try:
            await self.look()
            self._inherited = set(self._seen)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_regularly())
                await self._dispatch()
        finally:
            self._queue, self._seen, self._is_running = AsyncQueue(), set(), False
            self.service.metrics.async_waiting = 0

    async def look(self) -> None:
        """Queue the invocations that other processes have accepted, and forget those that are gone."""
        async with self._looking:  # a slower look could return an invocation that has ended and was forgotten since
            if not self._is_running:
                return
            known = frozenset(self._seen)

            stored, found = await retry_unavailable(partial(self.pending.attempt, self.pending.unknown, known))
            self._seen -= known - stored - self._storing
            if any(is_orphaned(pending, self.table.routes.get(pending.endpoint)) for pending in found):
                while not await self.table.read_again():  # the process that accepted it may know a newer endpoint
                    pass
            for pending in found:
                self._add(pending)

    async def _look_regularly(self) -> None:
        """Find the invocations of processes that were killed before they could tell this one."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    def _add(self, pending: PendingInvocation) -> None:
        """Queue a stored invocation, without its body, unless it was queued before."""
        if pending.id not in self._seen:
            self._seen.add(pending.id)
            self._queue.add(pending)
            self.wake()

    def wake(self) -> None:
        self._wake.set()

    def publish_backlogs(self) -> None:
        """Publish the backlog metrics; call it regularly, as empty backlogs are published too."""
        if self.publisher is not None:
            self.publisher.publish_backlogs(self.table.routes, self._queue.backlogs())

    async def accept(self, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord) -> None:
        """Store a request, and answer with the location of its outcome. Raises `AwsError`."""
        route = await self.service.forwarder.route(invocation.endpoint)
        pending = pending_of(route, invocation, body, now_s=time.time())
        if self._is_running:
            num_waiting = len(self._queue) + self._num_ending
        else:
            num_waiting = await self.pending.run(self.pending.count)
        if num_waiting >= self.service.config.max_async_waiting:
            raise self.service.texts.overloaded(f"{num_waiting} asynchronous invocations")
        await asyncio.shield(self._store(pending))  # a disconnecting client must not interrupt the acceptance
        record.status, record.inference_id = 202, pending.inference_id
        headers = [*record.id_headers(), ("Content-Type", JSON_CONTENT_TYPE), *location_headers(pending)]
        await exchange.respond(202, headers, to_json({"InferenceId": pending.inference_id}))

    async def _store(self, pending: PendingInvocation) -> None:
        self._storing.add(pending.id)
        try:
            await self.pending.run(self.pending.save, pending)
        except Unavailable as error:
            raise AwsError("ServiceUnavailable", f"The invocation cannot be stored: {error.message}") from error
        else:
            if self._is_running:  # it may have begun meanwhile, and have found it
                self._add(replace(pending, body=None))
            else:
                self.on_accepted_for_others()
        finally:
            self._storing.discard(pending.id)

    async def _dispatch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                due = self._queue.due(self.table.routes, time.time())
                self.service.metrics.async_waiting = len(self._queue)
                self._start_due(due, tasks)
                pause_s = None if due.next_s is None else max(0.0, due.next_s - time.time())
                if self.service.forwarder.wake(due.starved):
                    pause_s = REMIND_S
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _start_due(self, due: DueInvocations, tasks: asyncio.TaskGroup) -> None:
        for pending in due.begin:
            tasks.create_task(self._run(pending))
        for pending in due.expired:
            self.service.metrics.async_expired += 1
            route = self.table.routes.get(pending.endpoint)
            if self.publisher is not None and route is not None:
                self.publisher.publish_expired(route)
            tasks.create_task(self._end(pending, "The request expired before it could be processed."))
        for pending in due.orphaned:
            self.service.metrics.async_failed += 1
            tasks.create_task(self._end(pending, f"Endpoint {pending.endpoint} was deleted."))

    async def _end(self, pending: PendingInvocation, failure: str) -> None:
        self._num_ending += 1
        try:
            with suppress(EndedElsewhere):
                if not await self._has_ended(pending):
                    await self._finish(pending, failure=failure)
                    end = AsyncEnd(pending=pending, failure=failure, ended_s=time.time())
                    await asyncio.to_thread(self.on_ended, end)
        finally:
            self._num_ending -= 1

    async def _run(self, pending: PendingInvocation) -> None:
        try:
            with suppress(EndedElsewhere):
                if not await self._has_ended(pending):
                    await self._run_to_outcome(pending)
        finally:
            self._queue.ended(pending)
            self.wake()

    async def _has_ended(self, pending: PendingInvocation) -> bool:
        """Return whether an earlier process has ended an invocation, and do what that process may have left undone."""
        if pending.id not in self._inherited:
            return False
        self._inherited.discard(pending.id)
        if not await retry_unavailable(partial(self.pending.attempt, self.pending.has, pending.id)):
            return True
        end = await self._outcomes.find_end(pending)
        if end is not None:
            await self._finish(pending, failure=None)
            await asyncio.to_thread(self.on_ended, replace(end, ended_s=time.time()))
        return end is not None

    async def _run_to_outcome(self, pending: PendingInvocation) -> None:
        bind_to_log(pending.trace)
        outcome = AsyncOutcome(endpoint=pending.endpoint, accepted_s=pending.accepted_s, began_s=time.time())
        failure, end = None, AsyncEnd(pending=pending)
        try:
            with ReceivedBody(self.pending.folder, max_bytes=self.service.config.max_async_response_bytes) as answer:
                content_type = None
                while content_type is None:  # between two tries, others get the room of the input
                    async with self._input(pending, outcome) as (body, members):
                        typed = replace(pending, members=members)
                        content_type = await self._invoke_with_retries(typed, body, answer, outcome)
                    del body
                await self._upload(pending, answer, content_type, outcome)
                end = AsyncEnd(pending=pending, content_type=content_type, body=answer.start())
        except EndedElsewhere:
            raise
        except (AwsError, ObjectFailed) as error:
            failure = str(error)
        except Exception:  # noqa: BLE001 -- the edge: a bug fails one invocation, not all of them
            get_logger().exception("async.crashed", endpoint=pending.endpoint)
            failure = "Something went wrong inside the platform."
        route = self.table.routes.get(outcome.endpoint)
        if self.publisher is not None and route is not None:
            outcome.ended_s, outcome.is_failed = time.time(), failure is not None
            self.publisher.publish(outcome, route)
        await self._finish(pending, failure=failure)
        await asyncio.to_thread(self.on_ended, replace(end, failure=failure, ended_s=time.time()))
        if failure is None:
            self.service.metrics.async_done += 1
        else:
            self.service.metrics.async_failed += 1

    @asynccontextmanager
    async def _input(
        self, pending: PendingInvocation, outcome: AsyncOutcome
    ) -> AsyncIterator[tuple[bytes, dict[str, str]]]:
        """
        Hold the input of an invocation in memory, as soon as there is room for it; yield it and the request's members.

        AWS's examples of asynchronous inference send the content type only with the object.
        """
        if pending.input_uri is None:
            body = await self._read(partial(self._inline_body, pending.id), pending, outcome)
            async with self._inputs.hold(len(body)):
                yield body, pending.members
            return
        limit = self.service.config.max_async_response_bytes
        describe = partial(self.objects.describe, pending.input_uri)
        num_bytes, content_type = await self._read(describe, pending, outcome)
        members = {"ContentType": content_type, **pending.members} if content_type else pending.members
        async with self._inputs.hold(num_bytes if num_bytes <= limit else 0):  # a longer one is refused unread
            since_s = perf_counter()
            body = await self._read(partial(self.objects.get, pending.input_uri, max_bytes=limit), pending, outcome)
            outcome.download_s = perf_counter() - since_s
            yield body, members

    async def _inline_body(self, pending_id: str) -> bytes:
        try:
            return await self.pending.attempt(self.pending.body, pending_id)
        except KeyError:
            raise EndedElsewhere from None

    async def _read(
        self, attempt: Callable[[], Awaitable[_T]], pending: PendingInvocation, outcome: AsyncOutcome
    ) -> _T:
        try:
            return await retry_unavailable(attempt, until_s=pending.expires_s, now=time.time)
        except ObjectFailed:
            outcome.is_download_failed = True
            raise

    async def _upload(
        self, pending: PendingInvocation, answer: ReceivedBody, content_type: str, outcome: AsyncOutcome
    ) -> None:
        since_s = perf_counter()
        try:
            await self._outcomes.store(pending, pending.output_uri, answer.content(), content_type)
        except ObjectFailed:
            outcome.is_upload_failed = True
            raise
        outcome.upload_s = perf_counter() - since_s

    async def _invoke_with_retries(
        self, pending: PendingInvocation, body: bytes, answer: ReceivedBody, outcome: AsyncOutcome
    ) -> str | None:
        """
        Invoke the model once a replica has capacity; return the content type of its response.

        None: no replica has capacity, and others wait for the room of the input.
        """
        while True:
            try:
                return await self._invoke(pending, body, answer, outcome)
            except AwsError as error:
                if error.code not in _NOT_NOW or time.time() >= pending.expires_s:
                    raise
            await asyncio.sleep(BUSY_PAUSE_S)
            if self._inputs.num_waiting and len(body) > FREE_BYTES:
                return None

    async def _invoke(
        self, pending: PendingInvocation, body: bytes, answer: ReceivedBody, outcome: AsyncOutcome
    ) -> str:
        service = self.service
        span = self.tracer.start(ASYNC_RUN, pending.trace)
        invocation = Invocation(
            api="InvokeEndpointAsync", endpoint=pending.endpoint, members=pending.members, trace=span.trace
        )
        record = InvocationRecord(
            request_id=pending.trace.request_id,
            api=invocation.api,
            endpoint=pending.endpoint,
            inference_id=pending.inference_id,
            started_s=perf_counter(),
        )
        request = ClientRequest(headers=invocation.worker_headers(), body=body)
        try:
            query = replace(service.routing_query(invocation, body), endpoint_uid=pending.endpoint_uid)
            async with service.invoke(
                pending.endpoint, query, request, record, timeout_s=pending.timeout_s
            ) as response:
                await service.check_status(response, record)
                try:
                    await answer.read(response)
                except (ResponseBroken, ResponseTooLarge) as error:
                    raise service.texts.incomplete_response(
                        pending.endpoint, response.status, record.container
                    ) from error
                except OSError as error:
                    reason = f"The response cannot be stored on disk: {error.strerror}."
                    raise AwsError("InternalFailure", reason) from error
        except TimeoutError:
            record.error, record.status = "ModelError", 424
            raise service.texts.timed_out(pending.endpoint, record.container) from None
        except AwsError as error:
            record.error, record.status = error.code, error.http_status
            raise
        else:
            record.status, record.num_bytes = 200, answer.num_bytes
            return response.headers.get("content-type", "application/octet-stream")
        finally:
            record.ended_s = perf_counter()
            outcome.variant, outcome.model_status = record.variant, record.model_status
            outcome.model_s = record.model_s if record.model_status else None
            service.metrics.count(record)
            self.log(record)
            describe_invocation(span, record)
            span.end()

    async def _finish(self, pending: PendingInvocation, *, failure: str | None) -> None:
        """Store the reason of a failure at the failure location, and remove the request."""
        try:
            if failure is not None:
                get_logger().warning("async.failed", endpoint=pending.endpoint, inference_id=pending.inference_id)
            if failure is not None and pending.failure_uri is not None:
                async with self._storing_failures:
                    await self._outcomes.store(pending, pending.failure_uri, failure.encode(), "text/plain")
            await retry_unavailable(partial(self.pending.attempt, self.pending.remove, pending.id))
        except ObjectFailed as error:  # it stays stored, so it runs again after the next start
            get_logger().error("async.outcome_lost", uri=pending.failure_uri, reason=str(error))
            return
        self._num_removed += 1
        if self._num_removed % FORGET_EVERY == 0:
            await self.look()
