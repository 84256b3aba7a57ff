"""
The HTTP side of a worker with several containers: it passes each request on to one of them, or through all of them.

In a pipeline the response of a container is the body of the next, with its content type. The client's other headers go
to every container, but `Accept` to the last one only: between containers the default of a container counts.
Source: developer guide, "Inference pipelines"; the notebooks of aws/amazon-sagemaker-examples about them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.metrics.worker_page import CONTAINER_LABEL, CONTAINER_PREFIX
from headrace.platform.cluster.container_header import HEADER, TARGET_HEADER, write_answered
from headrace.serving.http.asgi import Receive, Scope, Send, has_token, headers_of
from headrace.serving.http.body import BodyBudget, BodyTooLarge, BudgetSpent, ClientGone
from headrace.serving.http.client import ClientRequest, HttpClient
from headrace.serving.http.client_connection import ClientResponse, NoResponse, ResponseBroken, ResponseTooLarge
from headrace.serving.http.errors import ResponseAborted
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, to_json

if TYPE_CHECKING:
    from prometheus_client import Metric

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""Largest request, and largest response that is not streamed: those of an asynchronous invocation."""
MAX_BUFFERED_BYTES: Final = 1024 * 1024 * 1024
"""Bodies in memory at the same time."""
_EXIT_S: Final = 0.1
"""Time in which the kernel reports the end of a process whose connections it has closed."""
_FIRST_ONLY: Final = frozenset({"content-type", "content-encoding"})
"""Headers of the client that describe the body; the next container gets those of the response that it gets."""
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server", "expect", "te"}
    | {HEADER, TARGET_HEADER}
)
_USES: Final = frozenset({"process_cpu_seconds", "process_resident_memory_bytes"})
_PAGES: Final = ("/execution-parameters",)
"""Pages that a pipeline has from its first container."""


