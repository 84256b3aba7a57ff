"""The mount that answers a request decides which credentials it takes, and little is done before they are checked."""

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headrace.platform.storage.s3_upload import begun, open_upload, signed_payload_of
from headrace.serving.http.asgi import Receive, Scope, Send, headers_of, send_response
from headrace.serving.wire.aws.chunk_signatures import ChunkKey
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.sessions import OPEN_PLATFORM, Session, issue
from headrace.serving.wire.aws.sigv4 import MAX_SKEW_S
from tests import plain_http
from tests.waiting import WAIT_S

from .named_apps import CBOR, FORM, KEY, LIST_METRICS, SECRET, TARGET, platform, sagemaker_token

OPENAI = "/endpoints/a/openai/v1/chat/completions"


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    with platform(is_open=False) as url:
        yield url


def _signed(signer: Any, url: str, method: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    request = AWSRequest(method, url, data=b"", headers=headers)
    signer.add_auth(request)
    sent = request.prepare()
    return sent.url, {name: value for name, value in sent.headers.items() if name.lower() != "content-length"}


def with_credential(
    kind: str, url: str, method: str, headers: dict[str, str], *, key: Any = None
) -> tuple[str, dict[str, str]]:
    """The URL and the headers of a request without a body that has one kind of credential."""
    key = key or Credentials(KEY, SECRET)
    bearers = {
        "secret": {"Authorization": f"Bearer {SECRET}"},
        "x-api-key": {"X-Api-Key": SECRET},
        "token": {"Authorization": sagemaker_token(SECRET)},
        "token as x-api-key": {"X-Api-Key": sagemaker_token(SECRET).removeprefix("Bearer ")},
        "nothing": {},
        "wrong": {"Authorization": "Bearer wrong"},
    }
    if kind in bearers:
        return url, {**headers, **bearers[kind]}
    signers = {
        "sagemaker": SigV4Auth(key, "sagemaker", "us-east-1"),
        "sagemaker url": SigV4QueryAuth(key, "sagemaker", "us-east-1"),
        "monitoring": SigV4Auth(key, "monitoring", "us-east-1"),
        "sts": SigV4Auth(key, "sts", "us-east-1"),
        "s3": S3SigV4Auth(key, "s3", "us-east-1"),
        "s3 url": S3SigV4QueryAuth(key, "s3", "us-east-1"),
        "s3 url of version 2": HmacV1QueryAuth(key),
    }
    return _signed(signers[kind], url, method, headers)


BEARERS = {"secret", "x-api-key", "token", "token as x-api-key"}
S3 = {"s3", "s3 url", "s3 url of version 2"}
KINDS = (*sorted(BEARERS | S3), "sagemaker", "sagemaker url", "monitoring", "sts", "nothing", "wrong")
UNKNOWN = {"sagemaker", "sagemaker url", "monitoring", "sts"}
"""Signed for another service than S3: an operation that this service does not have."""
WITHOUT_PATHS = {"monitoring", "sts"}
"""Signed for a service that has no paths here: another path is none of the platform's, either."""
NO_URL_OF_VERSION_2 = {"runtime", "runtime, asynchronous", "JSON", "CBOR", "query"}
"""Requests that name an operation: such a URL names no service, so it is taken for S3 only if nothing else is named."""
MOUNTS: dict[str, tuple[str, str, dict[str, str], str, set[str]]] = {
    "OpenAI, one endpoint": ("POST", OPENAI, {}, "gateway", {*BEARERS, "sagemaker", "sagemaker url"}),
    "OpenAI, a component": (
        "POST",
        "/endpoints/a/inference-components/c/openai/v1/completions",
        {},
        "gateway",
        {*BEARERS, "sagemaker", "sagemaker url"},
    ),
    "OpenAI": ("POST", "/v1/chat/completions", {}, "gateway", {*BEARERS, "sagemaker", "sagemaker url"}),
    "runtime": ("POST", "/endpoints/a/invocations", {}, "gateway", {"secret", "sagemaker", "sagemaker url"}),
    "runtime, asynchronous": (
        "POST",
        "/endpoints/a/async-invocations",
        {},
        "gateway",
        {"secret", "sagemaker", "sagemaker url"},
    ),
    "JSON": ("POST", "/", TARGET, "control", {"secret", "sagemaker", "sagemaker url"}),
    "CBOR": ("POST", LIST_METRICS, CBOR, "control", {"secret", "monitoring"}),
    "query": ("GET", "/?Action=GetCallerIdentity&Version=2011-06-15", {}, "control", {"secret", *UNKNOWN}),
    "S3": ("GET", "/bucket/key", {}, "s3", {"secret"}),
    "console": ("GET", "/console/api/rates", {}, "console", {"secret", "sagemaker", "sagemaker url"}),
    "keys": ("DELETE", "/console/api/keys/HRAK", {}, "console", {"secret", "sagemaker", "sagemaker url"}),
    "metrics": ("GET", "/metrics/targets", {}, "metrics", {"secret", "sagemaker", "sagemaker url"}),
}


@pytest.mark.parametrize("mount", MOUNTS)
def test_every_mount_takes_its_kinds_of_credentials_and_no_other(closed: str, mount: str) -> None:
    method, path, headers, server, opening = MOUNTS[mount]
    with plain_http.Client(timeout=WAIT_S) as client:
        for kind in KINDS:
            url, sent = with_credential(kind, closed + path, method, dict(headers))
            answer = client.request(method, url, headers=sent)
            served = answer.json()["served_by"] if answer.status_code == 200 else None
            expected = "s3" if kind in S3 else server if kind in opening else None
            if kind == "s3 url of version 2" and mount in NO_URL_OF_VERSION_2:
                expected = None
            if (kind in WITHOUT_PATHS and mount not in {"JSON", "CBOR"}) or (mount == "S3" and kind in UNKNOWN):
                expected = "control"
            assert served == expected, (mount, kind, answer.text)
            assert served or 400 <= answer.status_code < 500


def temporary(*, secret: str = SECRET, after_s: float = 3600, key: str = KEY, **changed: str) -> Credentials:
    """Temporary credentials of a key, as AssumeRole returns them, or forged ones."""
    session = Session(key=key, expires_s=int(time.time() + after_s), role="r", name="s")
    made = issue(session, secret)
    fields = {"access_key": made.access_key, "secret_key": made.secret, "token": made.token} | changed
    return Credentials(**fields)


@pytest.mark.parametrize("kind", ["sagemaker", "sagemaker url", *sorted(S3)])
def test_temporary_credentials_open_what_their_key_opens(closed: str, kind: str) -> None:
    path, server = ("/bucket/key", "s3") if kind in S3 else ("/metrics/targets", "metrics")
    with plain_http.Client(timeout=WAIT_S) as client:

        def status(key: Credentials) -> int:
            url, sent = with_credential(kind, closed + path, "GET", {}, key=key)
            answer = client.get(url, headers=sent)
            assert answer.status_code != 200 or answer.json()["served_by"] == server
            assert answer.status_code != 200 or answer.headers["x-caller"] == KEY
            return int(answer.status_code)

        assert status(temporary()) == 200
        other = temporary()
        refused = {
            "expired": temporary(after_s=-1),
            "of a removed key": temporary(key="HRAKGONE"),
            "of a guessed secret": temporary(secret="guessed"),
            "of an open platform": temporary(key="", secret=OPEN_PLATFORM),
            "with the secret of its key": temporary(secret_key=SECRET),
            "with another token": temporary(token=other.token),
            "for longer": temporary(token=f"{forged_payload(other.token)}.{other.token.partition('.')[2]}"),
            "without its token": temporary(token=""),
            "with a token of nonsense": temporary(token="a." * 900),
        }
        assert {name: status(key) for name, key in refused.items()} == dict.fromkeys(
            refused, 403 if kind in S3 else 400
        )


def forged_payload(token: str) -> str:
    """The payload of a token with a later end."""
    fields = json.loads(base64.urlsafe_b64decode(token.partition(".")[0]))
    return base64.urlsafe_b64encode(json.dumps({**fields, "expires_s": 2**40}).encode()).decode()


def test_a_token_of_the_sdk_by_temporary_credentials_acts_for_their_key(closed: str) -> None:
    answer = plain_http.post(
        closed + OPENAI, content=b"{}", headers={"Authorization": sagemaker_token(key=temporary())}, timeout=WAIT_S
    )
    assert (answer.status_code, answer.headers["x-caller"]) == (200, KEY)


TOKEN_FORMS = (
    ("POST", "/x/openai/v1/", TARGET),
    ("POST", "/x/openai/v1/", {**FORM, **TARGET}),
    ("POST", "/openai/v1/chat/completions", {}),
    ("POST", f"/{LIST_METRICS}?a=/openai/v1/", CBOR),
    ("POST", f"/endpoints/a/openai/v1{LIST_METRICS}/../..", CBOR),
    ("POST", "/?a=/openai/v1/x", TARGET),
    ("POST", "/?path=/v1/", FORM),
    ("GET", "/bucket/a/openai/v1/key", {}),
    ("PUT", "/bucket/openai/v1/key", {}),
    ("GET", "/bucket/endpoints/a/openai/v1/key", {}),
    ("GET", "/bucket/v1/key", {}),
    ("GET", "/bucket?prefix=/openai/v1/", {}),
    ("GET", "/bucket%2Fopenai%2Fv1%2Fkey", {}),
    ("POST", "/endpoints/a/openai/v1/../../invocations", {}),
    ("POST", "/endpoints/a/openai/v1/%2e%2e/%2e%2e/invocations", {}),
    ("POST", "/endpoints/a%2Fopenai%2Fv1%2F..%2F..%2Finvocations", {}),
    ("POST", "/endpoints/a/invocations?/openai/v1/", {}),
    ("POST", "/endpoints/a/invocations/", {}),
    ("POST", "/endpoints/a/invocations#/openai/v1/", {}),
    ("POST", "/ENDPOINTS/a/OPENAI/V1/chat/completions", {}),
    ("POST", "/V1/chat/completions", {}),
    ("POST", "//v1/chat/completions", {}),
    ("POST", "/./v1/chat/completions", {}),
    ("GET", "/v1", {}),
    ("GET", "/console/api/keys?x=/openai/v1/", {}),
    ("DELETE", "/console/api/keys/openai/v1/", {}),
    ("GET", "/v1/../console/api/keys", {}),
    ("GET", "/metrics/workers/openai/v1/", {}),
    ("GET", "/metrics?x=/v1/", {}),
)


def _sent(url: str, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    """A request whose path is sent as it is: clients would remove dot segments."""
    with httpx.Client(verify=False, timeout=WAIT_S) as client:
        target = {"extensions": {"target": path.encode()}}
        return client.send(client.build_request(method, url, headers=headers, **target))


@pytest.mark.parametrize("how", ["authorization", "x-api-key"])
def test_a_token_of_the_sdk_opens_no_other_path_whatever_its_form(closed: str, how: str) -> None:
    token = sagemaker_token(SECRET)
    credential = {"authorization": token} if how == "authorization" else {how: token.removeprefix("Bearer ")}
    for method, path, headers in TOKEN_FORMS:
        answer = _sent(closed, method, path, {**headers, **credential})
        assert (400 <= answer.status_code < 500, "served_by" in answer.text) == (True, False), (method, path)


@pytest.mark.parametrize("path", [OPENAI, "/v1//chat/completions", "/v1/models/", "/endpoints/a%2Fopenai/v1/models"])
def test_forms_of_openais_paths_are_answered_by_the_gateway_alone(closed: str, path: str) -> None:
    answer = _sent(closed, "POST", path, {**TARGET, "authorization": sagemaker_token(SECRET)})
    assert (answer.status_code, answer.json()["served_by"]) == (200, "gateway")


class _SignedAt(SigV4QueryAuth):
    """A signer with a time of its own."""

    stamp = ""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = self.stamp
        super()._modify_request_before_signing(request)


def token_at(age: timedelta, *, expires_s: int, host: str = "sagemaker.amazonaws.com") -> str:
    """A token that was signed some time ago."""
    at = datetime.now(UTC) - age
    made = AWSRequest("POST", f"https://{host}/", headers={"host": host}, params={"Action": "CallWithBearerToken"})
    signer = _SignedAt(Credentials(KEY, SECRET), "sagemaker", "us-east-1", expires=expires_s)
    signer.stamp = at.strftime("%Y%m%dT%H%M%SZ")
    signer.add_auth(made)
    return f"Bearer sagemaker-api-key-{base64.b64encode(made.url.removeprefix('https://').encode()).decode()}"


def test_a_token_is_valid_within_its_lifetime_only(closed: str) -> None:
    cases = (
        (timedelta(seconds=1), 600, 200),
        (timedelta(hours=11), 43_200, 200),
        (timedelta(seconds=601), 600, 401),
        (timedelta(hours=12, seconds=1), 43_200, 401),
        (timedelta(0), 43_201, 401),
        (-timedelta(seconds=MAX_SKEW_S + 60), 600, 401),
    )
    for age, expires_s, status in cases:
        token = token_at(age, expires_s=expires_s)
        answer = plain_http.post(closed + OPENAI, content=b"{}", headers={"authorization": token}, timeout=WAIT_S)
        assert answer.status_code == status, (age, expires_s, answer.text)


def test_the_url_in_a_token_opens_nothing(closed: str) -> None:
    url = base64.b64decode(sagemaker_token(SECRET).removeprefix("Bearer sagemaker-api-key-")).decode()
    host, _, query = url.removesuffix("&Version=1").partition("/?")
    for more in ({}, FORM, CBOR, TARGET):
        for path in ("/", OPENAI, "/v1/models", "/bucket/key"):
            answer = plain_http.post(f"{closed}{path}?{query}", headers={"host": host, **more}, timeout=WAIT_S)
            served = answer.json()["served_by"] if answer.status_code == 200 else None
            # the signed path with the signed action: an operation that no service has
            assert served == ("control" if path == "/" and more is not TARGET else None), (path, more)


HUGE = (
    ("POST", "/", FORM, b"Action=" + b"%41" * 340_000),
    ("POST", "/", FORM, b"a=1&" * 260_000 + b"Action=GetRole"),
    ("POST", "/", TARGET, b"[" * 1_000_000),
    ("POST", LIST_METRICS, CBOR, b"\x80" * 1_000_000),
    ("POST", "/bucket", {"Content-Type": "multipart/form-data; boundary=x"}, b"--x" * 300_000),
    ("POST", "/bucket?delete", {}, b"<Delete>" * 120_000),
    ("POST", "/endpoints/a/invocations", {}, b"[" * 1_000_000),
    ("POST", OPENAI, {}, b"[" * 1_000_000),
    ("POST", "/console/api/keys", {}, b"[" * 1_000_000),
)


@pytest.mark.parametrize("credential", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "AWS4-HMAC-SHA256 x"}])
def test_without_a_key_the_answer_comes_before_the_body(closed: str, credential: dict[str, str]) -> None:
    """So nothing of it was parsed."""
    address = urlsplit(closed)
    for method, path, headers, body in HUGE:
        lines = {"Host": "a", "Content-Length": str(len(body)), **headers, **credential}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as connection:
            connection.sendall(head.encode() + b"\r\n" + body[:1000])
            status = int(connection.recv(65_536).split()[1])
        assert 400 <= status < 500, path
        whole = plain_http.request(method, closed + path, headers={**headers, **credential}, content=body)
        assert whole.status_code == status, path


