"""
Authentication of requests to the platform.

A request must be signed with an access key of this platform (Signature Version 4) or with temporary credentials that
were derived from one (`wire.aws.sessions`), or carry the key's secret as a bearer token, as OpenAI's clients and
browsers do; or, on OpenAI's routes, a token that the SageMaker SDK derived from a key. An open platform admits any
credentials or none. Web pages of other sites are refused; on a loopback address even if they reach the platform by a
host name of their own (DNS rebinding).

The mount that answers a request decides which credentials it takes (`CredentialPolicy`); the path does not.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final
from urllib.parse import parse_qs, unquote

from headrace.core.tracing import trace_of
from headrace.platform.account.ecr import USER as REGISTRY_USER
from headrace.platform.host.access_keys import KeyRing
from headrace.serving.http.asgi import ASGIApp, Message, Receive, Scope, Send, request_of
from headrace.serving.http.audit import AuditedCall, AuditLog
from headrace.serving.http.body import BodyShare, BodyTooLarge, BodyTooSlow, read_body, replay
from headrace.serving.http.origins import (
    allowed_patterns,
    host_refusal,
    is_foreign_load,
    is_host_allowed,
    is_origin_allowed,
)
from headrace.serving.wire.aws import bearer_tokens, sessions, sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.sessions import Session
from headrace.serving.wire.aws.signature_faults import Fault, fault_error
from headrace.serving.wire.key_limits import KeyLimits

MAX_SIGNED_BODY_BYTES = 25 * 1024 * 1024
"""A body is hashed as a whole. The gateway's limit is the same; bodies for S3 are streamed and not limited."""
FORBIDDEN_CODE = "AccessDeniedException"
"""Error code for requests from pages of other sites, with status 403."""
_BODY_TIMEOUT_S = 60.0
_INLINE_BODY_BYTES = 1024 * 1024
"""Larger bodies are hashed on another thread: 25 MiB take 20 ms or more."""
_MAX_CREDENTIAL_BYTES = 8 * 1024
"""Longest credentials that are looked at; a token of the SageMaker SDK with temporary credentials has about 4 KiB."""


class Credential(Enum):
    SIGNATURE = auto()
    """AWS's signature of version 4, in a header or in a presigned URL; for S3 also a presigned URL of version 2."""
    SECRET = auto()
    """The secret of an access key as a bearer key."""
    API_KEY = auto()
    """The secret in `x-api-key`, as Anthropic's clients send it."""
    SDK_TOKEN = auto()
    """A token for OpenAI's routes that the SageMaker SDK derived from an access key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialPolicy:
    kinds: frozenset[Credential]
    service: str | None = None
    """The service that signatures must be for, by boto3's name; None: the one that the request names."""
    is_streamed: bool = False
    """The body is not read for the signature, which covers the body's digest in a header."""


_FULL = frozenset({Credential.SIGNATURE, Credential.SECRET})
FOR_CONTROL = CredentialPolicy(kinds=_FULL)
FOR_PAGES = CredentialPolicy(kinds=_FULL, service="sagemaker")
FOR_RUNTIME = CredentialPolicy(kinds=_FULL, service="sagemaker")
FOR_OPENAI = CredentialPolicy(kinds=_FULL | {Credential.API_KEY, Credential.SDK_TOKEN}, service="sagemaker")
FOR_S3 = CredentialPolicy(kinds=_FULL, service="s3", is_streamed=True)


@dataclass(frozen=True, slots=True)
class Admission:
    receive: Receive
    access_key: str = ""
    """The id of the key, of temporary credentials their long-term key; empty if no credentials are required."""
    session: Session | None = None
    """What the request's temporary credentials are for."""
    limits: KeyLimits | None = None
    """The limits of the key; None: it may use everything."""
    signed: sigv4.Identity | None = None
    """What a signature says of a body that was not read; None: the request has no signature."""


class HostRefused(AwsError):
    """The platform does not answer to the host name of a request."""


