"""Buckets of AWS: their sources through the proxy, with boto3, without an object storage behind it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from headrace.platform.control.jumpstart.catalogue import Catalogue
from headrace.platform.storage.object_storage import ObjectStorage
from headrace.platform.storage.public_buckets import PublicBuckets, base_url, public_source
from headrace.platform.storage.s3_proxy import S3Proxy
from headrace.serving.artifacts.sources import ArtifactSource
from tests.platform.host.serving import serving

BUCKET = "sagemaker-example-files-prod-us-east-1"
JUMPSTART = "jumpstart-cache-prod-us-west-2"
DATA = bytes(range(256))


class Clients:
    """A client for each source."""

    def __init__(self, folder: Any, mirror: Any, unreachable: Any, nowhere: Any) -> None:
        self.folder, self.mirror, self.unreachable, self.nowhere = folder, mirror, unreachable, nowhere


class Mirror(BaseHTTPRequestHandler):
    """Stands for AWS: answers with the request, without its credentials."""

    def do_GET(self) -> None:
        body = f"{self.path} {self.headers.get('range')} {self.headers.get('authorization')}".encode()
        self.send_response(404 if "missing" in self.path else 206 if self.headers.get("range") else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")

    do_HEAD = do_GET  # noqa: N815 -- the name that the server calls

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("buckets")
    for name in ("a.txt", "data/b & c.txt", "data/d.txt"):
        path = folder / BUCKET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
    (folder / "secret.txt").write_text("x")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sources = (str(folder), f"http://127.0.0.1:{server.server_port}/", "http://127.0.0.1:9", None)
    with ExitStack() as stack:
        made = [client(stack.enter_context(proxied(source))) for source in sources]
        yield Clients(*made)
        for each in made:
            each.close()
    server.shutdown()
    server.server_close()


def proxied(source: str | None) -> Any:
    proxy = S3Proxy(ObjectStorage(), public=PublicBuckets(Catalogue(), source))
    return serving(proxy, stop=proxy.close)


def client(url: str) -> Any:
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "thing", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=url, config=Config(retries={"total_max_attempts": 1}, proxies={}), **keys)


def test_objects_and_lists_are_read_from_a_folder(clients: Clients) -> None:
    s3 = clients.folder
    assert s3.get_object(Bucket=BUCKET, Key="data/b & c.txt")["Body"].read() == DATA
    assert s3.get_object(Bucket=BUCKET, Key="a.txt", Range="bytes=250-")["Body"].read() == DATA[250:]
    assert s3.head_object(Bucket=BUCKET, Key="a.txt")["ContentLength"] == 256
    s3.head_bucket(Bucket=BUCKET)
    s3.get_bucket_location(Bucket=BUCKET)
    listed = s3.list_objects_v2(Bucket=BUCKET)
    assert [(item["Key"], item["Size"]) for item in listed["Contents"]] == [
        ("a.txt", 256),
        ("data/b & c.txt", 256),
        ("data/d.txt", 256),
    ]
    by_folder = s3.list_objects_v2(Bucket=BUCKET, Delimiter="/")
    assert [item["Prefix"] for item in by_folder["CommonPrefixes"]] == ["data/"]
    for operation in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(operation).paginate(Bucket=BUCKET, Prefix="data/", PaginationConfig={"PageSize": 1})
        assert [item["Key"] for page in pages for item in page["Contents"]] == ["data/b & c.txt", "data/d.txt"]


@pytest.mark.parametrize("key", ["none.txt", "data", "../secret.txt", "data/../../secret.txt", "/etc/passwd"])
def test_what_the_folder_of_a_bucket_lacks_is_missing(clients: Clients, key: str) -> None:
    with pytest.raises(ClientError):
        clients.folder.get_object(Bucket=BUCKET, Key=key)


def test_a_request_to_a_mirror_has_no_credentials_and_its_response_is_passed_on(clients: Clients) -> None:
    found = clients.mirror.get_object(Bucket=BUCKET, Key="a b.txt", Range="bytes=0-9")
    assert found["Body"].read().decode().startswith(f"/{BUCKET}/a%20b.txt")
    url = clients.mirror.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "x"})
    import httpx

    with httpx.Client(trust_env=False) as plain:
        assert plain.get(url).text == f"/{BUCKET}/x None None"
    with pytest.raises(ClientError, match="404"):
        clients.mirror.head_object(Bucket=BUCKET, Key="missing")


def test_a_source_that_cannot_be_reached_is_named(clients: Clients) -> None:
    with pytest.raises(
        ClientError, match=f"{BUCKET} is read from http://127.0.0.1:9/{BUCKET}, which cannot be reached"
    ):
        clients.unreachable.get_object(Bucket=BUCKET, Key="x")


def test_without_a_source_only_the_catalogue_is_read(clients: Clients) -> None:
    found = clients.nowhere.get_object(Bucket=JUMPSTART, Key="models_manifest.json")
    assert found["ETag"] == clients.nowhere.head_object(Bucket=JUMPSTART, Key="models_manifest.json")["ETag"]
    for bucket in (BUCKET, JUMPSTART, "mine"):
        with pytest.raises(ClientError, match="no object storage"):
            clients.nowhere.get_object(Bucket=bucket, Key="x")
    for each in (clients.folder, clients.mirror):
        with pytest.raises(ClientError, match="no object storage"):
            each.put_object(Bucket=BUCKET, Key="x", Body=b"x")


def test_addresses_of_buckets_and_of_artifacts(tmp_path: Path) -> None:
    assert base_url("aws", BUCKET) == f"https://{BUCKET}.s3.us-east-1.amazonaws.com"
    assert base_url("aws", "sagemaker-sample-files") == "https://sagemaker-sample-files.s3.amazonaws.com"
    assert base_url("aws", "jumpstart-cache-prod-cn-north-1").endswith(".s3.cn-north-1.amazonaws.com.cn")
    (tmp_path / BUCKET / "model").mkdir(parents=True)
    archive, prefix = (
        ArtifactSource(uri=f"s3://{BUCKET}/m.tar.gz"),
        ArtifactSource(uri=f"s3://{BUCKET}/model/", is_prefix=True, is_archive=False),
    )
    mine = ArtifactSource(uri="s3://mine/m.tar.gz")
    assert [public_source(each, source=None) for each in (archive, prefix, mine)] == [archive, prefix, mine]
    assert public_source(archive, source="aws").uri == f"{base_url('aws', BUCKET)}/m.tar.gz"
    assert public_source(prefix, source="aws") == prefix
    found = [public_source(each, source=str(tmp_path)) for each in (archive, prefix, mine)]
    assert found[::2] == [archive, mine]
    assert found[1] == ArtifactSource(uri=str(tmp_path / BUCKET / "model"), is_archive=False)