def scope_of(service: str) -> str:
    return f"Credential={KEY}/{datetime.now(UTC):%Y%m%d}/us-east-1/{service}/aws4_request"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("a&" * 7000 + "AWSAccessKeyId=HRAKTEST&Signature=x&Expires=9999999999", {}),
        ("a&" * 7000, {"authorization": f"AWS4-HMAC-SHA256 {scope_of('s3')},SignedHeaders=host,Signature=x"}),
        ("", {"authorization": f"AWS4-HMAC-SHA256 {scope_of('s3')},SignedHeaders={'a;' * 3000}host,Signature=x"}),
        ("", {"authorization": f"AWS4-HMAC-SHA256 {scope_of('s3')},SignedHeaders={'a;' * 9000}host,Signature=x"}),
        ("", {"authorization": "AWS4-HMAC-SHA256 " + "a=b," * 10_000}),
        ("", {"authorization": "Bearer sagemaker-api-key-" + "QUFB" * 4096}),
        ("", {"x-api-key": "sagemaker-api-key-" + "QUFB" * 4096}),
    ],
)
def test_credentials_that_take_long_to_check_are_refused_by_their_size(
    closed: str, query: str, headers: dict[str, str]
) -> None:
    for path in ("/bucket/key", OPENAI):
        answer = plain_http.get(f"{closed}{path}?{query}", headers=headers, timeout=WAIT_S)
        assert 400 <= answer.status_code < 500
        assert "served_by" not in answer.text


