"""
Forward a request until a worker has sent the head of its response: choose a replica, call it, retry on another one.

A request is sent again only if the connection could not be made or broke before the first byte of a response, and to a
replica that has not been tried, if there is one. After that byte a retry could run the request twice.

While no replica can answer but one may become ready, the request is held (`gateway.replica_state`). The same applies
when all replicas are in quarantine: the reconciler has not noticed yet that they are gone, and will replace them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from headrace.core.telemetry import get_logger
from headrace.platform.gateway import routing
from headrace.platform.gateway.errors import SERVERLESS_MAX_BYTES, ErrorTexts, GatewayConfig
from headrace.platform.gateway.replica_state import (
    RELEASED_PER_REPLICA,
    LoadLease,
    Loads,
    Quarantine,
    WaitQueue,
    WaitQueueFull,
)
from headrace.platform.gateway.routing import Draw, NoReplica, RoutingDecision, RoutingQuery
from headrace.platform.gateway.table import RouteTable
from headrace.platform.gateway.target_models import TargetModels
from headrace.platform.state.routes import ANY_CONTAINER, QuarantineListener, Route, VariantRoute, Wake, WakeTarget
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ClientResponse, ConnectFailed, NoResponse, ResponseHeadBroken
from headrace.serving.wire.adapters import IDENTIFIER_HEADER
from headrace.serving.wire.aws.errors import AwsError

MAX_TRIES = 3
"""Connections that may break after a request was sent before the request fails."""
_TARGET_WAIT_SHARE = 0.95
"""Part of the timeout of an invocation after which a request for a model that is being loaded fails."""
MAX_TRIES_TO_WAIT = 2
"""Replica crashes after which a request is not held again: the request itself may be the cause."""

WhileHeld = Callable[[], AbstractContextManager[None]]
"""Return a context that is entered while the request is held."""


@dataclass(slots=True, kw_only=True)
class Forwarded:
    """A request whose response has begun. Always `close` it."""

    decision: RoutingDecision
    response: ClientResponse
    lease: LoadLease
    admission: LoadLease | None = None
    """A lease on the concurrency of a serverless endpoint."""

    def close(self) -> None:
        """Drop the rest of the response, and release the leases. Idempotent."""
        self.response.close()
        self.lease.release()
        if self.admission is not None:
            self.admission.release()


@dataclass(slots=True, kw_only=True)
class _ForwardState:
    """One request and the attempts to forward it so far."""

    endpoint: str
    query: RoutingQuery
    while_held: WhileHeld
    excluded: set[str] = field(default_factory=set)
    """Workers that failed since the request was last held."""
    num_broken: int = 0
    """Replicas whose connection broke after they had received the request."""
    has_failed: bool = False
    """At least one attempt has failed."""
    deadline_s: float | None = None
    """Deadline for holding the request, on the event loop's clock. None: it has not been held yet."""
    has_caught_up: bool = False
    """The routes were compared with the store, after those in memory could not serve the request."""

    @property
    def target(self) -> WakeTarget:
        return WakeTarget(endpoint=self.endpoint, variant=self.query.target_variant, component=self.query.component)

    def add_failure(self, worker: str, failure: NoResponse) -> None:
        self.has_failed = True
        self.excluded.add(worker)
        self.num_broken += not isinstance(failure, ConnectFailed)


