"""Addresses of objects, and S3 by boto3."""

import asyncio
import tempfile
from typing import Any

import pytest
from botocore.config import Config

from headrace.platform.gateway.objects import (
    MAX_CALLS,
    FoundObject,
    ObjectFailed,
    ObjectsUnavailable,
    S3Objects,
    split_uri,
)
from tests.waiting import WAIT_S

from .workers import Asked, Exchange, Worker


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
def test_addresses_of_objects_are_parsed(uri, place):
    assert split_uri(uri) == place


@pytest.mark.parametrize(
    "uri", ["s3://bucket", "s3://bucket/", "s3:///key", "https://example.com/a/b", "file:///etc/passwd", "key", ""]
)
def test_other_addresses_are_refused(uri):
    with pytest.raises(ObjectFailed, match="expected s3://bucket/key"):
        split_uri(uri)


def objects_at(url: str, **options: Any) -> S3Objects:
    return S3Objects(
        {
            "endpoint_url": url,
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
            "region_name": "us-east-1",
            **options,
        }
    )


async def test_an_unreachable_storage_is_one_clear_error():
    objects = objects_at("http://127.0.0.1:1")
    try:
        with pytest.raises(ObjectsUnavailable, match="s3://b/k cannot be written: Could not connect"):
            await objects.put("s3://b/k", b"x", content_type="text/plain")
        with pytest.raises(ObjectsUnavailable, match="s3://b/k cannot be read: Could not connect"):
            await objects.get("s3://b/k", max_bytes=1)
    finally:
        await objects.close()


async def test_a_missing_object_of_a_bucket_of_aws_is_explained():
    async def storage(exchange: Exchange) -> None:
        exchange.raw(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        raise ConnectionResetError  # no connection is left for the end of the test

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url, config=Config(retries={"total_max_attempts": 1}))
    try:
        for reading in (objects.describe, lambda uri: objects.get(uri, max_bytes=1)):
            with pytest.raises(ObjectFailed, match=r"s3://djl-ai/a cannot be read: .* djl-ai is a bucket of AWS"):
                await reading("s3://djl-ai/a")
            with pytest.raises(ObjectFailed) as other:
                await reading("s3://mine/a")
            assert "of AWS" not in str(other.value)
    finally:
        await objects.close()
        await worker.stop()


@pytest.mark.parametrize(
    ("uri", "paths"),
    [
        ("s3://b/é 日+.json", ["/b/%C3%A9%20%E6%97%A5%2B.json"]),
        ("s3://b/%C3%A9%20%2B.json", ["/b/%25C3%25A9%2520%252B.json", "/b/%C3%A9%20%2B.json"]),
        ("s3://b/a%2520b", ["/b/a%252520b", "/b/a%2520b"]),
        ("s3://b/50%", ["/b/50%25"]),
        ("https://b.s3.us-east-1.amazonaws.com/%C3%A9", ["/b/%C3%A9"]),
    ],
)
async def test_a_key_is_read_as_it_is_given_or_else_percent_decoded(uri, paths):
    async def storage(exchange: Exchange) -> None:
        if exchange.asked.path == paths[-1]:
            exchange.whole(b"found")
        else:
            exchange.whole(b"<Error><Code>NoSuchKey</Code></Error>", status="404 Not Found")

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url)
    try:
        assert await objects.get(uri, max_bytes=5) == b"found"
        assert [asked.path for asked in worker.asked] == paths
    finally:
        await objects.close()
        await worker.stop()


async def test_an_object_is_described_without_reading_it():
    async def storage(exchange: Exchange) -> None:
        assert exchange.asked.method == "HEAD"
        status = {"/bucket/none": "404 Not Found", "/bucket/busy": "429 Too Many Requests"}
        kind = "binary/octet-stream" if exchange.asked.path == "/bucket/untyped" else "text/csv"
        headers = f"content-length: 300000000\r\ncontent-type: {kind}\r\nx-amz-meta-of: an id"
        exchange.raw(f"HTTP/1.1 {status.get(exchange.asked.path, '200 OK')}\r\n{headers}\r\n\r\n".encode())

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url, config=Config(retries={"total_max_attempts": 1}))
    try:
        assert await objects.describe("s3://bucket/key") == (300_000_000, "text/csv")
        assert await objects.describe("s3://bucket/untyped") == (300_000_000, "")
        assert await objects.metadata("s3://bucket/key") == {"of": "an id"}
        with pytest.raises(ObjectFailed, match=r"s3://bucket/none cannot be read: .*404.*Not Found") as missing:
            await objects.describe("s3://bucket/none")
        assert not isinstance(missing.value, ObjectsUnavailable)
        with pytest.raises(ObjectsUnavailable, match="s3://bucket/busy cannot be read"):
            await objects.describe("s3://bucket/busy")
    finally:
        await objects.close()
        await worker.stop()