async def _store(scope: Scope, receive: Receive, send: Send) -> None:
    """Take an upload as the proxy for S3 does; the answer is what would be stored."""
    try:
        upload = await begun(open_upload(headers_of(scope), receive, signed_payload_of(scope)))
        stored = b"".join([part async for part in upload.body]) if upload.body is not None else b""
    except AwsError as error:
        await send_response(scope, send, error.http_status, (), error.code.encode())
    else:
        await send_response(scope, send, 200, (), stored)


class _S3Signer(S3SigV4Auth):
    """Signs what it is told to sign of the body."""

    def __init__(self, payload: str | None) -> None:
        super().__init__(Credentials(KEY, SECRET), "s3", "us-east-1")
        self._payload = payload
        self.chunks: ChunkKey | None = None

    def _modify_request_before_signing(self, request: Any) -> None:
        super()._modify_request_before_signing(request)
        del request.headers["X-Amz-Content-SHA256"]
        if self._payload is not None:
            request.headers["X-Amz-Content-SHA256"] = self._payload

    def payload(self, request: Any) -> str:
        return self._payload or hashlib.sha256(b"").hexdigest()

    def signature(self, string_to_sign: str, request: Any) -> str:
        found: str = super().signature(string_to_sign, request)
        stamp = request.context["timestamp"]
        key = f"AWS4{SECRET}".encode()
        for part in (stamp[:8], "us-east-1", "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        self.chunks = ChunkKey(key=key, timestamp=stamp, scope=scope, seed=found)
        return found


def _in_chunks(key: ChunkKey, content: bytes) -> bytes:
    """The content in two chunks and the last one, signed."""
    body, previous = b"", key.seed
    for chunk in (content[:3], content[3:], b""):
        digests = f"{hashlib.sha256().hexdigest()}\n{hashlib.sha256(chunk).hexdigest()}"
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{key.timestamp}\n{key.scope}\n{previous}\n{digests}"
        previous = hmac.new(key.key, text.encode(), hashlib.sha256).hexdigest()
        body += b"%x;chunk-signature=%b\r\n%b\r\n" % (len(chunk), previous.encode(), chunk)
    return body


CONTENT, DIGEST = b"content", hashlib.sha256(b"content").hexdigest()
CHUNKED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
PAYLOADS = (
    (None, CONTENT, "InvalidRequest"),
    (None, b"", "InvalidRequest"),
    ("nonsense", CONTENT, "InvalidArgument"),
    (DIGEST.upper(), CONTENT, "InvalidArgument"),
    ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", CONTENT, "InvalidArgument"),
    (DIGEST, CONTENT, CONTENT),
    (DIGEST, b"another", "XAmzContentSHA256Mismatch"),
    (DIGEST, b"", "XAmzContentSHA256Mismatch"),
    (hashlib.sha256(b"").hexdigest(), CONTENT, "XAmzContentSHA256Mismatch"),
    ("UNSIGNED-PAYLOAD", CONTENT, CONTENT),
    (CHUNKED, "signed", CONTENT),
    (CHUNKED, "changed", "SignatureDoesNotMatch"),
    (CHUNKED, b"7\r\ncontent\r\n0\r\n\r\n", "SignatureDoesNotMatch"),
    (CHUNKED, CONTENT, "IncompleteBody"),
    (CHUNKED, b"", "IncompleteBody"),
)


def test_a_put_is_stored_only_with_the_body_that_was_signed() -> None:
    with platform(is_open=False, s3=_store) as url, plain_http.Client(timeout=WAIT_S) as client:
        for payload, body, expected in PAYLOADS:
            sizes = {"X-Amz-Decoded-Content-Length": str(len(CONTENT))} if payload == CHUNKED else {}
            signer = _S3Signer(payload)
            _, headers = _signed(signer, f"{url}/bucket/key", "PUT", sizes)
            assert signer.chunks is not None
            sent = body
            if isinstance(body, str):
                sent = _in_chunks(signer.chunks, CONTENT)
                sent = sent.replace(b"ent", b"eNt") if body == "changed" else sent
            answer = client.put(f"{url}/bucket/key", content=sent, headers=headers)
            told = answer.content if isinstance(expected, bytes) else expected if expected in answer.text else ""
            assert told == expected, (payload, body, answer.text)
