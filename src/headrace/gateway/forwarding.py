"""
From a request to the head of a worker's answer: choose a replica, ask it, and another one if that fails early.

A request is sent again only if no connection could be made or it broke before any answer began, and only to a replica
that was not tried yet: after the first byte of an answer a client may have seen it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.core.telemetry import get_logger
from headrace.gateway.answer import Answer, NotConnected, UpstreamFailed
from headrace.gateway.errors import ErrorTexts
from headrace.gateway.loads import Hold, Loads
from headrace.gateway.routing import Ask, Choice, Draw, NoReplica, UnknownVariant, choose
from headrace.gateway.table import RouteTable
from headrace.gateway.upstream import Call, Upstream, WorkerRequest
from headrace.state.routes import Route

MAX_TRIES = 3


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

    def __init__(self, table: RouteTable, upstream: Upstream, texts: ErrorTexts, *, draw: Draw) -> None:
        self._table = table
        self._upstream = upstream
        self._texts = texts
        self._draw = draw
        self.loads = Loads()
        """Outstanding requests of each worker."""
        table.on_change(self._forget_gone)

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

    async def send(
        self, endpoint: str, ask: Ask, request: WorkerRequest, *, on_choice: Callable[[Choice], None]
    ) -> Forwarded:
        """
        Ask a replica, and wait for the head of its answer.

        Args:
            endpoint: its name.
            ask: what matters for the choice.
            request: what the replica gets.
            on_choice: told of each replica before it is asked.

        Raises:
            AwsError: there is no such endpoint or variant, nobody can answer, or nobody did.
        """
        failures: dict[str, UpstreamFailed] = {}
        while len(failures) < MAX_TRIES:
            route = await self.route(endpoint)
            choice = self._choose(route, replace(ask, excluded=failures.keys()) if failures else ask)
            if choice is None:
                break
            on_choice(choice)
            hold = self.loads.hold(choice.replica.worker)
            try:
                call = await self._upstream.call(choice.replica.url, request)
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

    def _choose(self, route: Route, ask: Ask) -> Choice | None:
        """Who is asked next; None if all that there are were asked in vain."""
        try:
            return choose(route, ask, self.loads, self._draw)
        except UnknownVariant as error:
            raise self._texts.variant_not_found(str(error)) from None
        except NoReplica:
            if ask.excluded:
                return None
            if ask.worker is not None:
                raise self._texts.session_lost((ask.affinity or b"").decode("latin-1")) from None
            if route.status in {"Creating", "Failed"}:
                raise self._texts.endpoint_not_found(route.endpoint) from None
            raise self._texts.no_replica(route.endpoint) from None

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        """Connections to workers that no route has are closed once they are idle."""
        self._upstream.retain(
            replica.url
            for route in routes.values()
            for variant in route.variants
            for fleet in variant.fleets
            for replica in fleet.replicas
        )
