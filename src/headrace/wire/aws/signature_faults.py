"""Errors of request signatures, with the code and text of each protocol."""

from enum import Enum, auto
from types import MappingProxyType

from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import HttpRequest
from headrace.wire.aws.identify import identify


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


KEY_HINT = "`headrace env` on the platform's machine prints an access key."
"""Follows AWS's text where a request has no key or a wrong one, such as the made-up one of a test for AWS."""
_HINTED = frozenset({Fault.MISSING, Fault.UNKNOWN_KEY, Fault.MISMATCH})
_UNKNOWN_TOKEN = "The security token included in the request is invalid."  # noqa: S105
_DIFFERENT = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)

_JSON = MappingProxyType(
    {
        Fault.MISSING: ("MissingAuthenticationTokenException", "Missing Authentication Token"),
        Fault.INCOMPLETE: ("IncompleteSignatureException", ""),
        Fault.UNKNOWN_KEY: ("UnrecognizedClientException", _UNKNOWN_TOKEN),
        Fault.MISMATCH: ("InvalidSignatureException", _DIFFERENT),
        Fault.UNSIGNED: ("InvalidSignatureException", ""),
        Fault.EXPIRED: ("InvalidSignatureException", ""),
        Fault.URL_EXPIRED: ("InvalidSignatureException", ""),
    }
)
_QUERY = MappingProxyType(
    {
        Fault.MISSING: ("MissingAuthenticationToken", "Request is missing Authentication Token"),
        Fault.INCOMPLETE: ("IncompleteSignature", ""),
        Fault.UNKNOWN_KEY: ("InvalidClientTokenId", _UNKNOWN_TOKEN),
        Fault.MISMATCH: ("SignatureDoesNotMatch", _DIFFERENT),
        Fault.UNSIGNED: ("SignatureDoesNotMatch", ""),
        Fault.EXPIRED: ("SignatureDoesNotMatch", ""),
        Fault.URL_EXPIRED: ("RequestExpired", ""),
    }
)
_S3 = MappingProxyType(
    {
        Fault.MISSING: ("AccessDenied", "Access Denied. The request is not signed."),
        Fault.INCOMPLETE: ("AuthorizationHeaderMalformed", ""),
        Fault.UNKNOWN_KEY: (
            "InvalidAccessKeyId",
            "The AWS Access Key Id you provided does not exist in our records.",
        ),
        Fault.MISMATCH: (
            "SignatureDoesNotMatch",
            (
                "The request signature we calculated does not match the signature you provided. "
                "Check your key and signing method."
            ),
        ),
        Fault.UNSIGNED: ("AccessDenied", ""),
        Fault.EXPIRED: ("RequestTimeTooSkewed", ""),
        Fault.URL_EXPIRED: ("AccessDenied", ""),
    }
)
_WORDS = MappingProxyType(
    {"json": _JSON, "rest-json": _JSON, "smithy-rpc-v2-cbor": _JSON, "query": _QUERY, "rest-xml": _S3}
)


def fault_error(request: HttpRequest, fault: Fault, message: str = "") -> AwsError:
    """Return the error for a request; `message` replaces the usual text. JSON services answer 400, others 403."""
    protocol = identify(request).protocol
    code, usual = _WORDS[protocol][fault]
    is_bad_request = protocol in ("json", "smithy-rpc-v2-cbor") or (
        fault is Fault.INCOMPLETE and protocol != "rest-json"
    )
    text = message or (f"{usual.rstrip('.')}. {KEY_HINT}" if fault in _HINTED else usual)
    return AwsError(code, text, status=400 if is_bad_request else 403)
