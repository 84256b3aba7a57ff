"""The embedded S3 server through the platform's proxy, with boto3, as SDKs use it; and its life."""

import base64
import hashlib
import json
import os
import re
import socket
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.platform.storage.object_storage import (
    ExternalStorage,
    ObjectStorage,
    make_storage,
)
from headrace.platform.storage.s3_proxy import ISOLATION_HEADERS
from headrace.platform.storage.s3_signing import S3Access
from headrace.serving.artifacts.fetch_bounds import Deadline
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ArtifactSource, ObjectLocation
from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import MIB, Proxied, proxied


def test_an_object_is_read_back(s3: Proxied) -> None:
    body = os.urandom(3 * MIB + 17)
    s3.put("a key/with ünicode + and (signs)~", body)
    assert s3.get("a key/with ünicode + and (signs)~") == body
    assert s3.get("a key/with ünicode + and (signs)~", Range="bytes=-7") == body[-7:]
    head = s3.client.head_object(Bucket="bucket", Key="a key/with ünicode + and (signs)~")
    assert head["ContentLength"] == len(body)


def test_a_missing_bucket_of_aws_is_explained_whatever_asks_for_it(s3: Proxied) -> None:
    bucket, key = "sagemaker-example-files-prod-us-east-1", "datasets/churn.txt"
    asked = {
        "get_object": {"Key": key},
        "list_objects": {},
        "list_objects_v2": {"Prefix": "datasets/"},
        "put_object": {"Key": key, "Body": b"x"},
        "get_bucket_location": {},
        "create_multipart_upload": {"Key": key},
    }
    for operation, more in asked.items():
        with pytest.raises(ClientError, match=f"does not exist. {bucket} is a bucket of AWS, .*upload") as caught:
            getattr(s3.client, operation)(Bucket=bucket, **more)
        assert caught.value.response["Error"]["Code"] == "NoSuchBucket", operation
    for operation, more in {"head_object": {"Key": key}, "head_bucket": {}}.items():
        with pytest.raises(ClientError) as caught:
            getattr(s3.client, operation)(Bucket=bucket, **more)
        headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert (headers["x-amz-error-code"], bucket in headers["x-amz-error-message"]) == ("NoSuchBucket", True)
    s3.client.create_bucket(Bucket=bucket)
    try:
        with pytest.raises(s3.client.exceptions.NoSuchKey) as missing:
            s3.client.get_object(Bucket=bucket, Key=key)
        assert "of AWS" not in str(missing.value)
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"x")
        with s3.client.get_object(Bucket=bucket, Key=key)["Body"] as body:
            assert body.read() == b"x"
        s3.client.delete_object(Bucket=bucket, Key=key)
    finally:
        s3.client.delete_bucket(Bucket=bucket)
    with pytest.raises(ClientError) as other:
        s3.client.get_object(Bucket="of-a-user", Key=key)
    assert "of AWS" not in str(other.value)


def test_a_page_that_is_stored_as_an_object_runs_no_scripts(s3: Proxied) -> None:
    s3.client.put_object(Bucket="bucket", Key="page", Body=b"<script>", ContentType="text/html")
    answer = plain_http.get(f"{s3.url}/bucket/page", timeout=WAIT_S)
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-security-policy"].endswith("; sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_page_of_another_site_can_load_what_the_storage_answers(s3: Proxied) -> None:
    """Objects, parts of them, lists, errors, and answers without a body."""
    s3.client.put_object(Bucket="bucket", Key="script", Body=b"alert(1)", ContentType="text/javascript")
    cors = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    s3.client.put_bucket_cors(Bucket="bucket", CORSConfiguration=cors)
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    requests: tuple[tuple[str, str, dict[str, str], int], ...] = (
        ("GET", "/bucket/script", {}, 200),
        ("HEAD", "/bucket/script", {}, 200),
        ("GET", "/bucket/script", {"Range": "bytes=0-1"}, 206),
        ("GET", "/bucket/script?response-content-type=text/html", {}, 200),
        ("GET", "/bucket/missing", {}, 404),
        ("GET", "/missing/key", {}, 404),
        ("GET", "/bucket?list-type=2", {}, 200),
        ("GET", "/", {}, 200),
        ("PUT", "/bucket/other", {"X-Amz-Content-SHA256": "0" * 64}, 400),
    )
    for method, path, headers, status in requests:
        answer = plain_http.request(method, s3.url + path, headers={**foreign, **headers}, timeout=WAIT_S)
        assert answer.status_code == status, (method, path, answer.text)
        for name, value in ISOLATION_HEADERS:
            assert answer.headers.get_list(name) == [value], (method, path, name)
        assert not [name for name in answer.headers if name.startswith("access-control-allow")], path


