"""
Verification of AWS signatures of version 4, in the `Authorization` header and in the query string of a presigned URL.

A signature covers method, path, query, the headers that it names and the body's digest, for a day, region and service.
S3 bodies are streamed and not read here: `Identity.body_sha256` is the digest that such a body must have, and
`Identity.chunks` the key of its chunks if each is signed.
Source: AWS General Reference, Signature Version 4; botocore `auth.py` is the same from the client's side.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote

from headrace.serving.wire.aws import sigv2
from headrace.serving.wire.aws.chunk_signatures import ChunkKey
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest, query_parameter
from headrace.serving.wire.aws.identify import identify
from headrace.serving.wire.aws.services import SERVICE_OF_SIGNING_NAME
from headrace.serving.wire.aws.signature_faults import Fault, fault_error
from headrace.serving.wire.aws.sigv2 import MAX_EXPIRES_S

MAX_SKEW_S = 15 * 60
"""Largest deviation of a client's clock."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_MAX_DATE_CHARACTERS = 64
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CONTENT_SHA256 = "x-amz-content-sha256"
_UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_SIGNED_CHUNKS = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
_S3_PAYLOADS = (_UNSIGNED_PAYLOAD, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", *_SIGNED_CHUNKS)
"""Values of `X-Amz-Content-SHA256` instead of a digest. Those for version 4A are not among them: it is not verified."""
_MAX_PARAMETERS = 1000
"""Most parameters of a query that is signed; S3 has about thirty, and each is escaped and sorted on the event loop."""
_MAX_SIGNED_HEADERS = 256
_MAY_BE_UNSIGNED = frozenset({"x-amz-user-agent"})

SecretOf = Callable[[str], str | None]
"""Returns the secret of an access key; None: the key does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity that signed a request."""

    access_key: str
    region: str
    service: str
    """The service in the signature's scope: `sagemaker` also for the runtime."""
    body_sha256: str | None = None
    """Hex digest that an S3 body must have, not compared yet; None: not signed, or already compared."""
    chunks: ChunkKey | None = None
    """The key of the chunks of an S3 body, not verified yet; None: chunks are not signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """The signature of a request and what it claims to cover."""

    access_key: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    expires_s: int | None
    """Validity of a presigned URL; None: in a header."""

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


def access_key_of(request: HttpRequest) -> str | None:
    """Return the access key that a request claims, even if its signature is wrong."""
    authorization = request.headers.get("authorization", "")
    if authorization.startswith(_ALGORITHM):
        return _header_fields(authorization).get("Credential", "").split("/")[0] or None
    credential = query_parameter(request.query, "X-Amz-Credential")
    if credential is not None:
        return unquote(credential).split("/")[0] or None
    return sigv2.access_key_of(request)


def verify(request: HttpRequest, secret_of: SecretOf, now_s: float, *, service: str | None = None) -> Identity:
    """
    Return the identity that signed a request with its whole body; that of S3 is not needed.

    `service` is what the signature must be for, by boto3's name; None: what the request names.

    Raises:
        AwsError: the signature is missing or wrong; with the code of the request's protocol.
    """
    # Nothing is known about the sender yet, so the signature must not take long to compute.
    if (num_parameters := request.query.count("&") + 1) > _MAX_PARAMETERS:
        message = f"The query string has {num_parameters} parameters; expected at most {_MAX_PARAMETERS}."
        raise fault_error(request, Fault.INCOMPLETE, message)
    if service in (None, "s3") and sigv2.is_presigned(request):
        return Identity(access_key=sigv2.verify(request, secret_of, now_s), region="", service="s3")
    signed = _read(request)
    secret = secret_of(signed.access_key)
    if secret is None:
        raise fault_error(request, Fault.UNKNOWN_KEY)
    _check_time(request, signed, now_s)
    _check_service(request, signed, service or identify(request).service)
    _check_signed_headers(request, signed)
    digest, key = _body_digest(request, signed), _signing_key(secret, signed)
    if not _is_right(request, signed, key, digest):
        raise fault_error(request, Fault.MISMATCH)
    is_s3 = signed.service.startswith("s3")
    is_claimed = _CONTENT_SHA256 in signed.signed_headers
    if is_claimed and not is_s3 and digest != hashlib.sha256(request.body).hexdigest():
        raise fault_error(request, Fault.MISMATCH)
    body_sha256 = digest if is_s3 and _HEX_DIGEST.fullmatch(digest) else None
    chunks = None
    if is_s3 and digest in _SIGNED_CHUNKS:
        chunks = ChunkKey(key=key, timestamp=signed.timestamp, scope=signed.scope, seed=signed.signature)
    return Identity(
        access_key=signed.access_key,
        region=signed.region,
        service=signed.service,
        body_sha256=body_sha256,
        chunks=chunks,
    )


def _read(request: HttpRequest) -> _Signed:
    authorization = request.headers.get("authorization", "")
    query = request.query
    if authorization.startswith(_ALGORITHM):
        fields = _header_fields(authorization)
        return _signed(request, fields, timestamp=_header_timestamp(request), expires_s=None)
    if query_parameter(query, "X-Amz-Algorithm") == _ALGORITHM:
        names = ("Credential", "SignedHeaders", "Signature", "Date", "Expires")
        fields = {name: unquote(query_parameter(query, f"X-Amz-{name}") or "") for name in names}
        text = fields["Expires"]
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_EXPIRES_S):
            message = f"X-Amz-Expires must be a number of seconds up to {MAX_EXPIRES_S}."
            raise fault_error(request, Fault.INCOMPLETE, message)
        return _signed(request, fields, timestamp=fields["Date"], expires_s=int(text))
    raise fault_error(request, Fault.MISSING)


def _header_fields(authorization: str) -> dict[str, str]:
    """Return `Credential`, `SignedHeaders` and `Signature`; some clients omit the space after the commas."""
    fields = {}
    for part in authorization.removeprefix(_ALGORITHM).split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    return fields


def _header_timestamp(request: HttpRequest) -> str:
    """Return `X-Amz-Date`, or `Date` in the same format."""
    if (sent := request.headers.get("x-amz-date")) is not None:
        return sent
    date = request.headers.get("date", "")[:_MAX_DATE_CHARACTERS]
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        when = parsedate_to_datetime(date)
        return (when.astimezone(UTC) if when.tzinfo else when).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, TypeError, IndexError, OverflowError):
        return ""


def _signed(request: HttpRequest, fields: dict[str, str], *, timestamp: str, expires_s: int | None) -> _Signed:
    # NOTE: split from the right, as an access key may contain slashes.
    credential = fields.get("Credential", "").rsplit("/", 4)
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not fields.get(name)]
    if missing:
        raise fault_error(request, Fault.INCOMPLETE, f"Authorization requires {' and '.join(missing)}.")
    if len(credential) != 5 or credential[4] != "aws4_request":
        raise fault_error(
            request, Fault.INCOMPLETE, "Credential must be <access key>/<day>/<region>/<service>/aws4_request."
        )
    if not _TIMESTAMP.fullmatch(timestamp) or timestamp[:8] != credential[1]:
        raise fault_error(
            request, Fault.INCOMPLETE, "X-Amz-Date must be like 20260131T235959Z, on the day that Credential names."
        )
    headers = fields["SignedHeaders"].lower().split(";")
    if len(headers) > _MAX_SIGNED_HEADERS or len(headers) != len(set(headers)):
        expected = f"expected at most {_MAX_SIGNED_HEADERS} different ones"
        raise fault_error(request, Fault.INCOMPLETE, f"SignedHeaders has {len(headers)} names; {expected}.")
    access_key, day, region, service, _ = credential
    return _Signed(
        access_key=access_key,
        day=day,
        region=region,
        service=service,
        signed_headers=tuple(headers),
        signature=fields["Signature"],
        timestamp=timestamp,
        expires_s=expires_s,
    )


def _check_time(request: HttpRequest, signed: _Signed, now_s: float) -> None:
    try:
        signed_s = datetime.strptime(signed.timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise fault_error(request, Fault.INCOMPLETE, f"{signed.timestamp} is not a date.") from error
    if now_s < signed_s - MAX_SKEW_S:
        raise fault_error(request, Fault.EXPIRED, f"Signature not yet current: {signed.timestamp} is in the future.")
    if now_s > signed_s + (MAX_SKEW_S if signed.expires_s is None else signed.expires_s):
        fault = Fault.EXPIRED if signed.expires_s is None else Fault.URL_EXPIRED
        raise fault_error(request, fault, f"Signature expired: {signed.timestamp} is too long ago.")


def _check_service(request: HttpRequest, signed: _Signed, service: str) -> None:
    """Check that the signature is for the service of the request, and that this service is supported."""
    service = service.replace("sagemaker-runtime", "sagemaker")
    names = [name for name, owner in SERVICE_OF_SIGNING_NAME.items() if owner == service]
    if names and signed.service not in names:
        raise fault_error(request, Fault.MISMATCH, f"Credential should be scoped to correct service: '{names[0]}'.")


def _check_signed_headers(request: HttpRequest, signed: _Signed) -> None:
    """Check that the signature covers the host and all AWS headers, which could otherwise be changed in transit."""
    needed = {name for name in request.headers if name.startswith("x-amz-")} - _MAY_BE_UNSIGNED | {"host"}
    unsigned = sorted(needed - set(signed.signed_headers))
    if unsigned:
        raise fault_error(request, Fault.UNSIGNED, f"These headers must be signed: {', '.join(unsigned)}.")


def _body_digest(request: HttpRequest, signed: _Signed) -> str:
    """
    Return the digest that represents the body in the canonical request.

    The body of an S3 request is not read here, so the request itself must say what was signed, as AWS requires. In a
    presigned URL it may be missing: it is signed before there is a body.
    """
    if not signed.service.startswith("s3"):
        claimed = request.headers.get(_CONTENT_SHA256, "") if _CONTENT_SHA256 in signed.signed_headers else ""
        return claimed or hashlib.sha256(request.body).hexdigest()
    if _CONTENT_SHA256 in signed.signed_headers:
        claimed = request.headers.get(_CONTENT_SHA256, "")
    elif signed.expires_s is not None:
        claimed = query_parameter(request.query, "X-Amz-Content-Sha256") or _UNSIGNED_PAYLOAD
    else:
        raise AwsError("InvalidRequest", f"Missing required header for this request: {_CONTENT_SHA256}")
    if claimed not in _S3_PAYLOADS and not _HEX_DIGEST.fullmatch(claimed):
        raise AwsError("InvalidArgument", f"{_CONTENT_SHA256} must be {', '.join(_S3_PAYLOADS)} or a SHA-256 digest.")
    return claimed


def _is_right(request: HttpRequest, signed: _Signed, key: bytes, digest: str) -> bool:
    for path in _canonical_paths(request.path, signed.service):
        canonical = _canonical_request(request, signed, path, digest)
        text = f"{_ALGORITHM}\n{signed.timestamp}\n{signed.scope}\n{hashlib.sha256(canonical).hexdigest()}"
        right = hmac.new(key, text.encode("latin-1", errors="replace"), hashlib.sha256).hexdigest()
        if hmac.compare_digest(right.encode(), signed.signature.encode("latin-1", errors="replace")):
            return True
    return False


def _signing_key(secret: str, signed: _Signed) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (signed.day, signed.region, signed.service, "aws4_request"):
        key = hmac.new(key, part.encode("latin-1", errors="replace"), hashlib.sha256).digest()
    return key


def _canonical_request(request: HttpRequest, signed: _Signed, path: str, digest: str) -> bytes:
    headers = [f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed.signed_headers]
    lines = (
        request.method,
        path,
        _canonical_query(request.query),
        "".join(headers),
        ";".join(signed.signed_headers),
        digest,
    )
    return "\n".join(lines).encode("latin-1", errors="replace")


def _canonical_paths(path: str, service: str) -> Iterator[str]:
    """
    Yield the possible paths that were signed.

    S3 clients sign the path as sent; they differ in what they escape, so the fully escaped form is accepted too. All
    other services sign the normalised path, escaped once more.
    """
    path = path or "/"
    if service.startswith("s3"):
        yield path
        yield quote(unquote(path, encoding="latin-1"), safe="/~", encoding="latin-1")
    else:
        yield quote(_normalised(path), safe="/~", encoding="latin-1")


def _normalised(path: str) -> str:
    """Remove empty and `.` segments and resolve `..`."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    last = "/" if path.endswith("/") and kept else ""
    return "/" + "/".join(kept) + last


def _canonical_query(query: str) -> str:
    """Return the query sorted and uniformly escaped, without the signature."""
    sent = (part.partition("=") for part in query.split("&")) if query else ()
    pairs = sorted((_escaped(name), _escaped(value)) for name, _, value in sent if name != "X-Amz-Signature")
    return "&".join(f"{name}={value}" for name, value in pairs)


def _escaped(text: str) -> str:
    return quote(unquote(text, encoding="latin-1"), safe="-_.~", encoding="latin-1")