class Authenticator:
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
        Prepare the checks; an open platform accepts any credentials.

        Without `allowed_hosts`, a platform that `is_local` or open answers to local names only.
        """
        self._ring = ring
        self._is_open = is_open
        self._hosts = allowed_patterns(allowed_hosts, is_open=is_open or is_local)
        self._now = now

    def check_origin(self, request: HttpRequest, scope: Scope) -> None:
        """Refuse requests from web pages of other sites: `HostRefused` by their host name, else `AwsError`."""
        host = request.headers.get("host", "")
        if not is_host_allowed(host, self._hosts):
            raise HostRefused(FORBIDDEN_CODE, host_refusal(host, program="platform"), status=403)
        origin = request.headers.get("origin")
        if not is_origin_allowed(origin, host, allowed=()):
            raise AwsError(FORBIDDEN_CODE, f"The origin {origin!r} is not allowed.", status=403)
        if is_foreign_load(scope):
            raise AwsError(FORBIDDEN_CODE, "Pages of other sites may not load the platform's answers.", status=403)

    async def check(
        self, request: HttpRequest, receive: Receive, share: BodyShare, policy: CredentialPolicy
    ) -> Admission:
        """
        Check the credentials of a request; if it is signed and not streamed, its body is read first.

        The `receive` of the result replaces the request's: it returns the body again.

        Raises:
            AwsError: the credentials are missing, wrong or not of the policy's kinds, or the body does not arrive.
            BudgetSpent: the bodies of all requests together are too large.
            Unavailable: the key is unknown, but the database is out of reach.
        """
        if self._is_open:
            return Admission(receive, session=self._open_session(request))
        for name in ("authorization", "x-api-key"):
            if len(request.headers.get(name, "")) > _MAX_CREDENTIAL_BYTES:
                message = f"The header {name} has more than {_MAX_CREDENTIAL_BYTES} bytes."
                raise fault_error(request, Fault.INCOMPLETE, message)
        await self._ring.refresh()
        bearer = _bearer_of(request, policy)
        if bearer is not None:
            access_key, session = self._bearer_key(request, *bearer, policy)
            return self._admission(receive, access_key, session)
        lookup, key = _Lookup(request, self._ring, self._now()), sigv4.access_key_of(request)
        if key is not None and lookup.secret_of(key) is None:  # before the body is read
            raise fault_error(request, Fault.UNKNOWN_KEY)
        if key is None or policy.is_streamed:
            identity = self._verify(request, policy, lookup)
            return self._admission(receive, lookup.key_of(identity), lookup.session, identity)
        try:
            body = await read_body(receive, max_bytes=MAX_SIGNED_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S, share=share)
        except BodyTooLarge:
            message = f"The body of the request has more than {MAX_SIGNED_BODY_BYTES} bytes."
            raise AwsError("ValidationError", message, status=413) from None
        except BodyTooSlow:
            raise AwsError("RequestTimeout", "The body of the request did not arrive in time.", status=408) from None
        whole = HttpRequest(request.method, request.path, request.query, request.headers, body)
        is_small = len(body) <= _INLINE_BODY_BYTES
        verify = partial(self._verify, whole, policy, lookup)
        identity = verify() if is_small else await asyncio.to_thread(verify)
        return self._admission(replay(body, receive), lookup.key_of(identity), lookup.session)

    def _admission(
        self, receive: Receive, access_key: str, session: Session | None, signed: sigv4.Identity | None = None
    ) -> Admission:
        return Admission(receive, access_key, session, self._ring.limits_of(access_key), signed)

    async def check_password(self, user: str, password: str) -> str | None:
        """
        Return the access key of credentials for the registry of images; None: they are wrong.

        The token of another session is no password: requests that it signs show it to all on their way.
        """
        if self._is_open:
            return ""
        await self._ring.refresh()
        if user != REGISTRY_USER:
            secret = self._ring.secret_of(user)
            is_right = secret is not None and hmac.compare_digest(secret.encode(), password.encode())
            return user if is_right else None
        found = sessions.verify(password, self._ring.secret_of)
        is_valid = found is not None and found.session.name == sessions.REGISTRY
        return found.session.key if found and is_valid and found.session.expires_s > self._now() else None

    def allows(self, access_key: str, action: str) -> bool:
        """Return whether the limits of a key allow an action."""
        limits = self._ring.limits_of(access_key)
        return limits is None or limits.allows_action(action)

    def _verify(self, request: HttpRequest, policy: CredentialPolicy, lookup: "_Lookup") -> sigv4.Identity:
        return sigv4.verify(request, lookup.secret_of, self._now(), service=policy.service)

    def _open_session(self, request: HttpRequest) -> Session | None:
        """Return the session of credentials that an open platform issued, for what the caller is told of itself."""
        token = sessions.token_of(request)
        found = None if token is None else sessions.verify(token, {"": sessions.OPEN_PLATFORM}.get)
        return None if found is None else found.session

    def _bearer_key(
        self, request: HttpRequest, kind: Credential, token: str, policy: CredentialPolicy
    ) -> tuple[str, Session | None]:
        """Return the access key that a bearer key, or a token derived from it, belongs to, and its session."""
        if kind not in policy.kinds:
            message = "A token of the SageMaker SDK opens only the OpenAI-compatible routes of endpoints."
            raise fault_error(request, Fault.UNKNOWN_KEY, message)
        if kind is Credential.SDK_TOKEN:
            lookup = _Lookup(bearer_tokens.read(token), self._ring, self._now())
            return lookup.key_of(bearer_tokens.verify(token, lookup.secret_of, self._now())), lookup.session
        key = self._ring.key_of(token)
        if key is None:
            raise fault_error(request, Fault.UNKNOWN_KEY)
        return key, None


@dataclass(slots=True)
class _Lookup:
    """The secrets that may have signed one request: those of keys, and that of its temporary credentials."""

    request: HttpRequest
    ring: KeyRing
    now_s: float
    session: Session | None = None
    """What the request's temporary credentials are for, once their secret was looked up."""

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret of a key; None: unknown. Raises `AwsError`: the credentials have expired."""
        token = sessions.token_of(self.request) if access_key.startswith(sessions.PREFIX) else None
        if token is None:
            return self.ring.secret_of(access_key)
        found = sessions.verify(token, self.ring.secret_of)
        if found is None or found.access_key != access_key:
            return None
        if found.session.expires_s <= self.now_s:
            message = "The security token included in the request is expired"
            raise fault_error(self.request, Fault.SESSION_EXPIRED, message)
        self.session = found.session
        return found.secret

    def key_of(self, identity: sigv4.Identity) -> str:
        """Return the long-term key of who signed the request."""
        return identity.access_key if self.session is None else self.session.key


def _bearer_of(request: HttpRequest, policy: CredentialPolicy) -> tuple[Credential, str] | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    kind = Credential.SECRET
    if scheme.lower() != "bearer":
        kind = Credential.API_KEY
        token = request.headers.get("x-api-key", "") if kind in policy.kinds else ""
    token = token.strip()
    if not token:
        return None
    return (Credential.SDK_TOKEN if bearer_tokens.is_bearer_token(token) else kind), token


_CONSOLE_API: Final = "/console/api/"
_BUCKET_OPERATIONS: Final = {
    ("PUT", ""): "CreateBucket",
    ("DELETE", ""): "DeleteBucket",
    ("HEAD", ""): "HeadBucket",
    ("GET", ""): "ListObjects",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "uploads"): "ListMultipartUploads",
    ("POST", "delete"): "DeleteObjects",
}
_PARTS_OF_BUCKETS: Final = {
    "ownershipControls": "OwnershipControls",
    "publicAccessBlock": "PublicAccessBlock",
    "object-lock": "ObjectLockConfiguration",
    **{name: f"{name.title()}Configuration" for name in ("accelerate", "lifecycle", "notification")},
    **{name: name.title() for name in ("acl", "cors", "encryption", "location", "logging", "policy", "replication")},
    **{name: name.title() for name in ("tagging", "versioning", "website")},
}
"""The part of a bucket that a query parameter selects."""


def audited(app: ASGIApp, call_of: Callable[[Scope], AuditedCall | None]) -> ASGIApp:
    """
    Return an application that writes an audit line for each call that `call_of` finds.

    It is for calls that are no operations of `control`: of buckets, and of the console.
    """
    log = AuditLog()

    async def audited_app(scope: Scope, receive: Receive, send: Send) -> None:
        call = call_of(scope)
        started_s = time.perf_counter()

        async def watched_send(message: Message) -> None:
            if call is not None and message["type"] == "http.response.start":
                total_s = time.perf_counter() - started_s
                request_id = trace_of(scope).request_id
                log.write(scope, call, status=message["status"], total_s=total_s, request_id=request_id)
            await send(message)

        await app(scope, receive, send if call is None else watched_send)

    return audited_app


def bucket_call(scope: Scope) -> AuditedCall | None:
    """Return the operation of a request for a bucket, or for the list of buckets; None: for an object."""
    bucket, _, key = request_of(scope).path.lstrip("/").partition("/")
    if key:
        return None
    if not bucket:
        return AuditedCall(service="s3", operation="ListBuckets")
    return AuditedCall(service="s3", operation=_bucket_operation(scope), resource=unquote(bucket))


def _bucket_operation(scope: Scope) -> str:
    method, query = scope["method"], scope["query_string"].decode("latin-1")
    names = {part.partition("=")[0] for part in query.split("&", 32)[:32]}
    part = next((_PARTS_OF_BUCKETS[name] for name in sorted(names) if name in _PARTS_OF_BUCKETS), None)
    if part is not None:
        return f"{method.title()}Bucket{part}"
    selected = next((name for name in ("delete", "uploads", "versions") if name in names), "")
    return _BUCKET_OPERATIONS.get((method, selected), f"{method.title()}Bucket")


def console_call(scope: Scope) -> AuditedCall | None:
    """Return what the console reads; its keys have lines of their own, which name the key."""
    path: str = scope["path"]
    name = path.removeprefix(_CONSOLE_API).partition("/")[0]
    if not path.startswith(_CONSOLE_API) or name == "keys":
        return None
    endpoints = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("endpoint", [])
    return AuditedCall(service="console", operation=f"Get{name.title()}", resource=",".join(endpoints[:10]))
