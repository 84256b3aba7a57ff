"""The embedded S3 server behind the platform's proxy, which tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from headrace.platform.storage.object_storage import (
    ObjectStorage,
    find_weed,
    make_storage,
)
from headrace.platform.storage.s3_proxy import S3Proxy
from tests.platform.host.serving import serving

MIB = 1024 * 1024
OWN = "headrace-own"
"""The bucket of the platform itself."""


class Proxied:
    """A proxy in front of a storage, and a client."""

    def __init__(self, url: str, folder: Path | None = None, **config: Any) -> None:
        self.url = url
        self.folder = folder
        self.access: Any = None
        self.client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="thing",
            config=Config(retries={"total_max_attempts": 1}, **config),
        )

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket="bucket", Key=key, Body=body)

    def get(self, key: str, **more: Any) -> bytes:
        with self.client.get_object(Bucket="bucket", Key=key, **more)["Body"] as body:
            return body.read()


def proxied(storage: ObjectStorage) -> Any:
    proxy = S3Proxy(storage, own_bucket=OWN)

    async def stop() -> None:
        await proxy.close()
        await storage.stop()

    return serving(proxy, start=storage.start, stop=stop)


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    if find_weed(os.environ) is None:
        pytest.skip("SeaweedFS is not installed (extra s3)")
    folder = tmp_path_factory.mktemp("s3")
    storage = make_storage(None, folder, "us-east-1", os.environ)
    with proxied(storage) as url:
        made = Proxied(url, folder)
        made.access = storage.access
        made.client.create_bucket(Bucket="bucket")
        yield made
        made.client.close()
