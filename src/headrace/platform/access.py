"""
Who may ask the platform.

On a loopback address anybody on this machine, with any credentials or none; but no web page of a stranger, also not
under a name that its owner pointed here. Everywhere else a request is signed with an access key of this platform
(Signature Version 4), or brings one's secret as a bearer key, as OpenAI's clients and browsers do; or, on OpenAI's
routes, a token that the SageMaker SDK made of a key.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Collection

from starlette.types import Receive

from headrace.http.origins import is_local_host, may_use
from headrace.platform.http_request import BodyTooLarge, read_body, replay
from headrace.platform.key_ring import KeyRing
from headrace.wire.aws import bearer_tokens, sigv4
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest
from headrace.wire.aws.signature_faults import Fault, fault_error

MAX_SIGNED_BODY_BYTES = 25 * 1024 * 1024
"""A body is hashed whole. The same as the gateway takes; those of S3 are streamed and not counted."""
STRANGER_CODE = "AccessDeniedException"
"""What pages of strangers are told, with status 403."""
_BODY_TIMEOUT_S = 60.0


class Gate:
    """Lets a request in, or says why not."""

    def __init__(
        self,
        ring: KeyRing,
        *,
        is_open: bool,
        allowed_hosts: Collection[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Guard a platform.

        Args:
            ring: the access keys.
            is_open: any credentials will do: only this machine can reach the platform.
            allowed_hosts: names by which an open platform is reached besides local ones.
            now: a clock, seconds since 1970.
        """
        self._ring = ring
        self._is_open = is_open
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._now = now

    def check_page(self, request: HttpRequest) -> None:
        """
        Keep web pages of strangers out.

        Raises:
            AwsError: the request comes from such a page, or by a name that may be anybody's.
        """
        host = request.headers.get("host", "")
        name = _name_of(host)
        is_named = name in self._allowed_hosts
        if self._is_open and not (is_local_host(host) or is_named or not host):
            raise _stranger(
                f"This platform is not reached by the name {name!r}. If it should be, start it with "
                f"--allowed-hosts {name}."
            )
        origin = request.headers.get("origin")
        if not may_use(origin, host, allowed=(), names_are_trusted=not self._is_open or is_named):
            raise _stranger(f"Pages of {origin!r} may not use this platform.")

    async def admit(self, request: HttpRequest, receive: Receive, *, is_streamed: bool) -> Receive:
        """
        Find out who asks.

        Args:
            request: without its body.
            receive: gives the body.
            is_streamed: the body is of S3: what it must hash to stands in a header that was signed.

        Returns:
            What gives the body from now on.

        Raises:
            AwsError: nobody who may.
        """
        if self._is_open:
            return receive
        await self._ring.refresh()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            self._check_bearer(request, token.strip())
            return receive
        access_key = sigv4.access_key_of(request)
        if access_key is not None and self._ring.secret_of(access_key) is None:
            raise fault_error(request, Fault.UNKNOWN_KEY)  # before a byte of the body is held
        if is_streamed or access_key is None:
            sigv4.verify(request, self._ring.secret_of, self._now())
            return receive
        body = await _whole(receive)
        whole = HttpRequest(request.method, request.path, request.query, request.headers, body)
        sigv4.verify(whole, self._ring.secret_of, self._now())
        return replay(body, receive)

    def _check_bearer(self, request: HttpRequest, token: str) -> None:
        """A secret opens everything; a token that the SageMaker SDK made of a key opens OpenAI's routes, as at AWS."""
        if bearer_tokens.is_bearer_token(token) and is_openai(request.path):
            bearer_tokens.verify(token, self._ring.secret_of, self._now())
        elif not self._is_secret(token):
            raise fault_error(request, Fault.UNKNOWN_KEY)

    def _is_secret(self, token: str) -> bool:
        """Compares with every key, whichever fits: the time that it takes tells nothing."""
        sent = token.encode()
        fits = [hmac.compare_digest(sent, secret.encode()) for secret in self._ring.secrets()]
        return any(fits)


def is_openai(path: str) -> bool:
    """Whether a path is of OpenAI's API: of all endpoints, or of one."""
    return path.startswith("/v1/") or "/openai/v1/" in path


def _stranger(message: str) -> AwsError:
    return AwsError(STRANGER_CODE, message, status=403)


async def _whole(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            return await read_body(receive, max_bytes=MAX_SIGNED_BODY_BYTES)
    except BodyTooLarge:
        message = f"The body of the request has more than {MAX_SIGNED_BODY_BYTES} bytes."
        raise AwsError("ValidationError", message, status=413) from None
    except TimeoutError:
        raise AwsError("RequestTimeout", "The body of the request did not arrive in time.", status=408) from None


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()
