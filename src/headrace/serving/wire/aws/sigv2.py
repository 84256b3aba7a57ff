"""
Verification of S3's presigned URLs with signatures of version 2.

boto3 still generates them for endpoints other than AWS's (`generate_presigned_url` without `signature_version`).
Source: Amazon S3 developer guide, "Signing and authenticating REST requests", query string alternative.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import unquote, unquote_plus

from headrace.serving.wire.aws.http import HttpRequest, query_parameter
from headrace.serving.wire.aws.identify import identify
from headrace.serving.wire.aws.signature_faults import Fault, fault_error

_SUBRESOURCES = frozenset(
    (
        *("accelerate", "acl", "analytics", "cors", "defaultObjectAcl", "delete", "inventory", "lifecycle"),
        *("location", "logging", "metrics", "notification", "object-lock", "partNumber", "policy", "replication"),
        *("requestPayment", "response-cache-control", "response-content-disposition"),
        *("response-content-encoding", "response-content-language", "response-content-type", "response-expires"),
        *("restore", "select", "select-type", "storageClass", "tagging", "torrent", "uploadId", "uploads"),
        *("versionId", "versioning", "versions", "website"),
    )
)
"""Query parameters that are part of the signed resource."""


MAX_EXPIRES_S = 7 * 24 * 3600
"""Longest validity of a URL from now, as for version 4, although AWS has no limit for version 2."""


def is_presigned(request: HttpRequest) -> bool:
    """Return whether the query has a signature of version 2. It is valid for S3 only, as it does not name a service."""
    names = ("AWSAccessKeyId", "Signature")
    is_signed = all(query_parameter(request.query, name) is not None for name in names)
    return is_signed and identify(request).service == "s3"


def access_key_of(request: HttpRequest) -> str | None:
    """Return the access key that a presigned URL claims."""
    return unquote_plus(query_parameter(request.query, "AWSAccessKeyId") or "") or None


def verify(request: HttpRequest, secret_of: Callable[[str], str | None], now_s: float) -> str:
    """Return the access key that signed the URL. Raises `AwsError`: the key is unknown, or the signature not valid."""
    parts = (part.partition("=") for part in request.query.split("&"))
    fields = {unquote_plus(name): unquote_plus(value) for name, _, value in parts}
    access_key, expires = fields.get("AWSAccessKeyId", ""), fields.get("Expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        raise fault_error(request, Fault.INCOMPLETE, "Expires must be a number of seconds since 1970.")
    secret = secret_of(access_key)
    if secret is None:
        raise fault_error(request, Fault.UNKNOWN_KEY)
    if now_s > int(expires):
        raise fault_error(request, Fault.URL_EXPIRED, "Request has expired.")
    if int(expires) > now_s + MAX_EXPIRES_S:
        message = f"Expires is {expires}; expected at most {MAX_EXPIRES_S} seconds from now. Presign the URL for less."
        raise fault_error(request, Fault.INCOMPLETE, message)
    for name, value in fields.items():
        is_header = name.startswith("x-amz-") or name in ("content-md5", "content-type")
        if is_header and request.headers.get(name, value) != value:
            raise fault_error(request, Fault.MISMATCH)
    # A bucket's path is signed with a trailing slash, even if it is sent without one.
    paths = (request.path, request.path + "/")
    if not any(_is_right(_string_to_sign(request, fields, path), secret, fields["Signature"]) for path in paths):
        raise fault_error(request, Fault.MISMATCH)
    return access_key


def _is_right(text: str, secret: str, signature: str) -> bool:
    right = base64.b64encode(hmac.new(secret.encode(), text.encode("latin-1", errors="replace"), hashlib.sha1).digest())
    return hmac.compare_digest(right, signature.encode("latin-1", errors="replace"))


def _string_to_sign(request: HttpRequest, fields: dict[str, str], path: str) -> str:
    # NOTE: botocore signs headers but moves them to the query, in lower case.
    sent = {**request.headers, **fields}
    amz = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent) if name.startswith("x-amz-"))
    lines = (request.method, sent.get("content-md5", ""), sent.get("content-type", ""), fields["Expires"])
    return "\n".join(lines) + "\n" + amz + path + _subresources(request.query)


def _subresources(query: str) -> str:
    parts = []
    for part in sorted(query.split("&"), key=lambda part: part.partition("=")[0]):
        name, equals, value = part.partition("=")
        if name in _SUBRESOURCES:
            parts.append(f"{name}={unquote(value, encoding='latin-1')}" if equals else name)
    return "?" + "&".join(parts) if parts else ""
