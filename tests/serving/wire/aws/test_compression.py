"""Decompression of request bodies."""

import gzip

import pytest

from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest, inflated


def request(body, **headers):
    return HttpRequest("POST", "/", "", headers, body)


def test_gzip_is_decompressed_once():
    plain = inflated(request(gzip.compress(b"{}"), **{"content-encoding": "GZIP", "host": "h"}), max_bytes=2)

    assert (plain.body, plain.headers) == (b"{}", {"host": "h"})
    assert inflated(plain, max_bytes=1) is plain


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"plain", "gzip", 400),
        (gzip.compress(b"abc")[:-5], "gzip", 400),
        (gzip.compress(b"a" * 11), "gzip", 413),
        (b"abc", "br", 400),
        (b"", "gzip", 400),
    ],
    ids=["not gzip", "cut off", "too large", "brotli", "empty"],
)
def test_a_body_that_cannot_be_decompressed_is_refused(body, encoding, status):
    with pytest.raises(AwsError) as raised:
        inflated(request(body, **{"content-encoding": encoding}), max_bytes=10)

    assert raised.value.http_status == status
