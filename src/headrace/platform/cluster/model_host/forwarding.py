"""Pass a request on to a model of a host, which loads it if necessary, and relay the response."""

import math
from dataclasses import dataclass, replace
from typing import Final

from headrace.platform.cluster.model_host.entries import ModelLease
from headrace.platform.cluster.model_host.host import ModelHost
from headrace.platform.cluster.model_host.processes import ModelUnavailable
from headrace.platform.cluster.model_host.protocol import TIMING_HEADER, WAIT_HEADER, render_timing
from headrace.serving.http.asgi import Scope
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ClientResponse, ConnectFailed, NoResponse, ResponseBroken
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import sse_event

MAX_BODY_BYTES: Final = 256 << 20
"""Longest body of a request or of a whole response; gateways and servers have smaller limits for requests."""
_NOT_PASSED_ON: Final = frozenset(
    {b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"authorization", b"x-api-key"}
    | {b"origin", b"x-request-id", WAIT_HEADER.encode()}
)
"""Checked or answered by the server in front of the models; the credentials are its own."""
_NOT_PASSED_BACK: Final = frozenset(
    {"connection", "content-length", "transfer-encoding", "date", "server", "x-request-id", "request-id"}
)


def passed_headers(scope: Scope) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request that its model gets."""
    return tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in _NOT_PASSED_ON
    )


@dataclass(slots=True, kw_only=True)
class ModelForwarder:
    """Sends requests to the models of a host."""

    host: ModelHost
    client: HttpClient

    async def forward(
        self,
        name: str,
        request: ClientRequest,
        exchange: Exchange,
        *,
        wait_s: float | None = None,
        keep_s: float | None = None,
    ) -> None:
        """
        Answer a request by a model; `keep_s` is its time to live from now on, in idle seconds; None: as it is.

        A model whose process has ended is loaded again, if the request has not reached it.

        Raises:
            ModelUnavailable: the model was not loaded within `wait_s`, cannot be loaded, or did not answer.
            ResponseBroken: the model's process ended in the middle of its response.
        """
        async with exchange.cancelled_on_disconnect():
            for is_last in (False, True):
                try:
                    async with self.host.lease(name, wait_s=wait_s) as lease:
                        if keep_s is not None:
                            self.host.keep(name, None if math.isinf(keep_s) else keep_s)
                        if await self._pass_on(lease, request, exchange, is_last=is_last):
                            return
                except (ModelUnavailable, ResponseBroken):
                    await self.host.check(name)
                    raise
                await self.host.check(name)

    async def _pass_on(self, lease: ModelLease, request: ClientRequest, exchange: Exchange, *, is_last: bool) -> bool:
        """Relay the response of a model; return False if the request has not reached it, and may be sent again."""
        if lease.token:
            authorization = ("Authorization", f"Bearer {lease.token}")
            request = replace(request, headers=(*request.headers, authorization))
        try:
            response = await self.client.send(lease.url, request)
        except NoResponse as error:
            if isinstance(error, ConnectFailed) and not is_last:
                return False
            raise ModelUnavailable(f"The model did not answer: {error}.", reason="not-loaded") from error
        try:
            await _relay(response, lease, exchange)
        finally:
            response.close()
        return True


async def _relay(response: ClientResponse, lease: ModelLease, exchange: Exchange) -> None:
    headers = [(name, value) for name, value in response.headers.items() if name not in _NOT_PASSED_BACK]
    if lease.timing is not None:
        headers.append((TIMING_HEADER, render_timing(lease.timing)))
    if "content-length" in response.headers:
        content = await response.read(MAX_BODY_BYTES)
        if not exchange.is_started:
            await exchange.respond(response.status, headers, content)
            return
        exchange.put(sse_event(b" ".join(content.split())))  # a stream was begun while the model was loaded
        await exchange.finish()
        return
    if not exchange.is_started:
        await exchange.start(response.status, headers)
    await response.relay(exchange.put, exchange.drain)
    await exchange.finish()
