"""Requests are signed as botocore signs them."""

from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.storage.s3_signing import (
    UNSIGNED_PAYLOAD,
    S3Access,
    canonical_path,
    canonical_query,
    presigned_url,
    signed_headers,
)
from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest

ACCESS = S3Access(endpoint_url="http://127.0.0.1:8333", access_key="AK/ID", secret_key="se+cret", region="us-east-1")
NOW_S = datetime(2026, 1, 31, 12, 0, tzinfo=UTC).timestamp()
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=12)


def sign(method: str, path: str, query: str, headers: dict[str, str]) -> dict[str, str]:
    return signed_headers(
        ACCESS,
        method=method,
        host="127.0.0.1:8333",
        path=path,
        query=query,
        headers=headers,
        payload_hash=UNSIGNED_PAYLOAD,
        now_s=NOW_S,
    )


def test_our_signature_equals_botocores() -> None:
    path, query = canonical_path("/bucket/a%20key+(1)~.txt"), canonical_query("partNumber=2&uploadId=x%2Fy&acl")
    headers = {"x-amz-meta-a": "  two   words ", "content-type": "text/plain"}
    ours = sign("PUT", path, query, headers)
    request = AWSRequest("PUT", f"{ACCESS.endpoint_url}{path}?{query}", headers=headers)
    request.headers["X-Amz-Date"] = ours["x-amz-date"]
    request.headers["X-Amz-Content-SHA256"] = UNSIGNED_PAYLOAD
    request.context["timestamp"] = ours["x-amz-date"]
    auth = S3SigV4Auth(Credentials(ACCESS.access_key, ACCESS.secret_key), "s3", "us-east-1")
    del request.headers["content-type"]
    canonical = auth.canonical_request(request)
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    assert ours["authorization"].endswith(f"Signature={signature}")


@given(TEXT, st.sampled_from(["http://127.0.0.1:8333", "https://s3.example.com:443/base", "http://minio"]))
def test_a_presigned_url_reads_its_own_object_only_and_for_its_time(key: str, endpoint: str) -> None:
    access = replace(ACCESS, endpoint_url=endpoint)
    url = urlsplit(presigned_url(access, bucket="bucket", key=f"m/{key}", now_s=NOW_S, lifetime_s=60))
    host = str(httpx.Request("GET", url.geturl()).headers["host"])
    request = HttpRequest("GET", url.path, url.query, {"host": host})
    assert sigv4.verify(request, {"AK/ID": "se+cret"}.get, NOW_S + 59).service == "s3"
    for changed, now_s in (
        (replace(request, path=url.path + "x"), NOW_S),
        (replace(request, method="PUT"), NOW_S),
        (replace(request, query=url.query.replace("Expires=60", "Expires=600")), NOW_S),
        (request, NOW_S + 61),
    ):
        with pytest.raises(AwsError):
            sigv4.verify(changed, {"AK/ID": "se+cret"}.get, now_s)


@given(TEXT, st.dictionaries(TEXT.filter(bool), TEXT, max_size=4), st.sampled_from(["GET", "PUT", "DELETE"]))
def test_our_verifier_accepts_our_signatures(key: str, query: dict[str, str], method: str) -> None:
    from urllib.parse import quote, urlencode

    path = canonical_path("/bucket/" + quote(key))
    canonical = canonical_query(urlencode(query))
    headers = sign(method, path, canonical, {})
    request = HttpRequest(method, path, canonical, headers)
    identity = sigv4.verify(request, {"AK/ID": "se+cret"}.get, NOW_S)
    assert identity.service == "s3"


def test_signature_parameters_are_not_signed() -> None:
    query = "X-Amz-Signature=a&prefix=b%2Fc&x-amz-date=1&list-type=2"
    assert canonical_query(query, without=("x-amz-signature", "x-amz-date")) == "list-type=2&prefix=b%2Fc"


def test_a_path_is_encoded_exactly_once() -> None:
    assert canonical_path("/b/%7Ea%2Bb c!") == "/b/~a%2Bb%20c%21"
    assert canonical_path("") == "/"


def test_the_secret_is_not_shown() -> None:
    assert "se+cret" not in repr(ACCESS)
