"""
SageMaker's bearer tokens for its OpenAI-compatible routes: `sagemaker-api-key-` and a presigned URL in base64.

A client makes one from its access key alone (`sagemaker.core.token_generator.generate_token`); it signs
`POST https://sagemaker.amazonaws.com/?Action=CallWithBearerToken` and is good for twelve hours at most.
"""

import base64
import binascii
from collections.abc import Callable
from urllib.parse import parse_qsl

from headrace.wire.aws import sigv4
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest

PREFIX = "sagemaker-api-key-"
_ACTION = "CallWithBearerToken"
_MAX_EXPIRES_S = 12 * 3600


def is_bearer_token(text: str) -> bool:
    """Whether a bearer key is one of these, not one of our own keys."""
    return text.startswith(PREFIX)


def verify(token: str, secret_of: Callable[[str], str | None], now_s: float) -> sigv4.Identity:
    """
    Say who made a token.

    Args:
        token: as after `Bearer `.
        secret_of: looks an access key up.
        now_s: seconds since 1970.

    Raises:
        AwsError: it is none, its key is unknown, its signature wrong, or its time over.
    """
    url = _url(token)
    host, _, query = url.partition("/?")
    # NOTE: the version is put behind the URL after it was signed.
    signed = "&".join(part for part in query.split("&") if not part.startswith("Version="))
    fields = dict(parse_qsl(signed))
    expires = fields.get("X-Amz-Expires", "")
    is_short = expires.isascii() and expires.isdigit() and len(expires) <= 5 and int(expires) <= _MAX_EXPIRES_S
    if fields.get("Action") != _ACTION or not is_short:
        raise _malformed()
    identity = sigv4.verify(HttpRequest("POST", "/", signed, {"host": host}), secret_of, now_s)
    if identity.service != "sagemaker":
        raise _malformed()
    return identity


def _url(token: str) -> str:
    try:
        return base64.b64decode(token.removeprefix(PREFIX), validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _malformed() from error


def _malformed() -> AwsError:
    message = f"The bearer token is not {PREFIX}<presigned URL for {_ACTION} of sagemaker, for 12 hours at most>."
    return AwsError("IncompleteSignature", message, status=401)
