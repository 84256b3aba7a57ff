"""
Authentication of requests to the platform.

A request must be signed with an access key of this platform (Signature Version 4), or carry the key's secret as a
bearer token, as OpenAI's clients and browsers do; or, on OpenAI's routes, a token that the SageMaker SDK derived from a
key. An open platform admits any credentials or none. Web pages of other sites are refused; on a loopback address even
if they reach the platform by a host name of their own (DNS rebinding).
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.http.asgi import Receive
from headrace.http.body import BodyTooLarge, BodyTooSlow, read_body, replay
from headrace.http.body_budget import BodyShare
from headrace.http.host_refusal import host_refusal
from headrace.http.origins import allowed_patterns, is_host_allowed, is_origin_allowed
from headrace.platform.access_keys import KeyRing
from headrace.wire.aws import bearer_tokens, sigv4
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest
from headrace.wire.aws.signature_faults import Fault, fault_error

MAX_SIGNED_BODY_BYTES = 25 * 1024 * 1024
"""A body is hashed as a whole. The gateway's limit is the same; bodies for S3 are streamed and not limited."""
FORBIDDEN_CODE = "AccessDeniedException"
"""Error code for requests from pages of other sites, with status 403."""
_BODY_TIMEOUT_S = 60.0
_INLINE_BODY_BYTES = 1024 * 1024
"""Larger bodies are hashed on another thread: 25 MiB take 20 ms or more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request whose credentials are right."""

    receive: Receive
    access_key: str = ""
    """The id of the key; empty if no credentials are required."""


class HostRefused(AwsError):
    """The platform does not answer to the host name of a request."""


class Authenticator:
    """Checks the origin and the credentials of requests."""

    def __init__(
        self,
        ring: KeyRing,
        *,
        is_open: bool,
        is_local: bool = False,
        allowed_hosts: Collection[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Prepare the checks.

        Args:
            ring: the access keys.
            is_open: accept any credentials.
            is_local: without `allowed_hosts`, answer to local names only. An open platform always does.
            allowed_hosts: patterns of the platform's host names, as in its settings.
            now: a clock, seconds since 1970.
        """
        self._ring = ring
        self._is_open = is_open
        self._hosts = allowed_patterns(allowed_hosts, is_open=is_open or is_local)
        self._now = now

    def check_origin(self, request: HttpRequest) -> None:
        """
        Refuse requests from web pages of other sites.

        Raises:
            HostRefused: the request has a host name that the page's site may control.
            AwsError: the request has the origin of such a page.
        """
        host = request.headers.get("host", "")
        if not is_host_allowed(host, self._hosts):
            raise HostRefused(FORBIDDEN_CODE, host_refusal(host, program="platform"), status=403)
        origin = request.headers.get("origin")
        if not is_origin_allowed(origin, host, allowed=()):
            raise AwsError(FORBIDDEN_CODE, f"The origin {origin!r} is not allowed.", status=403)

    async def check(self, request: HttpRequest, receive: Receive, share: BodyShare) -> Admission:
        """
        Check the credentials of a request; if it is signed, its body is read first.

        Args:
            request: the request without its body.
            receive: the request's `receive`.
            share: counts the body.

        Returns:
            The access key, and the `receive` that replaces the request's: it returns the body again.

        Raises:
            AwsError: the credentials are missing or wrong, or the body does not arrive.
            BudgetSpent: the bodies of all requests together are too large.
            Unavailable: the key is unknown, but the database is out of reach.
        """
        if self._is_open:
            return Admission(receive)
        if (key := await self._bearer_key(request)) is not None:
            return Admission(receive, key)
        if self._known_key(request) is None:
            return Admission(receive, self._verify(request))
        body = await _read_signed_body(receive, share)
        whole = HttpRequest(request.method, request.path, request.query, request.headers, body)
        is_small = len(body) <= _INLINE_BODY_BYTES
        key = self._verify(whole) if is_small else await asyncio.to_thread(self._verify, whole)
        return Admission(replay(body, receive), key)

    async def check_streamed(self, request: HttpRequest, receive: Receive, _share: BodyShare) -> Admission:
        """
        Check the credentials of a request for S3, whose signature covers the body's digest in a header.

        Raises:
            AwsError: the credentials are missing or wrong.
            Unavailable: the key is unknown, but the database is out of reach.
        """
        if self._is_open:
            return Admission(receive)
        if (key := await self._bearer_key(request)) is not None:
            return Admission(receive, key)
        self._known_key(request)
        return Admission(receive, self._verify(request))

    def _known_key(self, request: HttpRequest) -> str | None:
        """Return the access key that signed a request, checked before its body is read; None if it is unsigned."""
        access_key = sigv4.access_key_of(request)
        if access_key is not None and self._ring.secret_of(access_key) is None:
            raise fault_error(request, Fault.UNKNOWN_KEY)
        return access_key

    def _verify(self, request: HttpRequest) -> str:
        return sigv4.verify(request, self._ring.secret_of, self._now()).access_key

    async def _bearer_key(self, request: HttpRequest) -> str | None:
        """
        Return the id of the access key that a request has as a bearer key; None if it has no bearer key.

        A secret grants access to everything; a token of the SageMaker SDK only to OpenAI's routes, as in AWS.
        """
        await self._ring.refresh()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get("x-api-key", "") if is_openai(request.path) else ""  # Anthropic's clients
        token = token.strip()
        if not token:
            return None
        if bearer_tokens.is_bearer_token(token) and is_openai(request.path):
            return bearer_tokens.verify(token, self._ring.secret_of, self._now()).access_key
        key = self._ring.key_of(token)
        if key is None:
            raise fault_error(request, Fault.UNKNOWN_KEY)
        return key


def is_openai(path: str) -> bool:
    """Return whether a path belongs to the API of OpenAI or Anthropic, either for all endpoints or for a single one."""
    return path.startswith("/v1/") or "/openai/v1/" in path


async def _read_signed_body(receive: Receive, share: BodyShare) -> bytes:
    try:
        return await read_body(receive, max_bytes=MAX_SIGNED_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S, share=share)
    except BodyTooLarge:
        message = f"The body of the request has more than {MAX_SIGNED_BODY_BYTES} bytes."
        raise AwsError("ValidationError", message, status=413) from None
    except BodyTooSlow:
        raise AwsError("RequestTimeout", "The body of the request did not arrive in time.", status=408) from None
