"""
From a request to the head of a worker's answer: choose a replica, ask it, and another one if that fails early.

A request is sent again only if no connection could be made or it broke before any answer began, and only to a replica
that was not tried yet: after the first byte of an answer a client may have seen it.

Where nobody can answer yet, and somebody may be waited for, the request is held: see `holding`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from headrace.core.telemetry import get_logger
from headrace.gateway.answer import Answer, NotConnected, UpstreamFailed
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
    usable_replicas,
)
from headrace.gateway.table import RouteTable
from headrace.gateway.upstream import Call, Upstream, WorkerRequest
from headrace.state.routes import Route, VariantRoute

MAX_TRIES = 3

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
        self.loads.on_leave(self.holding.look)
        table.on_change(self._forget_gone)
        table.on_change(lambda _: self.holding.look())

    async def route(self, endpoint: str) -> Route:
        """
        The route of an endpoint that has begun to serve.

        Raises:
            AwsError: there is none.
        """
        route = await self._table.route(endpoint)
        if route is None or not (route.variants or route.status == "InService"):
            raise self._texts.endpoint_not_found(endpoint)
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
        failures: dict[str, UpstreamFailed] = {}
        while len(failures) < MAX_TRIES:
            choice = await self._next(endpoint, replace(ask, excluded=failures.keys()) if failures else ask, waiting)
            if choice is None:
                break
            on_choice(choice)
            hold = self.loads.hold(choice.replica.worker)
            try:
                call = await self._upstream.call(choice.replica.url, _admitted(request, choice.replica.token))
            except UpstreamFailed as failure:
                hold.release()
                failures[choice.replica.worker] = failure
                get_logger().warning(
                    "worker.silent", endpoint=endpoint, worker=choice.replica.worker, reason=str(failure)
                )
                await self._table.settled()
            except BaseException:
                hold.release()
                raise
            else:
                return Forwarded(choice=choice, call=call, hold=hold)
        if all(isinstance(failure, NotConnected) for failure in failures.values()):
            raise self._texts.no_replica(endpoint)
        raise self._texts.no_answer(endpoint)

    async def _next(self, endpoint: str, ask: Ask, waiting: Waiting) -> Choice | None:
        """Who is asked next, as soon as there is somebody; None if all that there are were asked in vain."""
        wanted = Wanted(endpoint=endpoint, variant=ask.target_variant, component=ask.component)
        if ask.worker is None and not ask.excluded and self.holding.is_queue_for(wanted):
            await self._hold(wanted, None, waiting)
        while True:
            route = await self.route(endpoint)
            try:
                choice = choose(route, ask, self.loads, self._draw)
            except NoReplica as nobody:
                if nobody.asleep is None or not self.holding.is_possible:
                    self._refuse(route, ask)
                    return None
                await self._hold(wanted, _to_wake(wanted, nobody.asleep), waiting)
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

    async def _hold(self, wanted: Wanted, asleep: Wanted | None, waiting: Waiting) -> None:
        """Wait for the turn of a request."""
        try:
            with waiting():
                async with asyncio.timeout(self._hold_timeout_s):
                    await self.holding.wait(wanted, asleep)
        except RoomFull:
            raise self._texts.too_many_wait(wanted.endpoint) from None
        except TimeoutError:
            raise self._texts.waited_too_long(wanted.endpoint) from None

    def _refuse(self, route: Route, ask: Ask) -> None:
        """Say why nobody can answer, if it is not because all were asked."""
        if ask.excluded:
            return
        if ask.worker is not None:
            raise self._texts.session_lost((ask.affinity or b"").decode("latin-1"))
        if ask.component is not None:
            raise self._texts.no_copy()
        if route.status in {"Creating", "Failed"}:
            raise self._texts.endpoint_not_found(route.endpoint)
        raise self._texts.no_replica(route.endpoint)

    def _capacity(self, wanted: Wanted) -> int | None:
        """How many of those who wait may go; None: all, as there is nothing to wait for."""
        route = self._table.routes.get(wanted.endpoint)
        if route is None:
            return None
        ask = Ask(target_variant=wanted.variant, component=wanted.component)
        try:
            replicas = usable_replicas(route, ask)
            is_standby = any(variant.standby for variant in candidates(route, ask))
        except (UnknownVariant, UnknownComponent, ComponentNeeded):
            return None
        if not replicas:
            return 0 if is_standby else None
        return sum(max(0, RELEASED_PER_REPLICA - self.loads.get(replica.worker, 0)) for replica in replicas)

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        """Connections to workers that no route has are closed once they are idle."""
        self._upstream.retain(
            replica.url
            for route in routes.values()
            for variant in (*route.variants, *(component.route for component in route.components))
            for fleet in variant.fleets
            for replica in fleet.replicas
        )


def _to_wake(wanted: Wanted, asleep: VariantRoute) -> Wanted:
    if wanted.component is not None:
        return Wanted(endpoint=wanted.endpoint, component=wanted.component)
    return Wanted(endpoint=wanted.endpoint, variant=asleep.name)


def _admitted(request: WorkerRequest, token: str) -> WorkerRequest:
    """The request with the token that its worker asks for."""
    if not token:
        return request
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token}")))