@pytest.mark.parametrize(
    ("listener", "method", "path"),
    [
        ("master", "GET", "/col/delete?collection=bucket"),
        ("master", "POST", "/submit"),
        ("master", "GET", "/dir/assign"),
        ("filer", "GET", "/buckets/bucket/guarded"),
        ("filer", "POST", "/buckets/bucket/guarded"),
        ("filer", "DELETE", "/buckets/bucket/guarded"),
        ("volume", "GET", "/1,01637037d6"),
        ("volume", "POST", "/1,01637037d6"),
        ("volume", "DELETE", "/1,01637037d6"),
        ("s3", "GET", "/bucket/guarded"),
        ("s3", "DELETE", "/bucket/guarded"),
    ],
)
def test_no_listener_of_the_storage_serves_who_has_no_key(s3: Proxied, listener: str, method: str, path: str) -> None:
    assert s3.folder is not None
    port = json.loads((s3.folder / "state.json").read_bytes())["ports"][listener]
    s3.put("guarded", b"mine")
    body = {"content": b"x"} if method == "POST" else {}
    refused = plain_http.request(method, f"http://127.0.0.1:{port}{path}", timeout=WAIT_S, **body)
    assert refused.status_code in (401, 403, 404)
    assert s3.get("guarded") == b"mine"


def test_an_empty_object_and_metadata_are_read_back(s3: Proxied) -> None:
    s3.client.put_object(Bucket="bucket", Key="empty", Body=b"", Metadata={"made": "by"}, ContentType="text/plain")
    head = s3.client.head_object(Bucket="bucket", Key="empty")
    assert (head["ContentLength"], head["Metadata"], head["ContentType"]) == (0, {"made": "by"}, "text/plain")


def test_objects_have_the_content_type_that_s3_would_give_them(s3: Proxied) -> None:
    client, source = s3.client, {"Bucket": "bucket", "Key": "typed/a.csv"}
    client.put_object(Bucket="bucket", Key="typed/a.json", Body=b"{}")
    client.put_object(**source, Body=b"1", ContentType="text/csv")
    client.copy_object(Bucket="bucket", Key="typed/copy", CopySource=source)
    client.copy_object(Bucket="bucket", Key="typed/new", CopySource=source, MetadataDirective="REPLACE")
    parts = client.create_multipart_upload(Bucket="bucket", Key="typed/parts")["UploadId"]
    part = client.upload_part(Bucket="bucket", Key="typed/parts", UploadId=parts, PartNumber=1, Body=b"{}")
    uploaded = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    client.complete_multipart_upload(Bucket="bucket", Key="typed/parts", UploadId=parts, MultipartUpload=uploaded)
    names = ("a.json", "a.csv", "copy", "new", "parts")
    found = {name: client.head_object(Bucket="bucket", Key=f"typed/{name}")["ContentType"] for name in names}
    untyped = dict.fromkeys(names, "binary/octet-stream")
    assert found == untyped | {"a.csv": "text/csv", "copy": "text/csv"}


def test_missing_objects_are_reported_as_sdks_expect(s3: Proxied) -> None:
    for call, code in (
        (lambda: s3.client.head_bucket(Bucket="no-such-bucket"), "404"),
        (lambda: s3.get("no/such/key"), "NoSuchKey"),
        (lambda: s3.client.head_object(Bucket="bucket", Key="no"), "404"),
    ):
        with pytest.raises(ClientError) as caught:
            call()
        assert caught.value.response["Error"]["Code"] == code


