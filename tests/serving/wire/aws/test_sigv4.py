"""Only signatures that botocore would make are accepted."""

import hashlib
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.serving.wire.aws.signing import ACCESS_KEY, SECRETS, changed, client, sent_by, signed

TARGET = {"X-Amz-Target": "SageMaker.ListModels", "Content-Type": "application/x-amz-json-1.1"}
FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
PATHS = ["/", "/endpoints/a%20b/invocations", "/a//b/./c/../d", "/a/%7Euser/~x", "/caf%C3%A9"]


def signed_s(request):
    """The time at which a request says that it was signed."""
    stamp = request.headers.get("x-amz-date") or request.query.partition("X-Amz-Date=")[2][:16]
    return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def verify(request, *, secret_of=SECRETS.get, after_s=0.0):
    return sigv4.verify(request, secret_of, signed_s(request) + after_s)


def refused(request, **options):
    with pytest.raises(AwsError) as caught:
        verify(request, **options)
    return caught.value.code, caught.value.http_status


def call(**options):
    return signed("header", "sagemaker", headers=TARGET, body=b'{"MaxResults": 5}', **options)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", [None, "session/token=="])
@pytest.mark.parametrize(
    ("kind", "service"), [("header", "sagemaker"), ("query", "sagemaker"), ("s3-header", "s3"), ("s3-query", "s3")]
)
def test_a_signed_request_is_accepted(kind, service, path, token):
    if "query" in kind:
        request = signed(kind, service, method="GET", path=path + "?z=1&a=b%20c&a=a", token=token)
    else:
        headers = (
            TARGET if service == "sagemaker" and not path.startswith("/endpoints") else {"X-Amz-Meta-A": "  b   c "}
        )
        request = signed(
            kind, service, path=path + "?z=1&a=b%20c&a&delete", headers=headers, body=b"x" * 9, token=token
        )

    identity = verify(request)

    assert (identity.access_key, identity.region, identity.service) == (ACCESS_KEY, "us-east-1", service)
    assert sigv4.access_key_of(request) == ACCESS_KEY


@pytest.fixture(scope="module")
def requests():
    """Requests that boto3 really sends for calls of every service, by http and https."""
    made = {}
    for url in ("http://127.0.0.1:8080", "https://localhost:8443"):
        for name, request in _requests(url):
            made[f"{name} {url.partition(':')[0]}"] = request
    return made


def _requests(url):
    def make(service, **config):
        return client(service, endpoint_url=url, **config)

    sagemaker, runtime, s3 = make("sagemaker"), make("sagemaker-runtime"), make("s3")
    yield "list", sent_by(sagemaker.list_models, MaxResults=5)
    yield (
        "invoke",
        sent_by(
            runtime.invoke_endpoint, EndpointName="e", Body=b"{}", CustomAttributes="accept_eula=true", Accept="*/*"
        ),
    )
    yield "stream", sent_by(runtime.invoke_endpoint_with_response_stream, EndpointName="e", Body="é{}")
    yield "sts", sent_by(make("sts").get_caller_identity)
    yield "iam", sent_by(make("iam").get_role, RoleName="r")
    yield "logs", sent_by(make("logs").filter_log_events, logGroupName="g")
    yield "scaling", sent_by(make("application-autoscaling").describe_scaling_activities, ServiceNamespace="sagemaker")
    yield "cloudwatch", sent_by(make("cloudwatch").describe_alarms)
    yield "put", sent_by(s3.put_object, Bucket="bucket", Key="a é+b/~c d.txt", Body=b"data", Metadata={"a": "b"})
    yield "get", sent_by(s3.get_object, Bucket="bucket", Key="dir/+ü (1).bin", Range="bytes=0-1")
    yield "objects", sent_by(s3.list_objects, Bucket="bucket", Prefix="a/b c+é")
    yield "delete", sent_by(s3.delete_objects, Bucket="bucket", Delete={"Objects": [{"Key": "a"}]})
    yield "buckets", sent_by(s3.list_buckets)
    yield "upload", sent_by(s3.create_multipart_upload, Bucket="bucket", Key="k")


