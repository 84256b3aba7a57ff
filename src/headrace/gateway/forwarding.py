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
from headrace.gateway.holding import RELEASED_PER_REPLICA, Holding, RoomFull, Wake, Wanted
from headrace.gateway.loads import Hold, Loads
from headrace.gateway.routing import (
    Ask,
    Choice,
    ComponentNeeded,
    Draw,
    NoReplica,
    UnknownComponent,
    UnknownVariant,
    candidates,
    choose,
    is_open_to,
    replicas_of,
    usable_replicas,
)
from headrace.gateway.silence import Silences
from headrace.gateway.table import RouteTable
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

    choice: Choice
    call: Call
    hold: Hold

    @property
    def answer(self) -> Answer:
        """The worker's answer."""
        return self.call.answer

    def close(self) -> None:
        """Give up what has not come yet, and count the request no more. Idempotent."""
        self.call.close()
        self.hold.release()


@dataclass(slots=True, kw_only=True)
class _Journey:
    """One request on its way to a replica."""

    endpoint: str
    ask: Ask
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
    def wanted(self) -> Wanted:
        """What it waits for."""
        return Wanted(endpoint=self.endpoint, variant=self.ask.target_variant, component=self.ask.component)

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
        self.holding = Holding(
            capacity=self._capacity,
            wake=wake,
            max_of_endpoint=config.max_held,
            max_in_all=config.max_held_in_all,
        )
        """Requests that wait for a replica."""
        self.on_silence: Callable[[], None] = lambda: None
        """Called when a replica is found to be silent that was not before."""
        self._silences = Silences(on_end=self.holding.look)
        self.loads.on_leave(self.holding.look)
        table.on_change(self._forget_gone)
        table.on_change(lambda _: self.holding.look())

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
            Wanted(endpoint=endpoint, variant=variant.name)
            for endpoint in endpoints
            if (route := self._table.routes.get(endpoint)) is not None
            for variant in route.variants
            if variant.standby and variant.weight > 0
        ]
        for wanted in asleep:
            self.holding.poke(wanted)
        return bool(asleep) and self.holding.is_possible

    async def send(
        self,
        endpoint: str,
        ask: Ask,
        request: WorkerRequest,
        *,
        on_choice: Callable[[Choice], None],
        waiting: Waiting,
    ) -> Forwarded:
        """
        Ask a replica, and wait for the head of its answer.

        Args:
            endpoint: its name.
            ask: what matters for the choice.
            request: what the replica gets.
            on_choice: told of each replica before it is asked.
            waiting: entered while the request is held for a replica to come.

        Raises:
            AwsError: there is no such endpoint, variant or component, nobody can answer, or nobody did.
        """
        journey = _Journey(endpoint=endpoint, ask=ask, waiting=waiting)
        while journey.num_broken < MAX_TRIES:
            choice = await self._next(journey)
            if choice is None:
                break
            on_choice(choice)
            forwarded = await self._asked(choice, request, journey)
            if forwarded is not None:
                return forwarded
            await self._table.settled()
        raise self._unanswered(journey)

    async def _asked(self, choice: Choice, request: WorkerRequest, journey: _Journey) -> Forwarded | None:
        """Ask one replica; None if it did not answer and another may."""
        replica, hold = choice.replica, self.loads.hold(choice.replica.worker)
        try:
            call = await self._upstream.call(replica.url, _admitted(request, replica.token))
        except UpstreamFailed as failure:
            hold.release()
            self._failed(replica, failure, journey)
            return None
        except BaseException:
            hold.release()
            raise
        if self._silences:
            self._silences.heard(replica)
        return Forwarded(choice=choice, call=call, hold=hold)

    def _failed(self, replica: Replica, failure: UpstreamFailed, journey: _Journey) -> None:
        facts = {"endpoint": journey.endpoint, "worker": replica.worker, "reason": str(failure)}
        get_logger().warning("worker.silent", **facts)
        if isinstance(failure, NotConnected) and replica not in self._silences:
            self._silences.note(replica)
            self.on_silence()
        journey.failed(replica.worker, failure)
        if isinstance(failure, BrokenInHead):
            raise self._texts.no_answer(journey.endpoint)

    def _unanswered(self, journey: _Journey) -> AwsError:
        """What to say when no more replicas are asked: whether one may have begun."""
        return (
            self._texts.no_answer(journey.endpoint) if journey.num_broken else self._texts.no_replica(journey.endpoint)
        )

    async def _next(self, journey: _Journey) -> Choice | None:
        """Who is asked next, as soon as there is somebody; None if all that there are were asked in vain."""
        ask, wanted = journey.ask, journey.wanted
        if ask.worker is None and not journey.is_refused and self.holding.is_queue_for(wanted):
            await self._hold(journey, None)
        while True:
            route = await self.route(journey.endpoint)
            try:
                choice = self._choose(route, journey)
            except NoReplica as nobody:
                hoped = nobody.asleep or self._hoped_for(route, journey)
                if hoped is None or not self._may_wait(journey):
                    self._refuse(route, journey)
                    return None
                if journey.excluded:
                    journey.excluded.clear()  # whose connection broke may live; who is dead is silent
                else:
                    await self._hold(journey, _to_wake(wanted, hoped))
            except UnknownVariant as error:
                raise self._texts.variant_not_found(str(error)) from None
            except UnknownComponent as error:
                raise self._texts.component_not_found(str(error)) from None
            except ComponentNeeded:
                raise self._texts.component_needed() from None
            else:
                if choice.asleep is not None:
                    self.holding.poke(_to_wake(wanted, choice.asleep))
                return choice

    def _choose(self, route: Route, journey: _Journey) -> Choice:
        """A replica that was not tried yet and is not silent; if nobody can wait, a silent one. Raises as `choose`."""
        ask = replace(journey.ask, excluded=journey.excluded) if journey.excluded else journey.ask
        if ask.worker is not None or not self._silences:
            return choose(route, ask, self.loads, self._draw)
        try:
            excluded = journey.excluded | self._silent_workers(route, ask)
            return choose(route, replace(ask, excluded=excluded), self.loads, self._draw)
        except NoReplica:
            if self._may_wait(journey):
                raise
            return choose(route, ask, self.loads, self._draw)

    def _may_wait(self, journey: _Journey) -> bool:
        return self.holding.is_possible and journey.ask.worker is None and journey.num_broken < MAX_TRIES_TO_WAIT

    def _hoped_for(self, route: Route, journey: _Journey) -> VariantRoute | None:
        """A variant, or the component, whose replicas were all tried or are silent: others will come."""
        usable = (one for one in candidates(route, journey.ask) if is_open_to(one, journey.ask) and replicas_of(one))
        return next(usable, None)

    def _silent_workers(self, route: Route, ask: Ask) -> set[str]:
        replicas = (replica for one in candidates(route, ask) for replica in replicas_of(one))
        return {replica.worker for replica in replicas if replica in self._silences}

    async def _hold(self, journey: _Journey, asleep: Wanted | None) -> None:
        """Wait for the turn of a request."""
        if journey.deadline_s is None:
            journey.deadline_s = asyncio.get_running_loop().time() + self._hold_timeout_s
        try:
            with journey.waiting():
                async with asyncio.timeout_at(journey.deadline_s):
                    await self.holding.wait(journey.wanted, asleep)
        except RoomFull:
            error = self._texts.too_many_wait(journey.endpoint)
        except TimeoutError:
            error = self._texts.waited_too_long(journey.endpoint, journey.wanted.component)
        else:
            return
        raise self._unanswered(journey) if journey.num_broken else error

    def _refuse(self, route: Route, journey: _Journey) -> None:
        """Say why nobody can answer, if it is not because all were asked."""
        ask = journey.ask
        if journey.is_refused:
            return
        if ask.worker is not None:
            raise self._texts.session_lost((ask.affinity or b"").decode("latin-1"))
        if ask.component is not None:
            raise self._texts.no_copy()
        if route.status in {"Creating", "Failed"}:
            raise self._texts.endpoint_not_serving(route)
        raise self._texts.no_replica(route.endpoint)

    def _capacity(self, wanted: Wanted) -> int | None:
        """How many of those who wait may go; None: all, as there is nothing to wait for."""
        route = self._table.routes.get(wanted.endpoint)
        if route is None:
            return None
        ask = Ask(target_variant=wanted.variant, component=wanted.component)
        try:
            silent = self._silent_workers(route, ask) if self._silences else set[str]()
            replicas = usable_replicas(route, replace(ask, excluded=silent))
            is_standby = any(variant.standby for variant in candidates(route, ask))
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
        self._silences.keep(replicas)


def _to_wake(wanted: Wanted, asleep: VariantRoute) -> Wanted:
    if wanted.component is not None:
        return Wanted(endpoint=wanted.endpoint, component=wanted.component)
    return Wanted(endpoint=wanted.endpoint, variant=asleep.name)


def _admitted(request: WorkerRequest, token: str) -> WorkerRequest:
    """The request with the token that its worker asks for."""
    if not token:
        return request
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token}")))
