"""
From a request to the head of a worker's answer: choose a replica, ask it, and another one if that fails early.

A request is sent again only if no connection could be made or it broke before the first byte of an answer, and to a
replica that was not tried yet, if there is one: after that byte nobody knows what the worker has done.

Where nobody can answer yet, and somebody may be waited for, the request is held: see `holding`. So it is where all
replicas are silent: the reconciler has not seen yet that they died, and will bring others.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from headrace.core.telemetry import get_logger
from headrace.gateway.config import GatewayConfig
from headrace.gateway.errors import ErrorTexts
from headrace.gateway.loads import LoadLease, Loads
from headrace.gateway.quarantine import Quarantine
from headrace.gateway.routing import (
    ComponentNeeded,
    Draw,
    NoReplica,
    RoutingDecision,
    RoutingQuery,
    UnknownComponent,
    UnknownVariant,
    candidates,
    choose,
    is_open_to,
    replicas_of,
    usable_replicas,
)
from headrace.gateway.table import RouteTable
from headrace.gateway.wait_queue import RELEASED_PER_REPLICA, WaitQueue, WaitQueueFull, Wake, WakeTarget
from headrace.http.client import Call, Upstream, WorkerRequest
from headrace.http.client_response import Answer, BrokenInHead, NotConnected, UpstreamFailed
from headrace.state.routes import Replica, Route, VariantRoute
from headrace.wire.aws.errors import AwsError

MAX_TRIES = 3
"""Replicas that may break under one request."""
MAX_TRIES_TO_WAIT = 2
"""After so many a request waits for no other replica: perhaps it is the request that they break of."""

Waiting = Callable[[], AbstractContextManager[None]]
"""Entered while a request is held."""


@dataclass(slots=True, kw_only=True)
class Forwarded:
    """A request that a worker has begun to answer. `close` it, whatever happens."""

    decision: RoutingDecision
    call: Call
    hold: LoadLease

    @property
    def answer(self) -> Answer:
        """The worker's answer."""
        return self.call.answer

    def close(self) -> None:
        """Give up what has not come yet, and count the request no more. Idempotent."""
        self.call.close()
        self.hold.release()


@dataclass(slots=True, kw_only=True)
class _ForwardState:
    """One request on its way to a replica."""

    endpoint: str
    query: RoutingQuery
    waiting: Waiting
    excluded: set[str] = field(default_factory=set)
    """Workers that were tried in vain since the request was held last."""
    num_broken: int = 0
    """Replicas that had got it when their connection broke."""
    is_refused: bool = False
    """Some replica was asked in vain."""
    deadline_s: float | None = None
    """Until then it may be held, by the event loop's clock; None: it was not yet."""

    @property
    def wanted(self) -> WakeTarget:
        """What it waits for."""
        return WakeTarget(endpoint=self.endpoint, variant=self.query.target_variant, component=self.query.component)

    def failed(self, worker: str, failure: UpstreamFailed) -> None:
        """Take note of a replica that did not answer."""
        self.is_refused = True
        self.excluded.add(worker)
        self.num_broken += not isinstance(failure, NotConnected)


