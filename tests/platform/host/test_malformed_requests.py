"""No request to the platform's port, however malformed, gets a 5xx."""

import json
import random
import socket
from collections import Counter

import pytest

from tests import plain_http
from tests.http_cases import MALFORMED, answers_in, exchange
from tests.waiting import WAIT_S

from .running import Running

pytestmark = pytest.mark.model

METHODS = ("GET", "POST", "POST", "PUT", "HEAD", "DELETE", "PATCH", "OPTIONS", "BREW")
PATHS = (
    "/",
    "/bucket",
    "/bucket/key",
    "/endpoints/a/invocations",
    "/endpoints/%00/invocations",
    "/endpoints/a/invocations-response-stream",
    "/endpoints/a/async-invocations",
    "/endpoints/a/openai/v1/x",
    "/v1/chat/completions",
    "/v1/models/x",
    "/console/web/../x",
    "/console/api/traffic",
    "/console/api/rates",
    "/health",
    "/metrics",
    "/%ff%fe",
    "/a//b/../c",
    "/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=%00",
    "/?Action=GetCallerIdentity",
    "/?Action=Nope&Version=2011-06-15",
    "/service/GraniteServiceVersion20100801/operation/X",
)
TARGETS = (
    "SageMaker.CreateModel",
    "SageMaker.CreateEndpointConfig",
    "SageMaker.DescribeEndpoint",
    "SageMaker.UpdateEndpoint",
    "SageMaker.Nope",
    "Logs_20140328.FilterLogEvents",
    "AnyScaleFrontendService.RegisterScalableTarget",
    "GraniteServiceVersion20100801.GetMetricData",
    ".",
    "",
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b'{"ModelName": 5}',
    b'{"ModelName": "a", "PrimaryContainer": {"Image": "x", "Environment": {"a": 1}}}',
    b'{"ProductionVariants": [{"VariantName": "a", "InitialInstanceCount": 1e400}]}',
    b"\xff\xfe",
    b"[" * 50_000,
    b"Action=GetRole",
    b"Action=GetRole&RoleName=%ff",
    b"<Delete>",
)
HEADERS = (
    ("Authorization", "Bearer x"),
    ("Authorization", "AWS x:y"),
    ("Authorization", "AWS4-HMAC-SHA256 Credential=a/b/c/d/e"),
    (
        "Authorization",
        "AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x",
    ),
    (
        "Authorization",
        "AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/sagemaker/aws4_request, SignedHeaders=host, Signature=x",
    ),
    ("Content-Type", "application/x-www-form-urlencoded"),
    ("Content-Type", "application/x-amz-json-1.1"),
    ("Content-Type", "\xe9"),
    ("Accept", "text/html"),
    ("X-Amz-Content-SHA256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
    ("X-Amz-Content-SHA256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    ("X-Amz-Decoded-Content-Length", "-5"),
    ("Range", "bytes=9-1"),
    ("Origin", "null"),
    ("X-Amzn-SageMaker-Session-Id", "\x01x"),
    ("x-amz-copy-source", "../.."),
    ("X-Amz-Date", "never"),
    ("Content-MD5", "x"),
)
NOT_IMPLEMENTED = 501
"""SeaweedFS says so of some combinations; SDKs do not repeat it."""


def odd_request(chance: random.Random, host: str, bearer: dict[str, str]) -> bytes:
    """A request with a key, unless it has odd credentials."""
    headers = chance.sample(HEADERS, chance.randint(0, 4))
    if "Authorization" not in dict(headers):
        headers += bearer.items()
    if chance.random() < 0.5:
        headers.append(("X-Amz-Target", chance.choice(TARGETS)))
    body = chance.choice(BODIES) if chance.random() < 0.7 else chance.randbytes(chance.randint(0, 200))
    lines = [f"{chance.choice(METHODS)} {chance.choice(PATHS)} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def answer_to(request: bytes, host: str) -> bytes:
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port)), timeout=WAIT_S) as connection:
        received = b""
        try:
            connection.sendall(request)
            while data := connection.recv(65536):
                received += data
        except ConnectionError:
            pass  # it was refused before its body was read
        return received


def test_malformed_requests_get_json_and_a_closed_connection_here_too(platform: Running) -> None:
    for name, (request, status) in MALFORMED.items():
        (answer,) = answers_in(exchange(platform.url, request))
        if "trailers" in name and answer.status == 403:
            continue  # it has no key, and the platform refused it before the trailers after its body arrived
        assert (answer.status, answer.headers["connection"]) == (status, "close"), name
        assert set(json.loads(answer.body)) == {"error", "error_type"}, name


def test_unknown_methods_and_paths_are_answered_in_complete_responses(platform: Running) -> None:
    host, key = platform.url.removeprefix("http://"), platform.bearer["Authorization"]
    ask = "{} HTTP/1.1\r\nHost: " + host + f"\r\nAuthorization: {key}\r\nConnection: close\r\n\r\n"
    (options,) = answers_in(exchange(platform.url, ask.format("OPTIONS *").encode()))
    assert options.status == 204
    for path in ("/v1/models/a%0d%0ab", "/endpoints/a%0d%0ab/invocations", "/v1/models/" + "a" * 5000):
        (answer,) = answers_in(exchange(platform.url, ask.format(f"GET {path}").encode()))
        assert 400 <= answer.status < 500
        assert b"\\r" not in answer.body
        assert len(answer.body) < 1000


def test_head_requests_for_models_are_answered(platform: Running) -> None:
    for path, status in (("/v1/models", 200), ("/v1/models/nothing", 404)):
        assert plain_http.head(platform.url + path, headers=platform.bearer).status_code == status


def test_an_upload_with_trailers_is_kept_without_them(platform: Running) -> None:
    platform.client("s3").create_bucket(Bucket="trailers")
    host = platform.url.removeprefix("http://")
    lines = [f"Host: {host}", f"Authorization: {platform.bearer['Authorization']}", "Connection: close"]
    head = "\r\n".join(["PUT /trailers/key HTTP/1.1", *lines, "Transfer-Encoding: chunked", "", ""])
    answer = answer_to(head.encode() + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Note: 2\r\n\r\n", host)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert platform.client("s3").get_object(Bucket="trailers", Key="key")["Body"].read() == b"hello"


def test_a_thousand_random_requests_are_answered_without_a_server_error(platform: Running) -> None:
    chance, host, seen = random.Random(4), platform.url.removeprefix("http://"), Counter[int]()
    for _ in range(1000):
        request = odd_request(chance, host, platform.bearer)
        answer = answer_to(request, host)
        if not answer and len(request) > 40_000:
            continue  # the refusal was lost with the rest of a large body
        assert answer, request[:300]
        status = int(answer.split(b" ", 2)[1])
        seen[status] += 1
        assert status < 500 or status == NOT_IMPLEMENTED, (request[:400], answer[:400])
    assert len(seen) > 4
    assert plain_http.get(f"{platform.url}/health", timeout=WAIT_S).json()["status"] == "ok"
    assert "Traceback" not in platform.log()
