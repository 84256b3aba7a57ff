"""
SageMaker's bearer tokens for its OpenAI-compatible routes: `sagemaker-api-key-` and a presigned URL in base64.

A client generates one from its access key (`sagemaker.core.token_generator.generate_token`); it signs
`POST https://sagemaker.amazonaws.com/?Action=CallWithBearerToken` and is valid for at most twelve hours.
"""

import base64
import binascii
from collections.abc import Callable

from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest, query_parameter

PREFIX = "sagemaker-api-key-"
_ACTION = "CallWithBearerToken"
_MAX_EXPIRES_S = 12 * 3600


def is_bearer_token(text: str) -> bool:
    """Return whether a bearer key is one of SageMaker's tokens, not a Headrace key."""
    return text.startswith(PREFIX)


def read(token: str) -> HttpRequest:
    """Return the request that a token, the text after `Bearer `, signs. Raises `AwsError`: the token is malformed."""
    try:
        url = base64.b64decode(token.removeprefix(PREFIX), validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _malformed() from error
    host, _, query = url.partition("/?")
    # NOTE: clients append the version to the URL after signing it.
    signed = "&".join(part for part in query.split("&") if not part.startswith("Version="))
    expires = query_parameter(signed, "X-Amz-Expires") or ""
    is_short = expires.isascii() and expires.isdigit() and len(expires) <= 5 and int(expires) <= _MAX_EXPIRES_S
    if query_parameter(signed, "Action") != _ACTION or not is_short:
        raise _malformed()
    return HttpRequest("POST", "/", signed, {"host": host})


def verify(token: str, secret_of: Callable[[str], str | None], now_s: float) -> sigv4.Identity:
    """
    Return the identity that signed a token.

    Raises:
        AwsError: the token is malformed or expired, its key is unknown, or its signature is wrong.
    """
    identity = sigv4.verify(read(token), secret_of, now_s)
    if identity.service != "sagemaker":
        raise _malformed()
    return identity


def _malformed() -> AwsError:
    message = f"The bearer token is not {PREFIX}<presigned URL for {_ACTION} of sagemaker, for 12 hours at most>."
    return AwsError("IncompleteSignature", message, status=401)
