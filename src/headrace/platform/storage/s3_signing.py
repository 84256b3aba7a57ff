"""
Signs requests to an S3 server: AWS Signature Version 4 in the Authorization header or in a URL. Pure.

Source: "Authenticating Requests: Using the Authorization Header" and "Using Query Parameters" in the Amazon S3 API
reference.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, unquote_to_bytes, urlencode, urlsplit

from headrace.core.errors import HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Address and keys of an S3 server."""

    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str

    def client_options(self) -> dict[str, str]:
        """Return the arguments of `boto3.client("s3", ...)`."""
        return {
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": self.region,
        }

    def direct_options(self) -> dict[str, object]:
        """Return these arguments for a client that uses no proxy."""
        from botocore.config import Config

        return {**self.client_options(), "config": Config(proxies={})}


class StorageMissing(HeadraceError):
    """No object storage is installed or configured; the message says how to get one."""

    code = "storage_missing"
    http_status = 501


class StorageUnavailable(HeadraceError):
    """Object storage is starting or restarting."""

    code = "storage_unavailable"
    http_status = 503
    retryable = True


UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Clients leave them out of the header Host."""


def canonical_path(raw_path: str) -> str:
    """Return the canonical path of a signature: everything but letters, digits, `-_.~/` encoded, once."""
    return quote(unquote_to_bytes(raw_path), safe="/-_.~") or "/"


def canonical_query(query: str, *, without: Iterable[str] = ()) -> str:
    """Return the canonical query of a signature: sorted and encoded, without parameters (named in lower case)."""
    dropped = frozenset(without)
    pairs = []
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            plain = unquote_to_bytes(name)
            if plain.decode("utf-8", "replace").lower() not in dropped:
                pairs.append((quote(plain, safe="-_.~"), quote(unquote_to_bytes(value), safe="-_.~")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def signed_headers(
    access: S3Access,
    *,
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload_hash: str,
    now_s: float,
) -> dict[str, str]:
    """
    Return the headers to add to a request: host (with its port), date, payload hash and signature.

    Path and query are canonical; `payload_hash` is the SHA-256 of the body, or `UNSIGNED-PAYLOAD`. Of the other headers
    (names in lower case) those that begin with `x-amz-` are signed.
    """
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"host": host, "x-amz-content-sha256": payload_hash, "x-amz-date": stamp}
    signed = {name: value for name, value in headers.items() if name.startswith("x-amz-")} | added
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{' '.join(signed[name].split())}\n" for name in sorted(signed))
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{payload_hash}"
    credential = f"{access.access_key}/{_scope(access, stamp)}"
    signature = _signature(access, stamp, canonical)
    added["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return added


def presigned_url(access: S3Access, *, bucket: str, key: str, now_s: float, lifetime_s: int) -> str:
    """Return a URL that reads one object without keys, for a limited time."""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    endpoint = urlsplit(access.endpoint_url)
    host = endpoint.netloc.removesuffix(_DEFAULT_PORTS.get(endpoint.scheme, ""))
    path = quote(f"{endpoint.path}/{bucket}/{key}", safe="/-_.~")
    parameters = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{access.access_key}/{_scope(access, stamp)}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(lifetime_s),
        "X-Amz-SignedHeaders": "host",
    }
    query = urlencode(parameters, quote_via=quote, safe="-_.~")
    canonical = f"GET\n{path}\n{query}\nhost:{host}\n\nhost\n{UNSIGNED_PAYLOAD}"
    signature = _signature(access, stamp, canonical)
    return f"{endpoint.scheme}://{host}{path}?{query}&X-Amz-Signature={signature}"


def _scope(access: S3Access, stamp: str) -> str:
    return f"{stamp[:8]}/{access.region}/s3/aws4_request"


def _signature(access: S3Access, stamp: str, canonical: str) -> str:
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{access.secret_key}".encode()
    to_sign = f"{_ALGORITHM}\n{stamp}\n{_scope(access, stamp)}\n{digest}"
    for part in (*_scope(access, stamp).split("/"), to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
