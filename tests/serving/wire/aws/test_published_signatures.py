"""The examples that AWS publishes with their signatures: an oracle that is not botocore."""

from datetime import UTC, datetime

import pytest

from headrace.serving.wire.aws import sigv4
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.serving.wire.aws.signing import changed

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SECRETS = {
    "AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "AKIAIOSFODNN7EXAMPLE": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
BUCKET = "examplebucket.s3.amazonaws.com"


def authorization(credential, headers, signature):
    return f"AWS4-HMAC-SHA256 Credential={credential}/aws4_request,SignedHeaders={headers},Signature={signature}"


IAM = HttpRequest(
    "GET",
    "/",
    "Action=ListUsers&Version=2010-05-08",
    {
        "host": "iam.amazonaws.com",
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "x-amz-date": "20150830T123600Z",
        "authorization": authorization(
            "AKIDEXAMPLE/20150830/us-east-1/iam",
            "content-type;host;x-amz-date",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    },
)
VANILLA = HttpRequest(
    "GET",
    "/",
    "",
    {
        "host": "example.amazonaws.com",
        "x-amz-date": "20150830T123600Z",
        "authorization": authorization(
            "AKIDEXAMPLE/20150830/us-east-1/service",
            "host;x-amz-date",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
    },
)
S3_GET = HttpRequest(
    "GET",
    "/test.txt",
    "",
    {
        "host": BUCKET,
        "range": "bytes=0-9",
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": "20130524T000000Z",
        "authorization": authorization(
            "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3",
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    },
)
S3_PUT = HttpRequest(
    "PUT",
    "/test$file.text",
    "",
    {
        "host": BUCKET,
        "date": "Fri, 24 May 2013 00:00:00 GMT",
        "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "authorization": authorization(
            "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3",
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
    },
)
S3_LIST = HttpRequest(
    "GET",
    "/",
    "max-keys=2&prefix=J",
    {
        "host": BUCKET,
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": "20130524T000000Z",
        "authorization": authorization(
            "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3",
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    },
)
S3_PRESIGNED = HttpRequest(
    "GET",
    "/test.txt",
    "X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    {"host": BUCKET},
)
EXAMPLES = {
    "iam": IAM,
    "vanilla": VANILLA,
    "s3-get": S3_GET,
    "s3-put": S3_PUT,
    "s3-list": S3_LIST,
    "s3-presigned": S3_PRESIGNED,
}


def verify(request):
    stamp = request.headers.get("x-amz-date", "20130524T000000Z")
    signed_s = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    return sigv4.verify(request, SECRETS.get, signed_s)


@pytest.mark.parametrize("request_", EXAMPLES.values(), ids=EXAMPLES)
def test_a_published_example_is_accepted_and_no_other_path(request_):
    assert verify(request_).access_key in SECRETS
    with pytest.raises(AwsError):
        verify(changed(request_, path="/other"))
