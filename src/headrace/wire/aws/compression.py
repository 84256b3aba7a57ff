"""Decompression of bodies with `Content-Encoding: gzip`, which SDKs use for large PutMetricData requests."""

import zlib
from dataclasses import replace

from headrace.wire.aws.errors import AwsError, malformed
from headrace.wire.aws.http import HttpRequest

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def inflated(request: HttpRequest, *, max_bytes: int) -> HttpRequest:
    """
    Return the request with its body decompressed. Signatures cover the compressed body: verify them first.

    Args:
        request: the request with its whole body.
        max_bytes: the largest decompressed body.

    Raises:
        AwsError: the body is not gzip, has another encoding, or is too large.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return request
    if encoding != "gzip":
        raise malformed(f"Content-Encoding is {encoding[:100]!r}. Send gzip, or the body as it is.")
    headers = {name: value for name, value in request.headers.items() if name != "content-encoding"}
    return replace(request, headers=headers, body=_gunzipped(request.body, max_bytes))


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        plain = decoder.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise malformed("Content-Encoding is gzip, but the body is not gzip.") from error
    if len(plain) > max_bytes:
        message = f"The decompressed body has more than {max_bytes} bytes."
        raise AwsError("RequestEntityTooLargeException", message, status=413)
    if not decoder.eof:
        raise malformed("The gzip data of the body is truncated.")
    return plain
