"""Errors of request signatures, with the code and text of each protocol."""

from enum import Enum, auto

from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.identify import identify


class Fault(Enum):
    """The reason why a signature is refused."""

    MISSING = auto()
    """The request is not signed."""
    INCOMPLETE = auto()
    """A part of the signature is missing or malformed."""
    UNKNOWN_KEY = auto()
    MISMATCH = auto()
    """The secret is wrong, or the request was changed."""
    UNSIGNED = auto()
    """The signature does not cover a header that affects the request."""
    EXPIRED = auto()
    """The signature is too old, or the client's clock is wrong."""
    URL_EXPIRED = auto()
    """The presigned URL has expired."""
    SESSION_EXPIRED = auto()
    """The temporary credentials have expired."""
    DENIED = auto()
    """The limits of the key do not allow the request."""


KEY_HINT = "`headrace env` on the platform's machine prints an access key."
"""Follows AWS's text where a request has no key or a wrong one, such as the made-up one of a test for AWS."""
_UNKNOWN_TOKEN = "The security token included in the request is invalid."  # noqa: S105
_UNKNOWN_KEY = "The AWS Access Key Id you provided does not exist in our records."
_DIFFERENT = "The request signature we calculated does not match the signature you provided. Check your "
_HELP = "AWS Secret Access Key and signing method. Consult the service documentation for details."

_PROTOCOLS = {"query": 1, "rest-xml": 2}
"""Columns of the tables below; all other protocols have the first one."""
_CODES = {
    Fault.MISSING: ("MissingAuthenticationTokenException", "MissingAuthenticationToken", "AccessDenied"),
    Fault.INCOMPLETE: ("IncompleteSignatureException", "IncompleteSignature", "AuthorizationHeaderMalformed"),
    Fault.UNKNOWN_KEY: ("UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId"),
    Fault.MISMATCH: ("InvalidSignatureException", "SignatureDoesNotMatch", "SignatureDoesNotMatch"),
    Fault.UNSIGNED: ("InvalidSignatureException", "SignatureDoesNotMatch", "AccessDenied"),
    Fault.EXPIRED: ("InvalidSignatureException", "SignatureDoesNotMatch", "RequestTimeTooSkewed"),
    Fault.URL_EXPIRED: ("InvalidSignatureException", "RequestExpired", "AccessDenied"),
    Fault.DENIED: ("AccessDeniedException", "AccessDenied", "AccessDenied"),
    Fault.SESSION_EXPIRED: ("ExpiredTokenException", "ExpiredToken", "ExpiredToken"),
}
_TEXTS = {
    Fault.MISSING: (
        "Missing Authentication Token",
        "Request is missing Authentication Token",
        "Access Denied. The request is not signed.",
    ),
    Fault.UNKNOWN_KEY: (_UNKNOWN_TOKEN, _UNKNOWN_TOKEN, _UNKNOWN_KEY),
    Fault.MISMATCH: (
        _DIFFERENT + _HELP,
        _DIFFERENT + _HELP,
        f"{_DIFFERENT}key and signing method.",
    ),
}
"""The usual texts, which `KEY_HINT` follows; other faults have one of their own."""


def fault_error(request: HttpRequest, fault: Fault, message: str = "") -> AwsError:
    """Return the error for a request; `message` replaces the usual text. JSON services answer 400, others 403."""
    protocol = identify(request).protocol
    column = _PROTOCOLS.get(protocol, 0)
    usual = _TEXTS[fault][column] if fault in _TEXTS else ""
    is_bad_request = protocol in ("json", "smithy-rpc-v2-cbor") or (
        fault is Fault.INCOMPLETE and protocol != "rest-json"
    )
    text = message or (f"{usual.rstrip('.')}. {KEY_HINT}" if usual else "")
    return AwsError(_CODES[fault][column], text, status=400 if is_bad_request else 403)
