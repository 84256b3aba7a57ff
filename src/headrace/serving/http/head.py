"""
Checks on the head of an HTTP/1.1 request that the parser leaves to the server, and the answer to a malformed one.

Pure. Source: RFC 9112 (message syntax), sections 3.2 and 6; RFC 9110, section 15 (status codes).
"""

import re
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

MAX_HEAD_BYTES = 64 * 1024
"""Request line, headers and trailers together. AWS's services accept 8 to 16 KiB."""
MAX_HEADERS = 256
MAX_TARGET_BYTES = 16 * 1024

Headers = list[tuple[bytes, bytes]]

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+,;=]*)(:[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_REQUEST_LINE = re.compile(rb"\r?\n?[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,40} \S* HTTP/")
_TLS = b"\x16\x03"

_CODES = {
    400: "malformed_http",
    408: "request_timeout",
    414: "target_too_long",
    431: "head_too_large",
    500: "internal",
    501: "not_implemented",
    503: "unavailable",
    505: "http_version_not_supported",
}


@dataclass
class HttpRefused(Exception):
    """A request is refused before routing; the connection closes after the response."""

    status: int
    message: str
    headers: tuple[tuple[str, str], ...] = ()

    def render(self, default_headers: Headers) -> bytes:
        """Return the whole response; its body is the same for every route, whose dialect is not known yet."""
        body = msgspec.json.encode({"error": self.message, "error_type": _CODES[self.status]})
        own = (("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close"))
        lines = [b"HTTP/1.1 %d %b" % (self.status, HTTPStatus(self.status).phrase.encode())]
        lines += [b"%b: %b" % header for header in default_headers]
        lines += [f"{name}: {value}".encode() for name, value in (*own, *self.headers)]
        return b"\r\n".join((*lines, b"", body))


def check_head(method: str, target: bytes, version: str, headers: Headers) -> bytes:
    """
    Check a parsed head, and return its target in origin form (`/path?query`) or `*`.

    `headers` has lower-case names; its `host` is replaced where the target names one. Raises `HttpRefused` if the head
    is not valid HTTP/1.0 or HTTP/1.1, or requires an unsupported feature.
    """
    if version not in ("1.0", "1.1"):
        raise HttpRefused(505, f"The request is in HTTP/{version}; expected HTTP/1.1.")
    if method == "CONNECT":
        raise HttpRefused(501, "CONNECT is not supported: this server is not a proxy.")
    _check_host(headers, version)
    _check_transfer_coding(headers, version)
    return _origin_form(method, target, headers)


def refusal_of(reason: str, data: bytes) -> HttpRefused:
    """Return the answer to a request that the parser refused, by its reason and the first bytes, if known."""
    if data.startswith(_TLS):
        return HttpRefused(400, "The connection began with TLS; expected plain HTTP. Use http:// in the URL.")
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return HttpRefused(505, "The request is not in HTTP/1.1, the only version that is supported.")
    if reason == "Invalid method encountered" and _REQUEST_LINE.match(data):
        return HttpRefused(501, "The method is not supported. Methods are in upper case: GET, HEAD, POST, PUT, DELETE.")
    return HttpRefused(400, f"The request is not valid HTTP/1.1: {reason[:1].lower()}{reason[1:]}.")


def _check_host(headers: Headers, version: str) -> None:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise HttpRefused(400, f"The request has {len(hosts)} Host headers; expected one.")
    if not hosts and version == "1.1":
        raise HttpRefused(400, "The request has no Host header; HTTP/1.1 expects one.")
    if hosts and not _HOST.fullmatch(hosts[0].strip()):
        raise HttpRefused(400, "The Host header is not valid; expected a host name or an address, and a port.")


def _check_transfer_coding(headers: Headers, version: str) -> None:
    values = [value for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return
    if version != "1.1":
        raise HttpRefused(400, "The request has a Transfer-Encoding; HTTP/1.0 has none. Send Content-Length.")
    codings = [coding.strip().lower() for coding in b",".join(values).split(b",")]
    if set(codings) - {b"chunked"}:
        raise HttpRefused(501, "The transfer coding is not supported; expected `Transfer-Encoding: chunked`.")
    if len(codings) > 1:
        raise HttpRefused(400, "The body is chunked more than once; expected `Transfer-Encoding: chunked`.")


def _origin_form(method: str, target: bytes, headers: Headers) -> bytes:
    if len(target) > MAX_TARGET_BYTES:
        raise HttpRefused(414, f"The request target has {len(target)} bytes; expected at most {MAX_TARGET_BYTES}.")
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or not absolute[1] or not _HOST.fullmatch(absolute[1]):
        raise HttpRefused(400, "The request target is not valid; expected a path that begins with a slash.")
    # RFC 9112, section 3.2.2: the host of the target counts, not that of the header.
    headers[:] = [(name, absolute[1] if name == b"host" else value) for name, value in headers]
    return absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