def test_requests_of_boto3_are_accepted(requests):
    for name, request in requests.items():
        identity = verify(request)

        assert identity.access_key == ACCESS_KEY, name
    assert len(requests) == 28


def test_requests_of_boto3_are_refused_with_another_secret(requests):
    for request in requests.values():
        code, status = refused(request, secret_of={ACCESS_KEY: "other"}.get)

        assert code in ("InvalidSignatureException", "SignatureDoesNotMatch")
        assert status in (400, 403)


def test_a_presigned_url_of_s3_is_accepted():
    s3 = client("s3", signature_version="s3v4")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "a é+b"}, ExpiresIn=60)
    path, _, query = url.removeprefix("http://127.0.0.1:8080").partition("?")
    request = HttpRequest("GET", path, query, {"host": "127.0.0.1:8080", "range": "bytes=0-1"})

    assert verify(request, after_s=59).access_key == ACCESS_KEY
    assert refused(request, after_s=61) == ("AccessDenied", 403)
    assert refused(changed(request, method="PUT")) == ("SignatureDoesNotMatch", 403)
    assert refused(changed(request, path="/b/other")) == ("SignatureDoesNotMatch", 403)
    assert refused(changed(request, query=query.replace("Expires=60", "Expires=61"))) == ("SignatureDoesNotMatch", 403)


def test_the_digest_of_an_s3_body_is_returned():
    signed_body = signed("s3-header", "s3", method="PUT", path="/b/k", body=b"data")
    unsigned = changed(signed_body, body=b"streamed, not looked at")

    assert verify(unsigned).body_sha256 == "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
    assert verify(call()).body_sha256 is None
    assert verify(signed("s3-query", "s3", method="PUT", path="/b/k")).body_sha256 is None


@pytest.mark.parametrize(
    "change",
    [
        {"body": b'{"MaxResults": 6}'},
        {"path": "/other"},
        {"query": "a=1"},
        {"method": "PUT"},
        {"headers": {"content-type": "text/plain"}},
        {"headers": {"x-amz-target": "SageMaker.ListEndpoints"}},
        {"headers": {"host": "elsewhere"}},
        {"headers": {"x-amz-date": "20990101T000000Z"}},
    ],
)
def test_a_changed_request_is_refused(change):
    request = call()

    with pytest.raises(AwsError):
        sigv4.verify(changed(request, **change), SECRETS.get, signed_s(request))


def test_headers_that_affect_the_request_must_be_signed():
    request = signed("header", "sagemaker", body=b"{}")

    with pytest.raises(AwsError, match="These headers must be signed: x-amz-security-token, x-amz-target"):
        verify(changed(request, headers={"x-amz-target": "SageMaker.ListModels", "x-amz-security-token": "t"}))
    assert verify(changed(call(), headers={"x-amzn-trace-id": "t", "x-amz-user-agent": "js"}))


def test_a_signature_is_valid_for_its_service_only():
    with pytest.raises(AwsError, match="correct service: 'sagemaker'"):
        verify(signed("header", "s3", headers=TARGET, body=b"{}"))
    with pytest.raises(AwsError, match="correct service: 'logs'"):
        verify(signed("header", "sagemaker", headers={"X-Amz-Target": "Logs_20140328.GetLogEvents"}, body=b"{}"))


def test_an_unsigned_body_is_accepted_for_s3_only():
    unsigned = {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}

    assert refused(signed("header", "sagemaker", headers={**TARGET, **unsigned}, body=b"{}"))[0] == (
        "InvalidSignatureException"
    )
    assert verify(signed("header", "s3", method="PUT", path="/b/k", headers=unsigned, body=b"{}")).body_sha256 is None


def test_a_body_that_has_not_the_signed_digest_is_refused():
    claimed = {"X-Amz-Content-SHA256": hashlib.sha256(b"{}").hexdigest()}
    request = signed("header", "sagemaker", headers={**TARGET, **claimed}, body=b"{}")

    assert verify(request).access_key == ACCESS_KEY
    assert refused(changed(request, body=b'{"MaxResults": 6}'))[0] == "InvalidSignatureException"


@pytest.mark.parametrize("after_s", [-900, 0, 900])
def test_a_clock_may_be_off_by_a_quarter_of_an_hour(after_s):
    assert verify(call(), after_s=after_s).access_key == ACCESS_KEY