class ContainerRelay:
    """The application of a worker with several containers. `urls` has those that were started, in their order."""

    def __init__(
        self, names: Sequence[str], *, is_direct: bool, is_ready: Callable[[], Awaitable[bool]], token: str = ""
    ) -> None:
        """Create the application; all requests but `/ping` must have the bearer token, if there is one."""
        self.urls: dict[str, str] = {}
        self.lost = asyncio.Event()
        """Set once a container has ended."""
        self._names = tuple(names)
        self._is_direct = is_direct
        self._is_ready = is_ready
        self._token = token
        self._client = HttpClient()
        self._budget = BodyBudget(MAX_BUFFERED_BYTES)

    async def close(self) -> None:
        await self._client.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        path, method = scope["path"], scope["method"]
        if path == "/ping":
            await exchange.respond(200 if await self._is_ready() else 503, (), b"")
        elif self._token and not has_token(scope, self._token):
            await self._refuse(exchange, 401, "The bearer token is missing or wrong.")
        elif path == "/metrics":
            await exchange.respond(200, [("content-type", "text/plain; version=0.0.4")], await self._metrics())
        elif not (chain := self._chain(scope)):
            names = ", ".join(self._names)
            text = f"The containers {names} are a pipeline, which has no {method} {path}. Send POST /invocations."
            if self._is_direct:
                text = f"{method} {path} names no container; expected one of {names} in the header {TARGET_HEADER}."
            await self._refuse(exchange, 404, text)
        else:
            await self._answer(chain, scope, exchange)

    def _chain(self, scope: Scope) -> tuple[str, ...]:
        """Return the containers that a request goes through, in order; empty if it is not for them."""
        if self._is_direct:
            target = headers_of(scope).get(TARGET_HEADER, "")
            return (target,) if target in self.urls else ()
        if scope["path"] == "/invocations" and scope["method"] == "POST":
            return self._names if len(self.urls) == len(self._names) else ()
        return self._names[:1] if scope["path"] in _PAGES and self.urls else ()

    async def _answer(self, chain: Sequence[str], scope: Scope, exchange: Exchange) -> None:
        try:
            with self._budget.share() as share, exchange.held_in(self._budget):
                body = await exchange.read_body(max_bytes=MAX_BODY_BYTES, share=share)
                async with exchange.cancelled_on_disconnect():
                    await self._pass_through(chain, scope, body, exchange)
        except (BodyTooLarge, ResponseTooLarge):
            await self._refuse(exchange, 413, f"A body has more than {MAX_BODY_BYTES} bytes.")
        except BudgetSpent:
            await self._refuse(exchange, 429, f"The bodies of requests have {MAX_BUFFERED_BYTES} bytes in all.")
        except (NoResponse, ResponseBroken) as error:
            # Without a response head the gateway sends the request again, and at once: not to this group if it is lost.
            get_logger().warning("container.silent", reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    await self.lost.wait()
            raise ResponseAborted from error
        except ClientGone:
            pass

    async def _pass_through(self, chain: Sequence[str], scope: Scope, body: bytes, exchange: Exchange) -> None:
        headers = {name: value for name, value in headers_of(scope).items() if name not in _OF_CONNECTION}
        accept = headers.pop("accept", "*/*")
        if self._token:
            del headers["authorization"]  # it is the worker's, and not for the code in containers
        query = scope["query_string"].decode("latin-1")
        path = scope["path"] + (f"?{query}" if query else "")
        earlier: list[tuple[str, float]] = []
        for name in chain:
            is_last, since_s = name == chain[-1], perf_counter()
            sent = headers | ({"accept": accept} if is_last else {})
            request = ClientRequest(method=scope["method"], path=path, headers=tuple(sent.items()), body=body)
            async with self._response(name, request) as response:
                if is_last or not 200 <= response.status < 300:
                    await self._respond(exchange, response, write_answered(earlier, name))
                    return
                body = await response.read(MAX_BODY_BYTES, exchange.hold)
            kept = {key: value for key, value in headers.items() if key not in _FIRST_ONLY}
            headers = kept | {key: response.headers[key] for key in _FIRST_ONLY if key in response.headers}
            earlier.append((name, perf_counter() - since_s))

    @asynccontextmanager
    async def _response(self, name: str, request: ClientRequest) -> AsyncIterator[ClientResponse]:
        response = await self._client.send(self.urls[name], request)
        try:
            yield response
        finally:
            response.close()

    async def _respond(self, exchange: Exchange, response: ClientResponse, answered: str) -> None:
        """Pass the response of a container on: whole if it has a length, else part by part as it arrives."""
        kept = [(name, value) for name, value in response.headers.items() if name not in _OF_CONNECTION]
        headers = [*kept, (HEADER, answered)]
        if "content-length" in response.headers:
            content = await response.read(MAX_BODY_BYTES, exchange.hold)
            await exchange.respond(response.status, headers, content)
            return
        await exchange.start(response.status, headers)
        await response.relay(exchange.put, exchange.drain)
        await exchange.finish()

    async def _refuse(self, exchange: Exchange, status: int, message: str) -> None:
        if not exchange.is_started:
            body = to_json({"error": {"message": message}})
            await exchange.respond(status, [("content-type", JSON_CONTENT_TYPE)], body)

    async def _metrics(self) -> bytes:
        """Return the pages of all containers as one: the sum of each series, and some of each container."""
        from prometheus_client.parser import text_string_to_metric_families

        from headrace.serving.http.prometheus import merge_families, metrics_page

        families = []
        for name in self.urls:
            with_page = self._response(name, ClientRequest(method="GET", path="/metrics"))
            try:
                async with with_page as response:
                    page = await response.read(MAX_BODY_BYTES) if response.status == 200 else b""
                own = list(text_string_to_metric_families(page.decode(errors="replace")))
                families += [*own, *_by_container(name, own)]
            except (NoResponse, ResponseBroken, ResponseTooLarge, ValueError):
                continue
        return metrics_page(merge_families(families))


def _by_container(name: str, families: "Sequence[Metric]") -> "Iterator[Metric]":
    """Yield what a container uses of the instance, under names and with a label of its own."""
    from prometheus_client import Metric

    for family in families:
        if family.name in _USES:
            labelled = Metric(f"{CONTAINER_PREFIX}{family.name}", f"{family.documentation} By container.", family.type)
            for sample in family.samples:
                labelled.add_sample(f"{CONTAINER_PREFIX}{sample.name}", {CONTAINER_LABEL: name}, sample.value)
            yield labelled
