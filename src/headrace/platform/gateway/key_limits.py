"""
The limits of access keys, as the gateway applies them: models and actions, requests and tokens, requests in flight.

A request reserves the tokens that its body may have; when it ends, the tokens that it had take their place. A request
of a key without limits passes by all of this.
"""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.core.client_text import shortened
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.gateway.key_usage import KeyCounter, KeyUsages, Usage
from headrace.platform.gateway.metrics import Caller, InvocationRecord
from headrace.platform.gateway.routing import RoutingQuery
from headrace.serving.http.asgi import Scope, caller_of, limits_of
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.key_limits import (
    Allowance,
    KeyLimits,
    MinuteCount,
    anthropic_headers,
    denied,
    openai_headers,
)
from headrace.serving.wire.usage import BYTES_PER_TOKEN, USAGE_HEADER, read_usage, usage_in

_IN_FLIGHT_RETRY_S: Final = 1.0
_OK: Final = 200
_ACCEPTED: Final = 202
_UNCOUNTED: Final = nullcontext()


class AccessDenied(AwsError):
    """The limits of the caller's key do not allow the action, or the model (`is_about_model`)."""

    def __init__(self, message: str, *, is_about_model: bool) -> None:
        super().__init__("AccessDeniedException", message, status=403)
        self.is_about_model = is_about_model


class RateLimited(AwsError):
    """The key has used up a limit. Nothing ran: SDKs wait and retry."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__("ThrottlingException", message)
        self.retry_after_s = retry_after_s


def limited_caller(scope: Scope) -> Caller | None:
    """Return the access key that admitted a request, if it has limits."""
    limits = limits_of(scope)
    return None if limits is None else Caller(caller_of(scope), limits)


@dataclass(slots=True, kw_only=True)
class KeyLimiter:
    """Applies the limits of keys to the requests of one gateway."""

    config: GatewayConfig
    usages: KeyUsages = field(default_factory=KeyUsages)
    clock: Callable[[], float] = time.time

    def check(self, record: InvocationRecord, query: RoutingQuery) -> None:
        """Raise `AccessDenied` unless the caller may use the action and the model of a request."""
        caller = record.caller
        if caller is None:
            return
        endpoint, target = record.endpoint, query.target_model
        names = (endpoint, query.component or "", f"{endpoint}/{target}" if target else "")
        is_allowed = caller.limits.allows_action(record.action)
        if not is_allowed or not caller.limits.allows_model(*names):
            kind, name = ("endpoint", endpoint) if query.component is None else ("inference-component", query.component)
            arn = f"arn:aws:sagemaker:{self.config.region}:{self.config.account}:{kind}/{shortened(name)}"
            raise AccessDenied(denied(caller.key, record.action, arn), is_about_model=is_allowed)

    def counted(self, record: InvocationRecord, num_bytes: int) -> AbstractAsyncContextManager[None]:
        """
        Count a request until the block ends, and then the tokens that it had; raise `RateLimited` over a limit.

        `num_bytes` is the size of the prompt, whose tokens are reserved.
        """
        caller = record.caller
        if caller is None or not record.generates or not caller.limits.has_rates:
            return _UNCOUNTED
        return self._counted(caller, record, num_bytes)

    @asynccontextmanager
    async def _counted(self, caller: Caller, record: InvocationRecord, num_bytes: int) -> AsyncIterator[None]:
        counter, estimate = self.usages.of(caller.key), num_bytes // BYTES_PER_TOKEN
        # A prompt that is estimated at more than the limit begins alone, rather than never.
        reserved = min(estimate, caller.limits.tokens_per_minute or estimate)
        self._admit(caller.limits, counter, record, reserved)
        try:
            yield
        finally:
            counter.add(self.clock(), tokens=_tokens_of(record, estimate) - reserved, in_flight=-1)

    def _admit(self, limits: KeyLimits, counter: KeyCounter, record: InvocationRecord, reserved: int) -> None:
        now_s = self.clock()
        usage = counter.read(now_s)
        refusal = _refusal(limits, usage, reserved)
        if refusal is None:
            counter.add(now_s, requests=1, tokens=reserved, in_flight=1)
            usage = counter.read(now_s)
        allowances = [
            Allowance(
                unit=unit,
                limit=limit,
                remaining=max(0, math.floor(limit - count.used(usage.elapsed_s))),
                reset_s=count.reset_s(usage.elapsed_s),
            )
            for unit, limit, count in _rates(limits, usage)
        ]
        is_anthropic = record.is_anthropic
        record.limit_headers = tuple(
            anthropic_headers(allowances, now_s) if is_anthropic else openai_headers(allowances)
        )
        if refusal is not None:
            raise refusal


def _rates(limits: KeyLimits, usage: Usage) -> Iterator[tuple[str, int, MinuteCount]]:
    """Yield the limits in a minute with their units and counts."""
    if limits.requests_per_minute is not None:
        yield "requests", limits.requests_per_minute, usage.requests
    if limits.tokens_per_minute is not None:
        yield "tokens", limits.tokens_per_minute, usage.tokens


def _refusal(limits: KeyLimits, usage: Usage, reserved: int) -> RateLimited | None:
    if limits.max_in_flight is not None and usage.in_flight >= limits.max_in_flight:
        message = f"The key has {usage.in_flight} requests in flight; expected at most {limits.max_in_flight}."
        return RateLimited(f"{message} Try again when one has ended.", retry_after_s=_IN_FLIGHT_RETRY_S)
    for unit, limit, count in _rates(limits, usage):
        amount = max(1, reserved) if unit == "tokens" else 1
        wait_s = count.wait_s(limit, amount, usage.elapsed_s)
        if wait_s > 0:
            used = math.ceil(count.used(usage.elapsed_s))
            return RateLimited(
                f"Rate limit reached for {unit} per minute: limit {limit}, used {used}, requested {amount}. "
                f"Try again in {math.ceil(wait_s)} s.",
                retry_after_s=wait_s,
            )
    return None


def _tokens_of(record: InvocationRecord, estimate: int) -> int:
    """Return the tokens of a request that has ended; `estimate` those of its prompt."""
    if record.num_tokens is not None:
        return record.num_tokens
    if record.model_status != _OK:  # an error, or an asynchronous invocation, whose answer comes later
        return estimate if record.status == _ACCEPTED else 0
    # Of a stream, most parts are a token each.
    return estimate + max(record.num_parts, record.num_read_bytes // BYTES_PER_TOKEN)


def asking_usage(request: ClientRequest, record: InvocationRecord) -> ClientRequest:
    """Return the request to a worker; it asks for the tokens if they are counted."""
    if not record.counts_tokens:
        return request
    return replace(request, headers=(*request.headers, (USAGE_HEADER, "1")))


def note_usage(record: InvocationRecord, response: ClientResponse) -> None:
    """Note the tokens that a response has told: in its head, after its body, or in it."""
    if record.counts_tokens:
        told = response.headers.get(USAGE_HEADER) or response.trailers.get(USAGE_HEADER)
        record.num_tokens = read_usage(told)
        if record.num_tokens is None and record.usage_part:
            record.num_tokens = usage_in(record.usage_part)
