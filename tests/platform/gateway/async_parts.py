"""Parts of asynchronous tests: an output configuration, stored invocations, and an object storage in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace.core.tracing import TraceContext
from headrace.platform.gateway.async_files import PendingInvocation, PendingStore
from headrace.platform.gateway.objects import FoundObject, ObjectFailed
from headrace.platform.state.blobs import open_blobs
from headrace.platform.state.routes import AsyncOutput

from .routes import route, variant

OUTPUT = AsyncOutput(output_path="s3://out/results/", failure_path="s3://out/failures", max_concurrent_per_replica=2)
IDLE = route(variant("AllTraffic", []), async_output=OUTPUT)
"""An endpoint whose replicas are all starting."""


class MemoryObjects:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.all_metadata: dict[str, Mapping[str, str]] = {}
        self.puts: list[str] = []
        self.failure: ObjectFailed | None = None
        """What each call raises."""
        self.read_failure: ObjectFailed | None = None

    async def describe(self, uri: str) -> tuple[int, str]:
        return len(await self.get(uri, max_bytes=0)), self.objects[uri][1]

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        if self.failure or self.read_failure:
            raise self.failure or self.read_failure
        if uri not in self.objects:
            raise ObjectFailed(f"{uri} cannot be read: no such key")
        return self.objects[uri][0]

    async def list(self, bucket: str, prefix: str) -> Sequence[FoundObject]:
        start = f"s3://{bucket}/"
        found = sorted(uri for uri in self.objects if uri.startswith(start + prefix))
        contents = {uri.removeprefix(start): self.objects[uri][0] for uri in found}
        return [FoundObject(key=key, num_bytes=len(content), etag=key) for key, content in contents.items()]

    async def part(self, uri: str, *, first: int, num_bytes: int, etag: str) -> bytes:
        return (await self.get(uri, max_bytes=0))[first : first + num_bytes]

    async def metadata(self, uri: str) -> Mapping[str, str]:
        await self.get(uri, max_bytes=0)
        return self.all_metadata.get(uri, {})

    async def put(
        self, uri: str, body: bytes | BinaryIO, *, content_type: str, metadata: Mapping[str, str] = {}
    ) -> None:
        if self.failure is not None:
            raise self.failure
        if not isinstance(body, bytes):
            body.seek(0)
            body = body.read()
        self.objects[uri], self.all_metadata[uri] = (body, content_type), metadata
        self.puts.append(uri)


def open_pending(folder: Path) -> PendingStore:
    """A store of pending invocations; stores of one folder have the same ones."""
    return PendingStore(open_blobs("sqlite://", folder / "blobs.sqlite"), folder)


@contextmanager
def out_of_reach(store: PendingStore) -> Iterator[None]:
    """Let all reads and writes of a store fail, because its table is gone."""
    _execute(store, "ALTER TABLE headrace_blobs RENAME TO away")
    try:
        yield
    finally:
        _execute(store, "ALTER TABLE away RENAME TO headrace_blobs")


def _execute(store: PendingStore, statement: str) -> None:
    with store.blobs._engine.begin() as connection:
        connection.exec_driver_sql(statement)


def pending(number: int, *, endpoint: str = "ep", expires_s: float = 100.0) -> PendingInvocation:
    return PendingInvocation(
        id=f"{number:05d}",
        endpoint=endpoint,
        endpoint_uid="uid-1",
        inference_id="i",
        body=b"\x00\xff",
        output_uri="s3://b/k",
        accepted_s=0,
        expires_s=expires_s,
        timeout_s=1,
        trace=TraceContext(request_id=f"request-{number}", inference_id="i"),
    )
