"""Where objects are."""

import pytest

from headrace.gateway.objects import ObjectFailed, S3Objects, split_uri


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://bucket/key", ("bucket", "key")),
        ("s3://bucket/a/b c?d#e%20f", ("bucket", "a/b c?d#e%20f")),
        ("https://bucket.s3.us-east-1.amazonaws.com/a%20b/c", ("bucket", "a b/c")),
        ("https://my.bucket.s3.amazonaws.com/k", ("my.bucket", "k")),
        ("https://s3.eu-west-1.amazonaws.com/bucket/k/l", ("bucket", "k/l")),
        ("https://s3.cn-north-1.amazonaws.com.cn/bucket/k", ("bucket", "k")),
    ],
)
def test_places_of_objects_are_read(uri, place):
    assert split_uri(uri) == place


@pytest.mark.parametrize(
    "uri", ["s3://bucket", "s3://bucket/", "s3:///key", "https://example.com/a/b", "file:///etc/passwd", "key", ""]
)
def test_other_places_are_refused(uri):
    with pytest.raises(ObjectFailed, match="Wanted: s3://bucket/key"):
        split_uri(uri)


async def test_a_storage_that_is_not_there_is_told_in_one_sentence():
    objects = S3Objects(
        {
            "endpoint_url": "http://127.0.0.1:1",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
            "region_name": "us-east-1",
        }
    )
    try:
        with pytest.raises(ObjectFailed, match="s3://b/k cannot be written: Could not connect"):
            await objects.put("s3://b/k", b"x", content_type="text/plain")
        with pytest.raises(ObjectFailed, match="s3://b/k cannot be read: Could not connect"):
            await objects.get("s3://b/k", max_bytes=1)
    finally:
        await objects.close()
