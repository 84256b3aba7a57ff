"""
Files that the machines of a platform share: small ones and logs of progress in its database, contents in a bucket.

The folder of a machine is a cache of contents. The bucket is the platform's own: clients do not see it. All methods
block.
"""

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.platform.state.blobs import Blobs

_T = TypeVar("_T")

_PLATFORM: Final = "platform"
"""The space of what all machines of a platform agree on."""
_LOGS: Final = ".progress"
"""Ends the name of a space of logs."""
_ENTRIES_AT_ONCE: Final = 16
_UNUSED_S: Final = 86_400.0
"""Age at which the copy of a content is removed from the cache."""
_MAX_SINGLE_BYTES: Final = 1 << 30
"""Larger files are uploaded in parts: S3 takes at most 5 GB at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A content in a bucket."""

    key: str
    num_bytes: int
    stored_s: float


class Bucket:
    """Contents by key below a prefix of a bucket, which is created when it is first needed."""

    def __init__(self, name: str, client: Callable[[], Any], blobs: Blobs) -> None:
        """Use a bucket by boto3's client, which `client` returns; platforms of other databases may use it, too."""
        self._name = name
        self._client = client
        self._blobs = blobs
        self._found_prefix = ""

    @property
    def _prefix(self) -> str:
        """The prefix of this platform, which is generated once and stored in its database."""
        while not self._found_prefix:
            found = self._blobs.read(_PLATFORM, "prefix")
            if found is None:  # of several machines, the first one generates it
                self._blobs.append(_PLATFORM, "prefix", secrets.token_hex(8).encode())
            else:
                self._found_prefix = f"{found.decode()}/"
        return self._found_prefix

    def put(self, key: str, path: Path) -> None:
        """Store a file. Raises `Unavailable`."""

        def put(s3: Any) -> None:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > _MAX_SINGLE_BYTES:
                    s3.upload_fileobj(file, self._name, self._prefix + key)
                else:
                    s3.put_object(Bucket=self._name, Key=self._prefix + key, Body=file)

        try:
            self._call(put)
        except FileNotFoundError:
            self._create()  # for the first content of a new platform
            self._call(put)

    def get(self, key: str, path: Path) -> None:
        """Write a content to a path, at once. Raises `FileNotFoundError`, `Unavailable`."""
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")

        def get(s3: Any) -> None:
            with aside.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                s3.download_fileobj(self._name, self._prefix + key, file)

        try:
            self._call(get)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call(lambda s3: s3.delete_object(Bucket=self._name, Key=self._prefix + key))

    def find(self, prefix: str) -> "list[Content]":
        """Return the contents whose keys begin with a prefix."""

        def find(s3: Any) -> list[Content]:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._prefix + prefix)
            return [
                Content(
                    key=entry["Key"].removeprefix(self._prefix),
                    num_bytes=entry["Size"],
                    stored_s=entry["LastModified"].timestamp(),
                )
                for page in pages
                for entry in page.get("Contents", ())
            ]

        try:
            return self._call(find)
        except FileNotFoundError:
            return []

    def _create(self) -> None:
        def create(s3: Any) -> None:
            region = s3.meta.region_name
            where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            with suppress(s3.exceptions.BucketAlreadyOwnedByYou):  # another machine has created it
                s3.create_bucket(Bucket=self._name, **where)

        self._call(create)

    def _call(self, use: Callable[[Any], _T]) -> _T:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return use(self._client())
        except (BotoCoreError, ClientError) as error:
            response = error.response if isinstance(error, ClientError) else {}
            if response.get("ResponseMetadata", {}).get("HTTPStatusCode") == HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(f"There is no such content in the bucket {self._name}.") from error
            raise Unavailable(f"The bucket {self._name} of the platform cannot be used: {error}") from error


class SharedFiles(Files):
    """The files of one space, which all machines of a platform share."""

    is_shared = True

    def __init__(
        self,
        root: Path,
        space: str,
        *,
        blobs: Blobs,
        bucket: Bucket,
        clock: Callable[[], float] = time.time,
        term: int | None = None,
    ) -> None:
        super().__init__(root)
        self._space = space
        self._blobs = blobs
        self._bucket = bucket
        self._clock = clock
        self._term = term

    def fenced(self, term: int) -> Files:
        return SharedFiles(self.root, self._space, blobs=self._blobs, bucket=self._bucket, clock=self._clock, term=term)

    def read(self, path: Path) -> bytes | None:
        return self._blobs.read(self._space, self._key(path))

    def read_many(self, paths: Collection[Path]) -> Mapping[Path, bytes]:
        found = self._blobs.read_many(self._space, [self._key(path) for path in paths])
        return {self.root / key: content for key, content in found.items()}

    def write(self, path: Path, content: bytes) -> None:
        self._blobs.put(self._space, self._key(path), content, term=self._term)

    def remove(self, path: Path) -> None:
        self._blobs.delete(self._space, self._key(path), term=self._term)

    def names(self, folder: Path) -> list[str]:
        prefix = self._below(folder)
        keys = self._blobs.keys(self._space, prefix)
        return list(dict.fromkeys(key.removeprefix(prefix).partition("/")[0] for key in keys))

    def keep(self, path: Path) -> None:
        self._bucket.put(f"{self._space}/{self._key(path)}", path)

    def fetch(self, path: Path) -> Path:
        if path.exists():
            os.utime(path)  # it is in use
        else:
            self.folder(path.parent)
            self._bucket.get(f"{self._space}/{self._key(path)}", path)
        return path

    def has(self, path: Path) -> bool:
        key = f"{self._space}/{self._key(path)}"  # a copy here proves nothing
        return any(found.key == key for found in self._bucket.find(key))

    def discard(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._bucket.delete(f"{self._space}/{self._key(path)}")

    def contents(self, folder: Path) -> Mapping[str, float]:
        prefix = f"{self._space}/{self._below(folder)}"
        return {found.key.removeprefix(prefix): found.stored_s for found in self._bucket.find(prefix)}

    def num_bytes(self) -> int:
        return sum(found.num_bytes for found in self._bucket.find(f"{self._space}/"))

    def append(self, path: Path, entry: bytes) -> None:
        self._blobs.append(self._space + _LOGS, self._key(path), entry, term=self._term)

    def entries(self, path: Path, *, first: int = 0) -> Iterator[bytes]:
        while parts := self._blobs.parts(self._space + _LOGS, self._key(path), first=first, limit=_ENTRIES_AT_ONCE):
            yield from parts
            first += len(parts)

    def end_log(self, path: Path) -> None:
        self._blobs.delete(self._space + _LOGS, self._key(path), term=self._term)

    def remove_tree(self, folder: Path) -> None:
        for space in (self._space, self._space + _LOGS):
            self._blobs.delete(space, *self._blobs.keys(space, self._below(folder)), term=self._term)
        super().remove_tree(folder)

    def sweep(self) -> None:
        before_s = self._clock() - _UNUSED_S
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder) / name for name in names):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before_s:
                        path.unlink()

    def _below(self, folder: Path) -> str:
        """Return how the keys of all that is in a folder begin."""
        return "" if folder == self.root else f"{self._key(folder)}/"

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()