@pytest.mark.parametrize("after_s", [-901, 901, 1e9])
def test_a_clock_may_not_be_off_by_more(after_s):
    assert refused(call(), after_s=after_s) == ("InvalidSignatureException", 400)
    assert refused(signed("s3-header", "s3"), after_s=after_s) == ("RequestTimeTooSkewed", 403)


def test_the_signature_of_this_moment_is_accepted_now():
    assert sigv4.verify(call(), SECRETS.get, time.time()).access_key == ACCESS_KEY


@pytest.mark.parametrize(
    ("request_", "code", "status"),
    [
        (call(), "UnrecognizedClientException", 400),
        (
            signed("header", "sagemaker", path="/endpoints/e/invocations", body=b"{}"),
            "UnrecognizedClientException",
            403,
        ),
        (signed("header", "sts", body=b"Action=GetCallerIdentity", headers=FORM), "InvalidClientTokenId", 403),
        (signed("s3-header", "s3"), "InvalidAccessKeyId", 403),
    ],
)
def test_an_unknown_key_is_refused_with_the_text_of_the_service(request_, code, status):
    assert refused(request_, secret_of={}.get) == (code, status)


@pytest.mark.parametrize(
    ("request_", "code", "status"),
    [
        (
            HttpRequest("POST", "/", "", {"x-amz-target": "SageMaker.ListModels"}),
            "MissingAuthenticationTokenException",
            400,
        ),
        (HttpRequest("POST", "/endpoints/e/invocations", "", {}), "MissingAuthenticationTokenException", 403),
        (HttpRequest("GET", "/", "Action=GetCallerIdentity", {}), "MissingAuthenticationToken", 403),
        (HttpRequest("GET", "/bucket/key", "", {}), "AccessDenied", 403),
        (HttpRequest("GET", "/bucket/key", "", {"authorization": "Bearer x"}), "AccessDenied", 403),
    ],
)
def test_a_request_without_a_signature_is_refused(request_, code, status):
    with pytest.raises(AwsError) as caught:
        sigv4.verify(request_, SECRETS.get, 0.0)
    assert (caught.value.code, caught.value.http_status) == (code, status)
    assert sigv4.access_key_of(request_) is None


CREDENTIAL = f"Credential={ACCESS_KEY}/20260101/us-east-1/sagemaker/aws4_request"


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 ,,,=,",
        f"AWS4-HMAC-SHA256 {CREDENTIAL}",
        f"AWS4-HMAC-SHA256 {CREDENTIAL}, SignedHeaders=host",
        f"AWS4-HMAC-SHA256 {CREDENTIAL.replace('/sagemaker', '')}, SignedHeaders=host, Signature=0",
        f"AWS4-HMAC-SHA256 {CREDENTIAL.replace('aws4_request', 'aws5')}, SignedHeaders=host, Signature=0",
        f"AWS4-HMAC-SHA256 {CREDENTIAL.replace('20260101', '20260102')}, SignedHeaders=host, Signature=0",
    ],
)
def test_half_a_signature_is_refused(authorization):
    headers = {
        "authorization": authorization,
        "x-amz-date": "20260101T000000Z",
        "x-amz-target": "SageMaker.ListModels",
        "host": "h",
    }

    assert refused(HttpRequest("POST", "/", "", headers))[0] == "IncompleteSignatureException"


@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "20260101",
        "20261301T000000Z",
        "2026-01-01T00:00:00Z",
        "\u0662\u0660\u0662\u0666\u0660\u0661\u0660\u0661T000000Z",
    ],
)
def test_an_invalid_date_is_refused(stamp):
    credential = CREDENTIAL.replace("20260101", stamp[:8])
    headers = {
        "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0",
        "x-amz-date": stamp,
        "host": "h",
    }

    with pytest.raises(AwsError) as caught:
        sigv4.verify(HttpRequest("POST", "/", "", headers), SECRETS.get, 0.0)
    assert caught.value.code == "IncompleteSignatureException"


def test_the_date_header_is_accepted_too():
    request = signed("header", "sagemaker", headers={**TARGET, "Date": "any"}, body=b"{}")
    assert "x-amz-date" not in request.headers

    identity = sigv4.verify(request, SECRETS.get, time.time())

    assert identity.access_key == ACCESS_KEY


