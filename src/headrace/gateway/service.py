"""What all doors of the gateway share, and the way of one request through it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from headrace.gateway.config import GatewayConfig
from headrace.gateway.downstream import Downstream
from headrace.gateway.errors import ErrorTexts, NoCapacity
from headrace.gateway.forwarding import Forwarder
from headrace.gateway.metrics import GatewayMetrics, InvocationRecord
from headrace.gateway.request import Invocation
from headrace.gateway.routing import RoutingDecision, RoutingQuery, prefix_of
from headrace.gateway.sessions import NEW_SESSION, Sessions
from headrace.http.body_budget import BodyBudget
from headrace.http.client import WorkerRequest
from headrace.http.client_response import Answer, AnswerBroken, AnswerTooLong

FLUSH_S = 30.0
"""So long may a client take to read the end of a stream that we have ended."""

Heartbeat = Callable[[], Awaitable[None]]
"""Shows a client that waits that we live; runs until it is cancelled."""


@dataclass(slots=True, kw_only=True)
class InvocationService:
    """One gateway's parts."""

    config: GatewayConfig
    forwarder: Forwarder
    texts: ErrorTexts
    metrics: GatewayMetrics
    sessions: Sessions = field(default_factory=Sessions)
    budget: BodyBudget

    def routing_query(self, invocation: Invocation, body: bytes) -> RoutingQuery:
        """What of an invocation matters for its way."""
        component = invocation.members.get("InferenceComponentName")
        session_id = invocation.session_id
        worker = affinity = None
        if session_id is not None and session_id != NEW_SESSION:
            worker = self.sessions.worker_of(invocation.endpoint, session_id, now_s=time.time())
            affinity = session_id.encode("latin-1")
        return RoutingQuery(
            target_variant=invocation.members.get("TargetVariant"),
            component=component,
            worker=worker,
            affinity=affinity,
            prefix=prefix_of(component or invocation.endpoint, invocation.prefix_id, body),
        )

    @asynccontextmanager
    async def answered(
        self,
        endpoint: str,
        query: RoutingQuery,
        request: WorkerRequest,
        record: InvocationRecord,
        *,
        timeout_s: float,
        heartbeat: Heartbeat | None = None,
    ) -> AsyncIterator[Answer]:
        """
        A worker's answer, from its head to the end of the block, where it is given up if it has not ended.

        Args:
            endpoint: its name.
            query: what matters for its way.
            request: what the worker gets.
            record: is filled.
            timeout_s: of all this, but for the time in which the request is held for a replica.
            heartbeat: runs while it is.

        Raises:
            AwsError: nobody answers.
            TimeoutError: the time is over.
        """
        record.component = query.component or ""

        def on_decision(decision: RoutingDecision) -> None:
            record.variant, record.worker = decision.variant.name, decision.replica.worker
            record.num_tries += 1
            if record.asked_s is None:
                record.asked_s = perf_counter()

        async with asyncio.timeout(timeout_s) as patience:
            try:
                forwarded = await self.forwarder.send(
                    endpoint,
                    query,
                    request,
                    on_decision=on_decision,
                    while_held=lambda: self._while_held(patience, timeout_s, record, heartbeat),
                )
            except NoCapacity:
                record.is_without_capacity = True
                raise
            try:
                record.head_s = perf_counter()
                record.model_status = forwarded.answer.status
                yield forwarded.answer
            finally:
                forwarded.close()

    @contextmanager
    def _while_held(
        self, patience: asyncio.Timeout, timeout_s: float, record: InvocationRecord, heartbeat: Heartbeat | None
    ) -> Iterator[None]:
        """While a request is held: the model's time does not run, and the client hears that we live."""
        loop, since_s = asyncio.get_running_loop(), perf_counter()
        patience.reschedule(None)
        beating = None if heartbeat is None else asyncio.ensure_future(heartbeat())
        try:
            yield
        finally:
            if beating is not None:
                beating.cancel()
            record.held_s += perf_counter() - since_s
            patience.reschedule(loop.time() + timeout_s)

    async def read(self, answer: Answer, endpoint: str, *, max_bytes: int) -> bytes:
        """
        The whole body of an answer.

        Raises:
            AwsError: it is not whole, or too long.
        """
        try:
            return await answer.read(max_bytes)
        except (AnswerBroken, AnswerTooLong) as error:
            raise self.texts.answer_not_whole(endpoint, answer.status) from error

    async def refuse_failed(self, answer: Answer, endpoint: str) -> None:
        """
        Return if the worker answered 2xx.

        Raises:
            AwsError: it did not.
        """
        if not 200 <= answer.status < 300:
            body = await self.read(answer, endpoint, max_bytes=self.config.max_answer_bytes)
            raise self.texts.refused(endpoint, answer.status, body)

    def answer_headers(
        self, invocation: Invocation, record: InvocationRecord, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """The response headers that all APIs have."""
        told = {**dict(record.id_headers()), "x-Amzn-Invoked-Production-Variant": record.variant}
        if "x-amzn-sagemaker-custom-attributes" in headers:
            told["X-Amzn-SageMaker-Custom-Attributes"] = headers["x-amzn-sagemaker-custom-attributes"]
        told |= self.sessions.take_note(
            invocation.endpoint, invocation.session_id, headers, worker=record.worker, now_s=time.time()
        )
        return told


async def finish(down: Downstream) -> None:
    """End a stream; a client that does not read its end is left."""
    async with asyncio.timeout(FLUSH_S):
        await down.finish()
