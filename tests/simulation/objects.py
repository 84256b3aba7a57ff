"""The object storage of all members: contents in memory, with the delays and the failures of a network."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from headrace.platform.gateway.objects import FoundObject, ObjectFailed, ObjectsUnavailable
from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.network import Network

T = TypeVar("T")


@dataclass(slots=True)
class Objects:
    """The part of `S3Objects` that a gateway and jobs call."""

    loop: SimulatedLoop
    network: Network
    rng: random.Random
    contents: dict[str, bytes] = field(default_factory=dict)
    """By address."""
    all_metadata: dict[str, Mapping[str, str]] = field(default_factory=dict)
    failing_until_s: float = 0.0
    """Until then, some calls fail, also after their effect."""
    on_put: Callable[[Process, str], None] = lambda *_: None
    """Called when a process begins to write an object."""
    on_effect: Callable[[], None] = lambda: None
    """Called before that, and when the object is written; the process may end there."""

    async def describe(self, uri: str) -> tuple[int, str]:
        return await self._call(lambda: (len(self._content(uri)), "application/json"))

    async def get(self, uri: str, *, max_bytes: int) -> bytes:
        assert max_bytes > 0
        return await self._call(lambda: self._content(uri))

    async def part(self, uri: str, *, first: int, num_bytes: int, etag: str) -> bytes:
        assert etag
        return await self._call(lambda: self._content(uri)[first : first + num_bytes])

    async def list(self, bucket: str, prefix: str) -> Sequence[FoundObject]:
        start = f"s3://{bucket}/"
        return await self._call(
            lambda: [
                FoundObject(key=uri.removeprefix(start), num_bytes=len(content), etag="1")
                for uri, content in sorted(self.contents.items())
                if uri.startswith(start + prefix)
            ]
        )

    async def metadata(self, uri: str) -> Mapping[str, str]:
        return await self._call(lambda: self.all_metadata.get(uri, {}))

    async def put(
        self, uri: str, body: bytes | BinaryIO, *, content_type: str, metadata: Mapping[str, str] = {}
    ) -> None:
        assert content_type
        content = body if isinstance(body, bytes) else _all(body)
        process = PROCESS.get()
        self.on_put(process, uri)
        self.on_effect()
        if process.is_dead:
            await asyncio.Event().wait()

        def put() -> None:
            self.contents[uri], self.all_metadata[uri] = content, metadata

        await self._call(put)
        self.on_effect()
        await asyncio.sleep(0)

    def _content(self, uri: str) -> bytes:
        if uri not in self.contents:
            raise ObjectFailed(f"{uri} cannot be read: it does not exist.")
        return self.contents[uri]

    async def _call(self, use: Callable[[], T]) -> T:
        is_failing = self.loop.now_s < self.failing_until_s
        if is_failing and self.rng.random() < 0.4:
            raise ObjectsUnavailable("The object storage refuses connections.")
        answer: asyncio.Future[T] = self.loop.create_future()
        arrives_s = self.loop.now_s + self.network.delay_s()  # what was sent arrives, whatever becomes of the sender
        self.loop.call_at(arrives_s, _answer, answer, use, context=self.network.context)
        result = await answer
        await asyncio.sleep(self.network.delay_s())
        if is_failing and self.rng.random() < 0.2:
            raise ObjectsUnavailable("The object storage has ended the connection.")
        return result


def _answer(answer: "asyncio.Future[T]", use: Callable[[], T]) -> None:
    try:
        result = use()
    except ObjectFailed as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(result)


def _all(body: BinaryIO) -> bytes:
    body.seek(0)
    return body.read()