class Forwarder:
    """Sends requests to the replicas of endpoints."""

    def __init__(
        self,
        table: RouteTable,
        upstream: Upstream,
        texts: ErrorTexts,
        config: GatewayConfig,
        *,
        draw: Draw,
        wake: Wake | None,
    ) -> None:
        self._table = table
        self._upstream = upstream
        self._texts = texts
        self._draw = draw
        self._hold_timeout_s = config.hold_timeout_s
        self.loads = Loads()
        """Outstanding requests of each worker."""
        self.wait_queue = WaitQueue(
            capacity=self._capacity,
            wake=wake,
            max_of_endpoint=config.max_held,
            max_in_all=config.max_held_in_all,
        )
        """Requests that wait for a replica."""
        self.on_quarantine: Callable[[], None] = lambda: None
        """Called when a replica is found to be silent that was not before."""
        self._quarantine = Quarantine(on_end=self.wait_queue.look)
        self.loads.on_leave(self.wait_queue.look)
        table.on_change(self._forget_gone)
        table.on_change(lambda _: self.wait_queue.look())

    async def route(self, endpoint: str) -> Route:
        """
        The route of an endpoint that has begun to serve.

        Raises:
            AwsError: there is none, or it does not serve.
        """
        route = await self._table.route(endpoint)
        if route is None:
            raise self._texts.endpoint_not_found(endpoint)
        if not route.variants and route.status != "InService":
            raise self._texts.endpoint_not_serving(route)
        return route

    def endpoint_of(self, component: str) -> str | None:
        """The endpoint that has an inference component of that name."""
        return self._table.components.get(component)

    def wake(self, endpoints: Iterable[str]) -> bool:
        """Wake what sleeps of endpoints that are waited for elsewhere; False: there is nothing that could be woken."""
        asleep = [
            WakeTarget(endpoint=endpoint, variant=variant.name)
            for endpoint in endpoints
            if (route := self._table.routes.get(endpoint)) is not None
            for variant in route.variants
            if variant.standby and variant.weight > 0
        ]
        for wanted in asleep:
            self.wait_queue.poke(wanted)
        return bool(asleep) and self.wait_queue.is_possible

    async def send(
        self,
        endpoint: str,
        query: RoutingQuery,
        request: WorkerRequest,
        *,
        on_decision: Callable[[RoutingDecision], None],
        waiting: Waiting,
    ) -> Forwarded:
        """
        Ask a replica, and wait for the head of its answer.

        Args:
            endpoint: its name.
            query: what matters for the decision.
            request: what the replica gets.
            on_decision: told of each replica before it is asked.
            waiting: entered while the request is held for a replica to come.

        Raises:
            AwsError: there is no such endpoint, variant or component, nobody can answer, or nobody did.
        """
        state = _ForwardState(endpoint=endpoint, query=query, waiting=waiting)
        while state.num_broken < MAX_TRIES:
            decision = await self._next(state)
            if decision is None:
                break
            on_decision(decision)
            forwarded = await self._asked(decision, request, state)
            if forwarded is not None:
                return forwarded
            await self._table.settled()
        raise self._unanswered(state)

    async def _asked(self, decision: RoutingDecision, request: WorkerRequest, state: _ForwardState) -> Forwarded | None:
        """Ask one replica; None if it did not answer and another may."""
        replica, hold = decision.replica, self.loads.hold(decision.replica.worker)
        try:
            call = await self._upstream.call(replica.url, _admitted(request, replica.token))
        except UpstreamFailed as failure:
            hold.release()
            self._failed(replica, failure, state)
            return None
        except BaseException:
            hold.release()
            raise
        if self._quarantine:
            self._quarantine.heard(replica)
        return Forwarded(decision=decision, call=call, hold=hold)

    def _failed(self, replica: Replica, failure: UpstreamFailed, state: _ForwardState) -> None:
        facts = {"endpoint": state.endpoint, "worker": replica.worker, "reason": str(failure)}
        get_logger().warning("worker.silent", **facts)
        if isinstance(failure, NotConnected) and replica not in self._quarantine:
            self._quarantine.note(replica)
            self.on_quarantine()
        state.failed(replica.worker, failure)
        if isinstance(failure, BrokenInHead):
            raise self._texts.no_answer(state.endpoint)

    def _unanswered(self, state: _ForwardState) -> AwsError:
        """What to say when no more replicas are asked: whether one may have begun."""
        return self._texts.no_answer(state.endpoint) if state.num_broken else self._texts.no_replica(state.endpoint)

    async def _next(self, state: _ForwardState) -> RoutingDecision | None:
        """Who is asked next, as soon as there is somebody; None if all that there are were asked in vain."""
        query, wanted = state.query, state.wanted
        if query.worker is None and not state.is_refused and self.wait_queue.is_queue_for(wanted):
            await self._hold(state, None)
        while True:
            route = await self.route(state.endpoint)
            try:
                decision = self._choose(route, state)
            except NoReplica as nobody:
                hoped = nobody.asleep or self._hoped_for(route, state)
                if hoped is None or not self._may_wait(state):
                    self._refuse(route, state)
                    return None
                if state.excluded:
                    state.excluded.clear()  # whose connection broke may live; who is dead is silent
                else:
                    await self._hold(state, _to_wake(wanted, hoped))
            except UnknownVariant as error:
                raise self._texts.variant_not_found(str(error)) from None
            except UnknownComponent as error:
                raise self._texts.component_not_found(str(error)) from None
            except ComponentNeeded:
                raise self._texts.component_needed() from None
            else:
                if decision.asleep is not None:
                    self.wait_queue.poke(_to_wake(wanted, decision.asleep))
                return decision

    def _choose(self, route: Route, state: _ForwardState) -> RoutingDecision:
        """A replica that was not tried yet and is not silent; if nobody can wait, a silent one. Raises as `choose`."""
        query = replace(state.query, excluded=state.excluded) if state.excluded else state.query
        if query.worker is not None or not self._quarantine:
            return choose(route, query, self.loads, self._draw)
        try:
            excluded = state.excluded | self._silent_workers(route, query)
            return choose(route, replace(query, excluded=excluded), self.loads, self._draw)
        except NoReplica:
            if self._may_wait(state):
                raise
            return choose(route, query, self.loads, self._draw)

    def _may_wait(self, state: _ForwardState) -> bool:
        return self.wait_queue.is_possible and state.query.worker is None and state.num_broken < MAX_TRIES_TO_WAIT

    def _hoped_for(self, route: Route, state: _ForwardState) -> VariantRoute | None:
        """A variant, or the component, whose replicas were all tried or are silent: others will come."""
        usable = (one for one in candidates(route, state.query) if is_open_to(one, state.query) and replicas_of(one))
        return next(usable, None)

    def _silent_workers(self, route: Route, query: RoutingQuery) -> set[str]:
        replicas = (replica for one in candidates(route, query) for replica in replicas_of(one))
        return {replica.worker for replica in replicas if replica in self._quarantine}

    async def _hold(self, state: _ForwardState, asleep: WakeTarget | None) -> None:
        """Wait for the turn of a request."""
        if state.deadline_s is None:
            state.deadline_s = asyncio.get_running_loop().time() + self._hold_timeout_s
        try:
            with state.waiting():
                async with asyncio.timeout_at(state.deadline_s):
                    await self.wait_queue.wait(state.wanted, asleep)
        except WaitQueueFull:
            error = self._texts.too_many_wait(state.endpoint)
        except TimeoutError:
            error = self._texts.waited_too_long(state.endpoint, state.wanted.component)
        else:
            return
        raise self._unanswered(state) if state.num_broken else error

    def _refuse(self, route: Route, state: _ForwardState) -> None:
        """Say why nobody can answer, if it is not because all were asked."""
        query = state.query
        if state.is_refused:
            return
        if query.worker is not None:
            raise self._texts.session_lost((query.affinity or b"").decode("latin-1"))
        if query.component is not None:
            raise self._texts.no_copy()
        if route.status in {"Creating", "Failed"}:
            raise self._texts.endpoint_not_serving(route)
        raise self._texts.no_replica(route.endpoint)

    def _capacity(self, wanted: WakeTarget) -> int | None:
        """How many of those who wait may go; None: all, as there is nothing to wait for."""
        route = self._table.routes.get(wanted.endpoint)
        if route is None:
            return None
        query = RoutingQuery(target_variant=wanted.variant, component=wanted.component)
        try:
            silent = self._silent_workers(route, query) if self._quarantine else set[str]()
            replicas = usable_replicas(route, replace(query, excluded=silent))
            is_standby = any(variant.standby for variant in candidates(route, query))
        except (UnknownVariant, UnknownComponent, ComponentNeeded):
            return None
        if not replicas:
            return 0 if is_standby or silent else None
        return sum(max(0, RELEASED_PER_REPLICA - self.loads.get(replica.worker, 0)) for replica in replicas)

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        """Connections to workers that no route has are closed once they are idle."""
        replicas = {
            replica
            for route in routes.values()
            for variant in (*route.variants, *(component.route for component in route.components))
            for fleet in variant.fleets
            for replica in fleet.replicas
        }
        self._upstream.retain(replica.url for replica in replicas)
        self._quarantine.keep(replicas)


def _to_wake(wanted: WakeTarget, asleep: VariantRoute) -> WakeTarget:
    if wanted.component is not None:
        return WakeTarget(endpoint=wanted.endpoint, component=wanted.component)
    return WakeTarget(endpoint=wanted.endpoint, variant=asleep.name)


def _admitted(request: WorkerRequest, token: str) -> WorkerRequest:
    """The request with the token that its worker asks for."""
    if not token:
        return request
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token}")))