def test_objects_are_listed_in_pages_and_deleted(s3: Proxied) -> None:
    keys = [f"list/{number:03}" for number in range(12)]
    for key in keys:
        s3.put(key, b"x")
    pages = s3.client.get_paginator("list_objects_v2").paginate(
        Bucket="bucket", Prefix="list/", PaginationConfig={"PageSize": 5}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys
    assert len(s3.client.list_objects(Bucket="bucket", Prefix="list/")["Contents"]) == 12
    s3.client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in keys]})
    assert "Contents" not in s3.client.list_objects_v2(Bucket="bucket", Prefix="list/")


def test_buckets_are_as_strict_as_aws(s3: Proxied) -> None:
    s3.put("keeps the bucket", b"x")
    assert s3.client.create_bucket(Bucket="bucket")["Location"] == "/bucket"  # an error in other regions than us-east-1
    for call, code in (
        (lambda: s3.client.delete_bucket(Bucket="bucket"), "BucketNotEmpty"),
        (lambda: s3.client.put_object(Bucket="not-made", Key="key", Body=b"x"), "NoSuchBucket"),
    ):
        with pytest.raises(ClientError) as caught:
            call()
        assert caught.value.response["Error"]["Code"] == code


def test_a_header_that_s3_does_not_allow_is_the_clients_fault(s3: Proxied) -> None:
    response = plain_http.put(f"{s3.url}/bucket/odd", content=b"x", headers={"Content-Type": b"\xe9"}, timeout=WAIT_S)
    assert response.status_code == 400


def test_a_request_through_a_proxy_is_stored(s3: Proxied) -> None:
    proxy = {"X-Forwarded-Host": "llm.example.com", "X-Forwarded-Proto": "https", "X-Forwarded-Port": "443"}
    response = plain_http.put(f"{s3.url}/bucket/proxied", content=b"x", headers=proxy, timeout=WAIT_S)
    assert response.status_code == 200, response.text
    assert s3.get("proxied") == b"x"


def test_encryption_with_keys_of_aws_is_accepted_as_sdks_ask_for_it(s3: Proxied) -> None:
    asked = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/any", "BucketKeyEnabled": True}
    s3.client.put_object(Bucket="bucket", Key="encrypted", Body=b"code", **asked)
    assert s3.get("encrypted") == b"code"


def test_large_files_go_up_and_down_in_parts(s3: Proxied, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(20 * MIB))
    s3.client.upload_file(str(source), "bucket", "large")
    s3.client.download_file("bucket", "large", str(target))
    assert hashlib.sha256(source.read_bytes()).digest() == hashlib.sha256(target.read_bytes()).digest()


def test_an_object_is_copied_within_the_server(s3: Proxied) -> None:
    s3.put("original", b"content")
    s3.client.copy_object(Bucket="bucket", Key="copied", CopySource={"Bucket": "bucket", "Key": "original"})
    assert s3.get("copied") == b"content"


def test_a_worker_reads_the_granted_object_and_no_other_one_with_its_url(s3: Proxied, tmp_path: Path) -> None:
    content = os.urandom(20 * MIB)
    s3.put("model a/w+1.bin", content)
    s3.put("secret", b"of another model")
    assert s3.access is not None
    source = ArtifactSource(uri="s3://bucket/model a/", is_prefix=True)
    grants = ObjectGrants(s3.access).for_worker(WorkerSpec(name="w", artifacts=(source,)))
    with closing(GrantedObjects(grants, Deadline(WAIT_S))) as objects:
        (stored,) = objects.list_prefix(ObjectLocation("bucket", "model a/"))
        counted: list[int] = []
        objects.download(stored, tmp_path / "w", counted.append)
    assert (tmp_path / "w").read_bytes() == content
    assert sum(counted) == len(content)
    url = grants[0].objects[0].url
    assert plain_http.get(url.replace("model%20a/w%2B1.bin", "secret")).status_code == 403
    assert plain_http.get(url.partition("?")[0].replace("model%20a/w%2B1.bin", "secret")).status_code == 403


def test_presigned_urls_of_both_signature_versions_work(s3: Proxied) -> None:
    s3.put("presigned", b"content")
    newer = Proxied(s3.url, signature_version="s3v4")
    for client in (s3.client, newer.client):
        get = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "presigned"})
        assert plain_http.get(get, timeout=WAIT_S).content == b"content"
        put = client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "put"})
        assert plain_http.put(put, content=b"more", timeout=WAIT_S).status_code == 200
        assert s3.get("put") == b"more"
    newer.client.close()