class Forwarder:
    def __init__(
        self,
        table: RouteTable,
        upstream: HttpClient,
        texts: ErrorTexts,
        config: GatewayConfig,
        *,
        draw: Draw,
        wake: Wake | None,
    ) -> None:
        self._table = table
        self._upstream = upstream
        self._texts = texts
        wait_s = config.invocation_timeout_s * _TARGET_WAIT_SHARE
        self._targets = TargetModels(upstream=upstream, texts=texts, wait_s=wait_s, grants=config.grants)
        self._draw = draw
        self._hold_timeout_s = config.hold_timeout_s
        self.loads = Loads()
        """In-flight requests of each worker."""
        self._admitted = Loads()
        """In-flight and held requests of each serverless endpoint or variant."""
        self.wait_queue = WaitQueue(
            capacity=self._capacity,
            wake=wake,
            max_per_endpoint=config.max_held,
            max_total=config.max_held_in_all,
        )
        """Requests that wait for a replica."""
        self.on_quarantine: QuarantineListener = lambda: None
        """Called when a replica enters quarantine."""
        self._quarantine = Quarantine(on_end=self.wait_queue.release)
        self.loads.on_release(self.wait_queue.release)
        table.on_change(self._forget_gone)
        table.on_change(lambda _: self.wait_queue.release())

    @property
    def routes(self) -> Mapping[str, Route]:
        return self._table.routes

    async def route(self, endpoint: str) -> Route:
        """Return the route of an endpoint that has begun to serve, or raise `AwsError`."""
        route = await self._table.route(endpoint)
        if route is None:
            raise self._texts.endpoint_not_found(endpoint)
        if not route.variants and route.status != "InService":
            raise self._texts.endpoint_not_serving(route)
        return route

    def endpoint_of(self, component: str) -> str | None:
        return self._table.components.get(component)

    def wake(self, endpoints: Iterable[str]) -> bool:
        """Wake the scaled-to-zero variants of endpoints with asynchronous requests; False if none can be woken."""
        targets = [
            WakeTarget(endpoint=endpoint, variant=variant.name)
            for endpoint in endpoints
            if (route := self._table.routes.get(endpoint)) is not None
            for variant in route.variants
            if variant.standby and variant.weight > 0
        ]
        for target in targets:
            self.wait_queue.wake(target)
        return bool(targets) and self.wait_queue.can_hold

    async def send(
        self,
        endpoint: str,
        query: RoutingQuery,
        request: ClientRequest,
        *,
        request_id: str,
        on_decision: Callable[[RoutingDecision], None],
        while_held: WhileHeld,
    ) -> Forwarded:
        """
        Send a request to a replica, and wait for the head of its response.

        `on_decision` is called with each replica before the request is sent to it. Raises `AwsError` if there is no
        such endpoint, variant or component, or no replica has answered.
        """
        state = _ForwardState(endpoint=endpoint, query=query, while_held=while_held)
        admission = await self._admit(state, len(request.body), request_id) if query.wakes else None
        try:
            forwarded = await self._send(state, request, on_decision)
        except BaseException:
            if admission is not None:
                admission.release()
            raise
        forwarded.admission = admission
        return forwarded

    async def _admit(self, state: _ForwardState, num_bytes: int, request_id: str) -> LoadLease | None:
        """
        Count a request to a serverless endpoint.

        Raises `AwsError` if it is too large, or if as many requests as the endpoint's MaxConcurrency are in flight.
        """
        route = await self.route(state.endpoint)
        try:
            limit = routing.max_concurrency(route, state.query)
        except routing.NotRoutable:
            return None  # refused later, unless there are newer routes
        if limit is None:
            return None
        if num_bytes > SERVERLESS_MAX_BYTES:
            raise self._texts.oversize_body(request_id)
        counted = f"{state.endpoint}/{state.query.target_variant or ''}"
        if self._admitted.get(counted, 0) >= limit:
            raise self._texts.concurrency_exceeded(state.endpoint, limit)
        return self._admitted.acquire(counted)

    async def _send(
        self, state: _ForwardState, request: ClientRequest, on_decision: Callable[[RoutingDecision], None]
    ) -> Forwarded:
        while state.num_broken < MAX_TRIES:
            decision = await self._next_replica(state)
            if decision is None:
                break
            on_decision(decision)
            forwarded = await self._call(decision, request, state)
            if forwarded is not None:
                return forwarded
            await self._table.settled()
        raise self._no_response(state)

    async def _call(self, decision: RoutingDecision, request: ClientRequest, state: _ForwardState) -> Forwarded | None:
        """Send the request to one replica; None if it did not answer and another one may be tried."""
        replica, lease = decision.replica, self.loads.acquire(decision.replica.worker)
        try:
            response = await self._send_to(decision, request, state.query.target_model)
        except NoResponse as failure:
            lease.release()
            get_logger().warning("worker.silent", endpoint=state.endpoint, worker=replica.worker, reason=str(failure))
            if isinstance(failure, ConnectFailed) and replica not in self._quarantine:
                self._quarantine.add(replica)
                self.on_quarantine()
            state.add_failure(replica.worker, failure)
            if isinstance(failure, ResponseHeadBroken):
                raise self._texts.no_response(state.endpoint) from None
            return None
        except BaseException:
            lease.release()
            raise
        if self._quarantine:
            self._quarantine.lift(replica)
        return Forwarded(decision=decision, response=response, lease=lease)

    async def _send_to(self, decision: RoutingDecision, request: ClientRequest, target: str | None) -> ClientResponse:
        url, request = decision.replica.url, _for_replica(request, decision)
        if target is None:
            return await self._upstream.send(url, request)
        return await self._targets.send(url, request, prefix=decision.variant.model_prefix, target=target)

    def _no_response(self, state: _ForwardState) -> AwsError:
        """Return the error after the last attempt: a ModelError if a replica may have begun to run the request."""
        return self._texts.no_response(state.endpoint) if state.num_broken else self._texts.no_replica(state.endpoint)

    async def _next_replica(self, state: _ForwardState) -> RoutingDecision | None:
        """Choose the replica to try next, holding the request until there is one; None if all of them have failed."""
        query, target = state.query, state.target
        may_queue = query.wakes and query.worker is None and not state.has_failed
        if may_queue and self.wait_queue.has_waiters(target):
            await self._hold(state, None)
        while True:
            route = await self._route_of(state)
            try:
                decision = self._choose(route, state)
            except NoReplica as error:
                # Replicas that have all failed, or are in quarantine, will be replaced.
                usable = (variant for variant in routing.candidates(route, query) if routing.is_open_to(variant, query))
                awaited = error.asleep or next((variant for variant in usable if routing.replicas_of(variant)), None)
                if awaited is None or not self._may_wait(state):
                    if await self._catch_up(state):
                        continue
                    if await self._has_changed(route):
                        continue
                    self._raise_if_not_tried(route, state)
                    return None
                if state.excluded:
                    state.excluded.clear()  # a broken connection does not mean a dead worker; quarantine covers those
                else:
                    await self._hold(state, _wake_target(target, awaited))
            except routing.NotRoutable as error:
                if not await self._catch_up(state):
                    raise self._texts.not_routable(state.endpoint, error) from None
            else:
                if decision.asleep is not None and query.wakes:
                    self.wait_queue.wake(_wake_target(target, decision.asleep))
                return decision

    async def _route_of(self, state: _ForwardState) -> Route:
        """Return the route of a request, or raise `AwsError`: another endpoint may have got the name meanwhile."""
        route = await self.route(state.endpoint)
        if state.query.endpoint_uid not in (None, route.endpoint_uid):
            raise self._texts.endpoint_not_found(state.endpoint)
        return route

    async def _has_changed(self, route: Route) -> bool:
        """Return whether an endpoint that was being created has another route by now. Raises `Unavailable`."""
        return route.status == "Creating" and await self._table.route(route.endpoint, is_newest=True) != route

    async def _catch_up(self, state: _ForwardState) -> bool:
        """Read newer routes, once for each request; return whether there were any."""
        if state.has_caught_up:
            return False
        state.has_caught_up = True
        return await self._table.catch_up()

    def _choose(self, route: Route, state: _ForwardState) -> RoutingDecision:
        """
        Choose a replica that has not failed and is not in quarantine; raises as `choose` does.

        If the request cannot be held, a replica in quarantine is better than none.
        """
        query = replace(state.query, excluded=state.excluded) if state.excluded else state.query
        if query.worker is not None or not self._quarantine:
            return routing.choose(route, query, self.loads, self._draw)
        try:
            excluded = state.excluded | self._quarantined_workers(route, query)
            return routing.choose(route, replace(query, excluded=excluded), self.loads, self._draw)
        except NoReplica:
            if self._may_wait(state):
                raise
            return routing.choose(route, query, self.loads, self._draw)

    def _may_wait(self, state: _ForwardState) -> bool:
        query, can_hold = state.query, self.wait_queue.can_hold
        return can_hold and query.wakes and query.worker is None and state.num_broken < MAX_TRIES_TO_WAIT

    def _quarantined_workers(self, route: Route, query: RoutingQuery) -> set[str]:
        replicas = (replica for variant in routing.candidates(route, query) for replica in routing.replicas_of(variant))
        return {replica.worker for replica in replicas if replica in self._quarantine}

    async def _hold(self, state: _ForwardState, asleep: WakeTarget | None) -> None:
        if state.deadline_s is None:
            state.deadline_s = asyncio.get_running_loop().time() + self._hold_timeout_s
        try:
            with state.while_held():
                async with asyncio.timeout_at(state.deadline_s):
                    await self.wait_queue.wait(state.target, asleep)
        except WaitQueueFull:
            error = self._texts.too_many_wait(state.endpoint)
        except TimeoutError:
            error = self._texts.waited_too_long(state.endpoint, state.target.component)
        else:
            return
        raise self._no_response(state) if state.num_broken else error

    def _raise_if_not_tried(self, route: Route, state: _ForwardState) -> None:
        """Raise the reason why no replica can answer, unless the reason is that all of them have failed."""
        query = state.query
        if state.has_failed:
            return
        if query.worker is not None:
            raise self._texts.session_lost((query.affinity or b"").decode("latin-1"))
        if not query.wakes and any(variant.standby for variant in routing.candidates(route, query)):
            raise self._texts.asleep(route.endpoint)
        if query.component is not None:
            raise self._texts.no_copy()
        if route.status in {"Creating", "Failed"}:
            raise self._texts.endpoint_not_serving(route)
        raise self._texts.no_replica(route.endpoint)

    def _capacity(self, target: WakeTarget) -> int | None:
        """Return how many held requests may be released; None: all of them, as no replica will become ready."""
        route = self._table.routes.get(target.endpoint)
        if route is None:
            return None
        container = None if target.component is not None else ANY_CONTAINER
        query = RoutingQuery(target_variant=target.variant, component=target.component, container=container)
        try:
            quarantined = self._quarantined_workers(route, query) if self._quarantine else set[str]()
            replicas = routing.usable_replicas(route, replace(query, excluded=quarantined))
            is_standby = any(variant.standby for variant in routing.candidates(route, query))
        except routing.NotRoutable:
            return None
        if not replicas:
            return 0 if is_standby or quarantined else None
        return sum(max(0, RELEASED_PER_REPLICA - self.loads.get(replica.worker, 0)) for replica in replicas)

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        """Close idle connections to workers that are in no route, and end their quarantine."""
        replicas = routing.all_replicas(routes.values())
        self._upstream.retain(replica.url for replica in replicas)
        self._quarantine.retain(replicas)


def _wake_target(target: WakeTarget, asleep: VariantRoute) -> WakeTarget:
    """Return what has to be woken for `target`: its component, the base of its adapter, or the variant `asleep`."""
    if target.component is not None:
        component = target.component if asleep.adapter is None else asleep.adapter.base
        return WakeTarget(endpoint=target.endpoint, component=component)
    return WakeTarget(endpoint=target.endpoint, variant=asleep.name)


def _for_replica(request: ClientRequest, decision: RoutingDecision) -> ClientRequest:
    """Add the bearer token that the worker requires, and the adapter that it applies, where there are any."""
    added = []
    if decision.replica.token:
        added.append(("Authorization", f"Bearer {decision.replica.token}"))
    if decision.variant.adapter is not None:
        added.append((IDENTIFIER_HEADER, decision.variant.adapter.name))
    return replace(request, headers=(*request.headers, *added)) if added else request