def test_no_space_is_needed_between_the_parts():
    request = call()
    authorization = request.headers["authorization"].replace(", ", ",")

    assert verify(changed(request, headers={"authorization": authorization})).access_key == ACCESS_KEY


@pytest.mark.parametrize("expires_s", [1, 604_800])
def test_the_shortest_and_the_longest_lifetime_are_accepted(expires_s):
    request = signed("s3-query", "s3", method="GET", path="/b/k", expires=expires_s)
    assert verify(request).access_key == ACCESS_KEY


def test_at_most_256_headers_may_be_signed():
    accepted = signed("header", "sagemaker", headers={f"x-{number}": "a" for number in range(254)})
    assert len(accepted.headers["authorization"].partition("SignedHeaders=")[2].split(",")[0].split(";")) == 256
    assert verify(accepted).access_key == ACCESS_KEY
    refused_request = signed("header", "sagemaker", headers={f"x-{number}": "a" for number in range(255)})
    assert refused(refused_request) == ("IncompleteSignatureException", 400)


def test_an_access_key_may_contain_slashes(monkeypatch):
    key = "team/a/AKIA"
    monkeypatch.setattr("tests.serving.wire.aws.signing.ACCESS_KEY", key)
    request = signed("header", "sagemaker", headers=TARGET)
    assert verify(request, secret_of=lambda name: SECRETS[ACCESS_KEY] if name == key else None).access_key == key


@pytest.mark.parametrize("expires", ["", "0", "-1", "x", "604801", "9" * 5000, "٣"])
def test_an_invalid_lifetime_is_refused(expires):
    request = signed("s3-query", "s3", method="GET", path="/b/k")
    query = request.query.replace("X-Amz-Expires=3600", f"X-Amz-Expires={expires}")

    assert refused(changed(request, query=query)) == ("AuthorizationHeaderMalformed", 400)


odd = st.text(max_size=30) | st.sampled_from(
    ["AWS4-HMAC-SHA256 ", CREDENTIAL, ", SignedHeaders=host;a, ", "Signature=0"]
)


@given(
    authorization=st.lists(odd, max_size=5).map("".join),
    query=st.lists(
        st.sampled_from(
            [
                "X-Amz-Algorithm=AWS4-HMAC-SHA256",
                "X-Amz-Credential=",
                "a%2F",
                "AWSAccessKeyId=",
                "Signature=",
                "Expires=1",
            ]
        )
        | st.text(max_size=9),
        max_size=8,
    ).map("&".join),
    path=st.text(max_size=9),
    date=st.text(max_size=20) | st.just("20260101T000000Z"),
)
def test_any_invented_signature_is_refused(authorization, query, path, date):
    headers = {"authorization": authorization, "x-amz-date": date, "date": date, "host": "h"}
    request = HttpRequest("GET", path, query, headers)

    sigv4.access_key_of(request)
    with pytest.raises(AwsError):
        sigv4.verify(request, lambda _: "secret", 1_767_225_600.0)


@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "DELETE"])
def test_an_s3_request_must_say_what_was_signed_of_its_body(method):
    other = {"X-Amz-Content-SHA256": "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"}

    assert refused(signed("header", "s3", method=method, path="/b/k")) == ("InvalidRequest", 400)
    for digest in (other, {"X-Amz-Content-SHA256": "x"}, {"X-Amz-Content-SHA256": "A" * 64}):
        assert refused(signed("header", "s3", method=method, path="/b/k", headers=digest)) == ("InvalidArgument", 400)


def test_a_presigned_url_may_have_the_digest_of_its_body():
    digest = hashlib.sha256(b"data").hexdigest()
    plain = signed("s3-query", "s3", method="PUT", path="/b/k")
    query = f"X-Amz-Content-Sha256={digest}"

    assert verify(plain).body_sha256 is None
    assert refused(changed(plain, query=f"{plain.query}&{query}"))[0] == "SignatureDoesNotMatch"
    assert refused(changed(plain, headers={"x-amz-content-sha256": digest}))[0] == "AccessDenied"
