"""Machines that share files: folders of their own, one database, one bucket in memory, and kills at any call."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from botocore.exceptions import ClientError

from headrace.platform.state.blobs import Blobs, open_blobs
from headrace.platform.storage.shared_files import Bucket, SharedFiles


class MemoryS3:
    """The calls of boto3's client that a bucket needs, on objects in memory."""

    meta = SimpleNamespace(region_name="us-east-1")
    exceptions = SimpleNamespace(BucketAlreadyOwnedByYou=KeyError)

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.failure: Exception | None = None
        """What each call raises."""

    def create_bucket(self, **members: str) -> None:
        self.buckets.setdefault(members["Bucket"], {})

    def put_object(self, **members: Any) -> None:
        self._bucket(members["Bucket"], "PutObject")[members["Key"]] = members["Body"].read()

    def download_fileobj(self, bucket: str, key: str, file: IO[bytes]) -> None:
        objects = self._bucket(bucket, "HeadObject")
        if key not in objects:
            raise missing("HeadObject")
        file.write(objects[key])

    def delete_object(self, **members: str) -> None:
        self._bucket(members["Bucket"], "DeleteObject").pop(members["Key"], None)

    def get_paginator(self, _operation: str) -> Any:
        def paginate(**members: str) -> list[dict[str, Any]]:
            found = sorted(self._bucket(members["Bucket"], "ListObjectsV2").items())
            now = datetime.now(UTC)
            entries = [{"Key": key, "Size": len(content), "LastModified": now} for key, content in found]
            return [{"Contents": [entry for entry in entries if entry["Key"].startswith(members["Prefix"])]}]

        return SimpleNamespace(paginate=paginate)

    def _bucket(self, name: str, operation: str) -> dict[str, bytes]:
        if self.failure is not None:
            raise self.failure
        if name not in self.buckets:
            raise missing(operation)
        return self.buckets[name]


def missing(operation: str) -> ClientError:
    return ClientError({"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, operation)


class Killed(Exception):
    """Stands for the loss of a machine."""


class Machine(SharedFiles):
    """The files of one machine, which is lost at one of its changes."""

    changes_left: int | None = None
    _changing = threading.Lock()

    def _change(self) -> None:
        with self._changing:
            if self.changes_left is not None:
                self.changes_left -= 1
                if self.changes_left < 0:
                    raise Killed

    def write(self, path: Path, content: bytes) -> None:
        self._change()
        super().write(path, content)

    def remove(self, path: Path) -> None:
        self._change()
        super().remove(path)

    def keep(self, path: Path) -> None:
        self._change()
        super().keep(path)

    def discard(self, path: Path) -> None:
        self._change()
        super().discard(path)

    def append(self, path: Path, entry: bytes) -> None:
        self._change()
        super().append(path, entry)

    def end_log(self, path: Path) -> None:
        self._change()
        super().end_log(path)


class World:
    """The database and the S3 server, which outlive machines."""

    def __init__(self, folder: Path) -> None:
        self.s3 = MemoryS3()
        self._folder = folder
        self._blobs: list[Blobs] = []
        self._num_machines = 0

    def machine(self, *, changes_left: int | None = None) -> Machine:
        """A machine that has nothing of the others."""
        self._num_machines += 1
        self._blobs.append(blobs := open_blobs("sqlite://", self._folder / "blobs.sqlite"))
        bucket = Bucket("own", lambda: self.s3, blobs)
        made = Machine(self._folder / str(self._num_machines) / "files", "space", blobs=blobs, bucket=bucket)
        made.changes_left = changes_left
        return made

    def close(self) -> None:
        for blobs in self._blobs:
            blobs.close()
