"""
Temporary credentials, as `sts:AssumeRole` returns them: access key, secret and session token.

Nothing is stored. The token says for whom and until when it is valid, and secret and access key are derived from it by
the secret of the long-term key that asked for it. Therefore every process that knows this key can verify a request, and
the credentials end with the key. They are never worth more than it: a request acts with the rights of the key.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import msgspec

from headrace.serving.wire.aws.http import HttpRequest, query_parameter

PREFIX = "ASIA"
"""Begins the id of every temporary access key."""
OPEN_PLATFORM = "headrace"
"""The secret of the key "" of a platform that requires no credentials."""
REGISTRY = ":registry"
"""Name of the session whose token is a password of the registry of images; no caller can give a session this name."""
_MAX_TOKEN_CHARACTERS = 2048
_ID_CHARACTERS = 16
_HEADER = "x-amz-security-token"
_PARAMETERS = ("X-Amz-Security-Token", "x-amz-security-token")
"""Names in a presigned URL: of version 4, and of version 2."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The key, the role and the end of temporary credentials."""

    key: str
    """Id of the long-term key that they were derived from; empty on an open platform."""
    expires_s: int
    role: str = ""
    """Name of the assumed role; empty for credentials of GetSessionToken."""
    name: str = ""
    """Name of the session."""
    nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    access_key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    session: Session


def issue(session: Session, key_secret: str) -> Credentials:
    """Derive credentials for a session, which gets a nonce, from the secret of its key."""
    session = msgspec.structs.replace(session, nonce=secrets.token_urlsafe(9))
    payload = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
    return _derive(session, payload, key_secret)


def verify(token: str, secret_of: Callable[[str], str | None]) -> Credentials | None:
    """Return the credentials with a token, expired or not; None: it was not issued by a key of this platform."""
    payload, _, signature = token.partition(".")
    if len(token) > _MAX_TOKEN_CHARACTERS or not signature.isascii():
        return None
    try:
        session = msgspec.json.decode(base64.urlsafe_b64decode(payload.encode("ascii")), type=Session)
    except (ValueError, UnicodeError, msgspec.MsgspecError, RecursionError):
        return None
    key_secret = secret_of(session.key)
    if key_secret is None:
        return None
    credentials = _derive(session, payload, key_secret)
    return credentials if hmac.compare_digest(credentials.token, token) else None


def token_of(request: HttpRequest) -> str | None:
    """Return the session token that a request carries in a header, or in a presigned URL."""
    if (sent := request.headers.get(_HEADER)) is not None:
        return sent
    found = (query_parameter(request.query, name) for name in _PARAMETERS)
    return next((unquote(value[: 3 * _MAX_TOKEN_CHARACTERS]) for value in found if value is not None), None)


def _derive(session: Session, payload: str, key_secret: str) -> Credentials:
    def code(purpose: str) -> bytes:
        # NOTE: signatures of version 4 use "AWS4" and the secret as their key, so that no text is signed for both.
        return hmac.new(key_secret.encode(), f"headrace session {purpose}\n{payload}".encode(), hashlib.sha256).digest()

    access_key = PREFIX + base64.b32encode(code("id")).decode()[:_ID_CHARACTERS]
    secret = base64.urlsafe_b64encode(code("secret")).decode()[:40]
    signature = base64.urlsafe_b64encode(code("token")).decode().rstrip("=")
    return Credentials(access_key=access_key, secret=secret, token=f"{payload}.{signature}", session=session)
