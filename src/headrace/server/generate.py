"""
The endpoint of every route that generates text, whatever its dialect: body → request → chunks → bytes.

When a client disconnects, the backend's relay is cancelled, which aborts the request. Each request is logged and
counted once.
"""

import asyncio
from time import perf_counter

from starlette.datastructures import Headers, QueryParams

from headrace.core.telemetry import RequestRecord, get_logger, log_request
from headrace.core.tracing import trace_of
from headrace.http.asgi import Receive, Scope, Send
from headrace.http.body import ClientGone
from headrace.http.errors import CLIENT_GONE_STATUS, errors_answered
from headrace.http.exchange import Exchange
from headrace.http.spans import span_of
from headrace.server.formatted import FormattedGeneration
from headrace.server.generation import ChooseDialect, Generation, Weigh
from headrace.server.generation_spans import describe_outcome, describe_request
from headrace.server.service import Service
from headrace.wire.adapters import IDENTIFIER_HEADER
from headrace.wire.dialect import Dialect


class GenerationRoute:
    """An ASGI endpoint that generates text."""

    def __init__(
        self,
        service: Service,
        *,
        route: str,
        dialect: Dialect,
        choose: ChooseDialect | None = None,
        weigh: Weigh | None = None,
    ) -> None:
        """
        Create the endpoint.

        Args:
            service: the state that all routes share.
            route: the path, for the log.
            dialect: the dialect of the route; of its errors only, where `choose` looks at the body.
            choose: finds the dialect by the body.
            weigh: returns the size of what the dialect parses besides the body; None: nothing.
        """
        self._service = service
        self._route = route
        self._dialect = dialect
        self._choose = choose
        self._weigh = weigh

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        record = RequestRecord(
            request_id=trace_of(scope).request_id,
            route=self._route,
            dialect=self._dialect.name,
            started_s=perf_counter(),
        )
        span = span_of(scope)
        exchange = Exchange(scope, receive, send, keep_alive_s=self._service.keep_alive_s)
        generation = self._generation(scope, exchange, record)
        try:
            async with errors_answered(generation.answer_error, request_id=record.request_id):
                backend = self._service.backend
                async with self._service.admit(scope, receive) as body:
                    parsed = await generation.parse(body, self._choose, adapter=adapter_of(scope), weigh=self._weigh)
                    describe_request(span, parsed, model=backend.info.name)
                    async with exchange.cancelled_on_disconnect():
                        await generation.run(backend, parsed)
        except ClientGone:
            record.finish = "disconnected"
        except asyncio.CancelledError:
            record.finish = "aborted"
            raise
        finally:
            record.ended_s = perf_counter()
            record.status = record.status or CLIENT_GONE_STATUS
            self._service.metrics.count(record)
            log_request(get_logger(), record)
            describe_outcome(span, record)

    def _generation(self, scope: Scope, exchange: Exchange, record: RequestRecord) -> Generation:
        formatters = self._service.formatters
        if formatters is None:
            return Generation(self._service, self._dialect, exchange, record)
        response = formatters.response(record.request_id, scope)
        return FormattedGeneration(self._service, self._dialect, exchange, record, response)


def adapter_of(scope: Scope) -> str | None:
    """Return the adapter that a header (SageMaker) or the query (LMI) names."""
    query = scope.get("query_string", b"")
    named = Headers(scope=scope).get(IDENTIFIER_HEADER)
    return named or (QueryParams(query).get("adapter") if query else None) or None
