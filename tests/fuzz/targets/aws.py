"""Requests in AWS's protocols: parameters, signatures, compressed and chunked bodies, event streams."""

import base64
import gzip
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.eventstream import EventStreamBuffer

from headrace.platform.storage.s3_upload import AwsChunkedReader, BadChunk, begun, open_upload
from headrace.serving.wire.aws import bearer_tokens, calls, eventstream, sessions, sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest, inflated
from headrace.serving.wire.aws.identify import form_fields, identify
from headrace.serving.wire.aws.paging import Paginator
from tests.fuzz.target import Malformed, Target
from tests.fuzz.targets.connections import _loop
from tests.serving.wire.aws.client_side import error_of
from tests.serving.wire.aws.signing import ACCESS_KEY, SECRET, SECRETS, SIGNED_S, signed

_MAX_INFLATED_BYTES = 1 << 20
_PAGES = Paginator(invalid_token=lambda: AwsError("ValidationException", "The token is invalid."))


def _request(data: bytes) -> HttpRequest:
    """The request in the form `METHOD /path?query`, header lines, an empty line, the body."""
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.decode("latin-1").split("\n")
    method, _, target = first.partition(" ")
    path, _, query = target.partition("?")
    if not method or not path.startswith("/"):
        raise Malformed
    pairs = (line.partition(":") for line in lines if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return HttpRequest(method, path, query, headers, body)


def _bytes(request: HttpRequest) -> bytes:
    target = request.path + ("?" + request.query if request.query else "")
    lines = [f"{request.method} {target}", *(f"{name}: {value}" for name, value in request.headers.items())]
    return "\n".join(lines).encode("latin-1") + b"\n\n" + request.body


def _call(data):
    """A request is a call, or refused in its protocol with a status of the client's."""
    request = _request(data)
    target = identify(request)
    try:
        calls.parse(request)
    except AwsError as error:
        response = calls.render_error(target, error, "the-id")
        assert 400 <= response.status < 500, response
        assert all("\n" not in value and "\r" not in value for _, value in response.headers)
        told = error.code if target.protocol == "rest-xml" else error_of(target.protocol, response)[0]
        assert told == error.code, response  # noqa: PT017
        raise


def _signature(data):
    """Only the signed request is accepted, whatever was changed."""
    request = _request(data)
    sigv4.access_key_of(request)
    sigv4.verify(request, SECRETS.get, SIGNED_S)


def _token(data):
    bearer_tokens.verify(data.decode("latin-1"), SECRETS.get, SIGNED_S)


def _session(data):
    """A session token holds credentials only if a key of the platform issued it, whatever was changed."""
    found = sessions.verify(data.decode("latin-1"), SECRETS.get)
    assert found is None or found.token.encode() == data


def _page(data):
    """A token of a client ends in a page of the list, or in the error of the service."""
    shown, more = _PAGES.page(range(10), {"NextToken": data.decode("latin-1")}, listing="l", key=lambda n: (n,), size=3)
    assert set(shown) <= set(range(10))
    assert len(shown) <= 3
    assert all(isinstance(token, str) for token in more.values())


def _gzip(data):
    request = HttpRequest("POST", "/", "", {"content-encoding": "gzip"}, data)
    assert len(inflated(request, max_bytes=_MAX_INFLATED_BYTES).body) <= _MAX_INFLATED_BYTES


def _chunked(data):
    """The content does not depend on how the bytes arrive."""
    whole = AwsChunkedReader()
    content = whole.feed(data)
    whole.finish()
    parts = AwsChunkedReader()
    cut = sum(data) % (len(data) + 1)
    assert parts.feed(data[:cut]) + parts.feed(data[cut:]) == content
    assert len(content) <= len(data)


def _upload(data):
    """An upload to S3 with any headers and body."""
    request = _request(data)
    with suppress(ValueError):  # its declared error for too many fields
        form_fields(request)

    async def receive():
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def read():
        upload = await begun(open_upload(request.headers, receive))
        return [part async for part in upload.body] if upload.body is not None else []

    _loop().run_until_complete(read())


def _frames(data):
    """Botocore reads from our frames what was put into them."""
    buffer = EventStreamBuffer()
    buffer.add_data(eventstream.payload_part(data) + eventstream.model_stream_error(data.decode("latin-1"), "x"))
    first, second = list(buffer)
    assert first.payload == data
    assert second.headers[":exception-type"] == "ModelStreamError"


@contextmanager
def _signing_time():
    """Let botocore sign at the time at which the targets verify."""
    clock = botocore.auth.get_current_datetime
    botocore.auth.get_current_datetime = lambda *_, **__: datetime.fromtimestamp(SIGNED_S, UTC).replace(tzinfo=None)
    try:
        yield
    finally:
        botocore.auth.get_current_datetime = clock


def _signed_seeds():
    kinds = (("header", "sagemaker"), ("query", "sagemaker"), ("s3-header", "s3"), ("s3-query", "s3"))
    with _signing_time():
        made = {kind: _bytes(signed(kind, service, path="/a%20b/c?x=1&y", body=b"{}")) for kind, service in kinds}
    v2 = f"GET /b/k?AWSAccessKeyId={ACCESS_KEY}&Signature=AAAA&Expires=9999999999\nhost: a\n\n"
    return made | {"v2": v2.encode()}


def _token_seeds():
    """A token as the SageMaker SDK derives it from an access key."""
    request = AWSRequest("POST", "https://sagemaker.amazonaws.com/", params={"Action": "CallWithBearerToken"})
    with _signing_time():
        credentials = Credentials(ACCESS_KEY, SECRET)
        botocore.auth.SigV4QueryAuth(credentials, "sagemaker", "us-east-1", expires=300).add_auth(request)
    url = request.url.removeprefix("https://") + "&Version=1"
    return {"signed": b"sagemaker-api-key-" + base64.b64encode(url.encode())}


_CHUNKS = (
    b"3;chunk-signature=00\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32: AAAAAA==\r\n\r\n",
    b"5\r\nabcde\r\n0\r\n\r\n",
)
_UPLOAD = b"PUT /b/k\nx-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\ncontent-length: 9\n\nabc"
_SIGNED_UPLOAD = (
    b"PUT /b/k?x=1\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\ncontent-encoding: aws-chunked\n"
    b"x-amz-decoded-content-length: 5\nx-amz-trailer: x-amz-checksum-crc32\n\n" + _CHUNKS[0]
)
_CALL_WORDS = (
    *(b"x-amz-target: SageMaker.CreateEndpointConfig\n", b"smithy-protocol: rpc-v2-cbor\n", b"&Version=2011-06-15"),
    *(b"content-type: application/x-www-form-urlencoded\n", b".member.1", b"Action=", b"/endpoints/a/invocations"),
    *(
        b"EndpointConfigName",
        b"ProductionVariants",
        b"InitialInstanceCount",
        b"\xbf",
        b"\xff",
        b"\xfb\x7f\xf0",
        b"\xc1",
    ),
    b"authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/sts/aws4_request\n",
)

TARGETS = (
    Target("aws-call", _call, (AwsError,), words=_CALL_WORDS),
    Target(
        "signature",
        _signature,
        (AwsError,),
        _signed_seeds,
        words=(
            b"X-Amz-Date=",
            b"X-Amz-Expires=",
            b"X-Amz-SignedHeaders=",
            b"authorization: AWS ",
            b"%2F",
            b"//",
            b"/../",
        ),
    ),
    Target(
        "bearer-token", _token, (AwsError,), _token_seeds, words=(b"sagemaker-api-key-", SECRET.encode(), b"==", b"-_")
    ),
    Target(
        "session-token",
        _session,
        (),
        lambda: {
            "issued": sessions.issue(sessions.Session(key=ACCESS_KEY, expires_s=int(SIGNED_S)), SECRET).token.encode(),
            "none": b"",
        },
        words=(b".", b"==", b"-_", base64.b64encode(b'{"key":"a","expires_s":1}')),
        suite_cases=300,
    ),
    Target(
        "page-token",
        _page,
        (AwsError,),
        lambda: {str(key): base64.b64encode(key) for key in (b'["l", 4]', b'["l", "a"]', b'["l", NaN]', b'["l"]')},
        words=(b"W10=", base64.b64encode(b'["l", 9e999]'), base64.b64encode(b'["l", true]')),
        suite_cases=300,
    ),
    Target("gzip-body", _gzip, (AwsError,), lambda: {"small": gzip.compress(b"{}" * 50, mtime=0)}, suite_cases=400),
    Target(
        "aws-chunked",
        _chunked,
        (BadChunk,),
        lambda: dict(zip(("signed", "plain"), _CHUNKS, strict=True)),
        words=(b"\r\n", b"0\r\n\r\n", b"ffffffff", b";chunk-signature=", b"00000000000000001"),
    ),
    Target(
        "s3-upload",
        _upload,
        (AwsError,),
        lambda: {"unsigned": _UPLOAD, "signed": _SIGNED_UPLOAD},
        words=(
            b"content-length: ",
            b"transfer-encoding: chunked\n",
            b"\xb2",
            b"9" * 5000,
            b"x-amz-trailer: x-amz-checksum-sha1\n",
        ),
    ),
    Target("event-stream", _frames, (), lambda: {"text": b"data: {}\n\n"}, suite_cases=300),
)