async def test_objects_are_listed_and_read_in_parts_unless_they_were_replaced():
    listing = (
        b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated><Contents>'
        b"<Key>in/a</Key><Size>9</Size><ETag>&quot;e&quot;</ETag></Contents></ListBucketResult>"
    )

    async def storage(exchange: Exchange) -> None:
        asked = exchange.asked
        if "list-type=2" in asked.path:
            exchange.whole(listing, content_type="application/xml")
        elif asked.headers["if-match"] == '"e"':
            exchange.whole(asked.headers["range"].encode(), status="206 Partial Content")
        else:
            exchange.whole(b"", status="412 Precondition Failed")

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url)
    try:
        assert await objects.list("bucket", "in/") == [FoundObject(key="in/a", num_bytes=9, etag='"e"')]
        assert "prefix=in%2F" in worker.asked[0].path
        assert await objects.part("s3://bucket/in/a", first=4, num_bytes=4, etag='"e"') == b"bytes=4-7"
        with pytest.raises(ObjectFailed, match=r"s3://bucket/in/a cannot be read: .*412"):
            await objects.part("s3://bucket/in/a", first=4, num_bytes=4, etag='"old"')
    finally:
        await objects.close()
        await worker.stop()


async def test_objects_are_written_and_read_and_large_ones_refused():
    kept: dict[str, Asked] = {}

    async def storage(exchange: Exchange) -> None:
        asked = exchange.asked
        if asked.method == "PUT":
            kept[asked.path] = asked
            exchange.whole(b"")
        elif asked.path in kept:
            exchange.whole(kept[asked.path].body)
        else:
            error = b"<Error><Code>NoSuchKey</Code><Message>No such key.</Message></Error>"
            exchange.whole(error, status="404 Not Found", content_type="application/xml")

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url)
    try:
        await objects.put("s3://bucket/a b.out", b"answer", content_type="application/json", metadata={"of": "an id"})
        sent = kept["/bucket/a%20b.out"].headers
        assert (sent["content-type"], sent["x-amz-meta-of"]) == ("application/json", "an id")
        assert await objects.get("s3://bucket/a b.out", max_bytes=6) == b"answer"
        with tempfile.TemporaryFile() as file:
            file.write(b"long answer")
            for _ in range(2):  # from its beginning each time
                await objects.put("s3://bucket/file", file, content_type="text/plain")
                assert kept.pop("/bucket/file").body == b"long answer"
        with pytest.raises(ObjectFailed, match="has 6 bytes; expected at most 5"):
            await objects.get("s3://bucket/a b.out", max_bytes=5)
        with pytest.raises(ObjectFailed, match=r"s3://bucket/none cannot be read: .*NoSuchKey") as missing:
            await objects.get("s3://bucket/none", max_bytes=5)
        assert not isinstance(missing.value, ObjectsUnavailable)
    finally:
        await objects.close()
        await worker.stop()


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests"])
async def test_a_storage_that_cannot_serve_now_is_unavailable(status):
    async def storage(exchange: Exchange) -> None:
        error = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
        exchange.whole(error, status=status, content_type="application/xml")

    worker = Worker(storage)
    await worker.start()
    objects = objects_at(worker.url, config=Config(retries={"total_max_attempts": 1}))
    try:
        with pytest.raises(ObjectsUnavailable, match=r"s3://bucket/key cannot be written: .*SlowDown"):
            await objects.put("s3://bucket/key", b"x", content_type="text/plain")
    finally:
        await objects.close()
        await worker.stop()


async def never_answer(exchange: Exchange) -> None:
    await exchange.until_gone()


async def test_a_storage_that_hangs_is_unavailable():
    worker = Worker(never_answer)
    await worker.start()
    objects = objects_at(worker.url, config=Config(read_timeout=0.05))
    try:
        with pytest.raises(ObjectsUnavailable, match="s3://b/k cannot be read: Read timeout"):
            await objects.get("s3://b/k", max_bytes=1)
        assert len(worker.asked) == 2, "it is tried twice"
    finally:
        await objects.close()
        await worker.stop()


async def test_a_storage_that_hangs_holds_up_only_its_own_calls():
    worker = Worker(never_answer)
    await worker.start()
    objects = objects_at(worker.url, config=Config(read_timeout=WAIT_S))
    calls = [asyncio.create_task(objects.get("s3://b/k", max_bytes=1)) for _ in range(10 * MAX_CALLS)]
    try:
        async with asyncio.timeout(WAIT_S):
            while len(worker.asked) < MAX_CALLS:
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(lambda: "done") == "done"
        await objects.close()
        assert not any(call.done() and not call.cancelled() for call in calls), "close waits for none of them"
    finally:
        await objects.close()
        await worker.stop()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in ended} == {ObjectsUnavailable, asyncio.CancelledError}
