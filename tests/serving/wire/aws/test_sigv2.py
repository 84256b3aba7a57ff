"""Presigned URLs of version 2, which boto3 makes for an endpoint that is not AWS's own."""

import pytest

from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.serving.wire.aws.signing import ACCESS_KEY, SECRETS, URL, changed, client

ACTIONS = [
    ("GET", "get_object", {"Bucket": "bucket", "Key": "dir/a é+b.txt"}),
    ("PUT", "put_object", {"Bucket": "bucket", "Key": "k"}),
    ("PUT", "upload_part", {"Bucket": "bucket", "Key": "k", "UploadId": "u", "PartNumber": 1}),
    ("GET", "list_objects", {"Bucket": "bucket"}),
    ("GET", "get_object", {"Bucket": "b", "Key": "k", "ResponseContentType": "text/plain; charset=utf-8"}),
    ("GET", "list_buckets", {}),
]


def presigned(method, action, params, *, token=None):
    url = client("s3", token=token).generate_presigned_url(action, Params=params, ExpiresIn=60)
    assert "AWSAccessKeyId" in url
    path, _, query = url.removeprefix(URL).partition("?")
    return HttpRequest(method, path, query, {"host": "127.0.0.1:8080"})


def expires_s(request):
    return int(request.query.partition("Expires=")[2].partition("&")[0])


def refused(request, *, secret_of=SECRETS.get, after_s=0):
    with pytest.raises(AwsError) as caught:
        sigv4.verify(request, secret_of, expires_s(request) + after_s)
    return caught.value.code


@pytest.mark.parametrize("token", [None, "session/token=="])
@pytest.mark.parametrize(("method", "action", "params"), ACTIONS, ids=[action for _, action, _ in ACTIONS])
def test_signatures_of_boto3_are_accepted(method, action, params, token):
    request = presigned(method, action, params, token=token)

    identity = sigv4.verify(request, SECRETS.get, expires_s(request))

    assert (identity.access_key, identity.service, identity.body_sha256) == (ACCESS_KEY, "s3", None)
    assert sigv4.access_key_of(request) == ACCESS_KEY


def test_a_changed_url_is_refused():
    request = presigned(*ACTIONS[0])

    assert refused(changed(request, method="PUT")) == "SignatureDoesNotMatch"
    assert refused(changed(request, path="/bucket/other")) == "SignatureDoesNotMatch"
    assert refused(changed(request, query=request.query + "&versionId=1")) == "SignatureDoesNotMatch"
    assert refused(changed(request, headers={"x-amz-acl": "public"})) == "SignatureDoesNotMatch"
    assert refused(request, secret_of={ACCESS_KEY: "other"}.get) == "SignatureDoesNotMatch"
    assert refused(request, secret_of={}.get) == "InvalidAccessKeyId"
    assert refused(request, after_s=1) == "AccessDenied"


def test_it_is_valid_for_s3_only():
    request = presigned("POST", *ACTIONS[0][1:])

    with pytest.raises(AwsError) as caught:
        sigv4.verify(changed(request, path="/endpoints/e/invocations"), SECRETS.get, expires_s(request))
    assert caught.value.code == "MissingAuthenticationTokenException"


def test_a_url_is_valid_for_seven_days_at_most():
    request, week_s = presigned(*ACTIONS[0]), 7 * 24 * 3600

    assert sigv4.verify(request, SECRETS.get, expires_s(request) - week_s).access_key == ACCESS_KEY
    for before_s in (week_s + 1, 365 * 24 * 3600):
        assert refused(request, after_s=-before_s) == "AuthorizationHeaderMalformed"


def test_a_header_that_differs_from_the_signed_one_is_refused():
    params = {"Bucket": "b", "Key": "k", "ContentType": "text/plain", "Metadata": {"a": "b"}}
    request = presigned("PUT", "put_object", params)
    same = {"content-type": "text/plain", "x-amz-meta-a": "b"}

    assert sigv4.verify(changed(request, headers=same), SECRETS.get, expires_s(request)).access_key == ACCESS_KEY
    for other in ({"content-type": "text/html"}, {"x-amz-meta-a": "c"}, {"x-amz-acl": "public-read"}):
        assert refused(changed(request, headers={**same, **other})) == "SignatureDoesNotMatch", other


@pytest.mark.parametrize("query", ["AWSAccessKeyId=&Signature=", "AWSAccessKeyId=a&Signature=b&Expires=x"])
def test_half_a_signature_is_refused(query):
    with pytest.raises(AwsError) as caught:
        sigv4.verify(HttpRequest("GET", "/b/k", query, {}), SECRETS.get, 0.0)
    assert caught.value.code == "AuthorizationHeaderMalformed"
