"""
Authentication of requests to the platform.

On a loopback address any user of this machine is admitted, with any credentials or none. Web pages of other sites are
refused, even if they reach the platform by a host name of their own (DNS rebinding). On any other address a request
must be signed with an access key of this platform (Signature Version 4), or carry the key's secret as a bearer token,
as OpenAI's clients and browsers do; or, on OpenAI's routes, a token that the SageMaker SDK derived from a key.
"""

import hmac
import time
from collections.abc import Callable, Collection

from headrace.http.asgi import Receive
from headrace.http.body import BodyTooLarge, BodyTooSlow, read_body, replay
from headrace.http.origins import is_local_host, is_origin_allowed
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


class Authenticator:
    """Checks the origin and the credentials of requests."""

    def __init__(
        self,
        ring: KeyRing,
        *,
        is_open: bool,
        allowed_hosts: Collection[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Prepare the checks.

        Args:
            ring: the access keys.
            is_open: accept any credentials, because only this machine can reach the platform.
            allowed_hosts: additional host names of an open platform; local ones are always allowed.
            now: a clock, seconds since 1970.
        """
        self._ring = ring
        self._is_open = is_open
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._now = now

    def check_origin(self, request: HttpRequest) -> None:
        """
        Refuse requests from web pages of other sites.

        Raises:
            AwsError: the request has the origin of such a page, or a host name that the page's site may control.
        """
        host = request.headers.get("host", "")
        name = _name_of(host)
        is_named = name in self._allowed_hosts
        if self._is_open and not (is_local_host(host) or is_named or not host):
            raise _forbidden(
                f"The host name {name!r} is not allowed. If clients should reach this platform by it, start it with "
                f"--allowed-hosts {name}."
            )
        origin = request.headers.get("origin")
        if not is_origin_allowed(origin, host, allowed=(), names_are_trusted=not self._is_open or is_named):
            raise _forbidden(f"The origin {origin!r} is not allowed.")

    async def check(self, request: HttpRequest, receive: Receive) -> Receive:
        """
        Check the credentials of a request; if it is signed, its body is read first.

        Args:
            request: the request without its body.
            receive: the request's `receive`.

        Returns:
            The `receive` that replaces it: it returns the body again.

        Raises:
            AwsError: the credentials are missing or wrong, or the body does not arrive.
        """
        if self._is_open or await self._is_bearer(request):
            return receive
        if self._known_key(request) is None:
            self._verify(request)
            return receive
        body = await _read_signed_body(receive)
        self._verify(HttpRequest(request.method, request.path, request.query, request.headers, body))
        return replay(body, receive)

    async def check_streamed(self, request: HttpRequest, receive: Receive) -> Receive:
        """
        Check the credentials of a request for S3, whose signature covers the body's digest in a header.

        Raises:
            AwsError: the credentials are missing or wrong.
        """
        if not self._is_open and not await self._is_bearer(request):
            self._known_key(request)
            self._verify(request)
        return receive

    def _known_key(self, request: HttpRequest) -> str | None:
        """Return the access key that signed a request, checked before its body is read; None if it is unsigned."""
        access_key = sigv4.access_key_of(request)
        if access_key is not None and self._ring.secret_of(access_key) is None:
            raise fault_error(request, Fault.UNKNOWN_KEY)
        return access_key

    def _verify(self, request: HttpRequest) -> None:
        sigv4.verify(request, self._ring.secret_of, self._now())

    async def _is_bearer(self, request: HttpRequest) -> bool:
        """
        Return whether a request has a valid bearer key.

        A secret grants access to everything; a token of the SageMaker SDK only to OpenAI's routes, as in AWS.
        """
        await self._ring.refresh()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get("x-api-key", "") if is_openai(request.path) else ""  # Anthropic's clients
        token = token.strip()
        if not token:
            return False
        if bearer_tokens.is_bearer_token(token) and is_openai(request.path):
            bearer_tokens.verify(token, self._ring.secret_of, self._now())
        elif not self._is_secret(token):
            raise fault_error(request, Fault.UNKNOWN_KEY)
        return True

    def _is_secret(self, token: str) -> bool:
        """Compare with every key, even after a match, so that the time taken does not reveal which one matches."""
        sent = token.encode()
        matches = [hmac.compare_digest(sent, secret.encode()) for secret in self._ring.secrets()]
        return any(matches)


def is_openai(path: str) -> bool:
    """Return whether a path belongs to the API of OpenAI or Anthropic, either for all endpoints or for a single one."""
    return path.startswith("/v1/") or "/openai/v1/" in path


def _forbidden(message: str) -> AwsError:
    return AwsError(FORBIDDEN_CODE, message, status=403)


async def _read_signed_body(receive: Receive) -> bytes:
    try:
        return await read_body(receive, max_bytes=MAX_SIGNED_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S)
    except BodyTooLarge:
        message = f"The body of the request has more than {MAX_SIGNED_BODY_BYTES} bytes."
        raise AwsError("ValidationError", message, status=413) from None
    except BodyTooSlow:
        raise AwsError("RequestTimeout", "The body of the request did not arrive in time.", status=408) from None


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()