def chunked(pieces: list[bytes], *, signed: bool, trailer: str = "") -> bytes:
    suffix = b";chunk-signature=" + b"0" * 64 if signed else b""
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), suffix, piece) for piece in pieces)
    return body + b"0" + suffix + b"\r\n" + trailer.encode() + b"\r\n"


def crc32(content: bytes) -> str:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()


@pytest.mark.parametrize(
    ("kind", "signed", "has_trailer"),
    [
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", False, True),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", True, False),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", True, True),
    ],
)
def test_chunked_uploads_are_stored_without_their_framing(
    s3: Proxied, kind: str, signed: bool, has_trailer: bool
) -> None:
    content = os.urandom(200_000)
    trailer = f"x-amz-checksum-crc32:{crc32(content)}\r\n" if has_trailer else ""
    headers = {
        "X-Amz-Content-SHA256": kind,
        "Content-Encoding": "aws-chunked",
        "X-Amz-Decoded-Content-Length": str(len(content)),
        **({"X-Amz-Trailer": "x-amz-checksum-crc32"} if has_trailer else {}),
    }
    body = chunked([content[:70_000], content[70_000:]], signed=signed, trailer=trailer)
    response = plain_http.put(f"{s3.url}/bucket/{kind}", content=body, headers=headers, timeout=WAIT_S)
    assert response.status_code == 200, response.text
    assert s3.get(kind) == content
    assert "aws-chunked" not in s3.client.head_object(Bucket="bucket", Key=kind).get("ContentEncoding", "")


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({"X-Amz-Content-SHA256": "0" * 64}, b"content", "XAmzContentSHA256Mismatch"),
        ({"X-Amz-Content-SHA256": "0" * 64}, os.urandom(300_000), "XAmzContentSHA256Mismatch"),
        ({"X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, b"0\r\n\r\n", "MissingContentLength"),
        (
            {"X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "X-Amz-Decoded-Content-Length": "3"},
            b"nonsense",
            "IncompleteBody",
        ),
        (
            {
                "X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                "X-Amz-Decoded-Content-Length": "3",
                "X-Amz-Trailer": "x-amz-checksum-crc32",
            },
            b"3\r\nabc\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
            "BadDigest",
        ),
    ],
)
def test_a_body_that_does_not_match_its_digest_is_not_stored(
    s3: Proxied, headers: dict[str, str], body: bytes, code: str
) -> None:
    response = plain_http.put(f"{s3.url}/bucket/bad", content=body, headers=headers, timeout=WAIT_S)
    assert f"<Code>{code}</Code>" in response.text
    with pytest.raises(ClientError):
        s3.get("bad")


def test_a_client_that_disconnects_mid_body_stores_nothing(s3: Proxied) -> None:
    host, port = s3.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT /bucket/half HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 500_000)
    with pytest.raises(ClientError):
        s3.get("half")


def test_a_client_that_expects_100_continue_gets_it(s3: Proxied) -> None:
    host, port = s3.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        head = f"PUT /bucket/asked HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"abc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert s3.get("asked") == b"abc"


def test_without_object_storage_the_error_says_how_to_enable_it() -> None:
    with proxied(ObjectStorage()) as url:
        made = Proxied(url)
        with pytest.raises(ClientError, match=re.escape(pip_install("headrace[s3]"))):
            made.client.list_buckets()
        assert plain_http.head(f"{url}/bucket", timeout=WAIT_S).status_code == 501
        made.client.close()


def test_an_unreachable_object_storage_is_answered_as_busy() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = S3Access(
            endpoint_url=f"http://127.0.0.1:{closed.getsockname()[1]}", access_key="a", secret_key="b", region="r"
        )
        with proxied(ExternalStorage(away)) as url:
            assert plain_http.get(f"{url}/bucket/key", timeout=WAIT_S).status_code == 503


def test_an_endpoint_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="AWS_SECRET_ACCESS_KEY"):
        make_storage("http://minio:9000", tmp_path, "us-east-1", {"AWS_ACCESS_KEY_ID": "a"})
