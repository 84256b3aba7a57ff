"""
Accepted asynchronous invocations, stored so that they survive a kill -9 and the loss of a machine, and their bodies.

An invocation is removed when its outcome is in the object storage. One that was running when the platform died runs
again. The methods of the store block: call them in a thread.

Bodies need bounded memory. A long response goes to disk, because a worker drops a connection that is not read for long.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.core.tracing import TraceContext
from headrace.platform.gateway.objects import ObjectsUnavailable
from headrace.platform.gateway.request import Invocation
from headrace.platform.gateway.routing import is_for_components
from headrace.platform.state.blobs import Blobs
from headrace.platform.state.routes import Route
from headrace.serving.http.body import FREE_BYTES, BodyBudget, BodyShare, BudgetSpent
from headrace.serving.http.client_connection import ClientResponse, ResponseTooLarge
from headrace.serving.wire.aws.errors import AwsError


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInvocation:
    """An accepted asynchronous invocation. Times are seconds since 1970."""

    id: str
    """Sorts by the time of acceptance."""
    endpoint: str
    endpoint_uid: str
    inference_id: str
    members: dict[str, str] = field(default_factory=dict)
    """`gateway.request.Invocation.members`"""
    body: bytes | None = None
    input_uri: str | None = None
    """Object with the body, if it did not come with the request."""
    output_uri: str
    failure_uri: str | None = None
    accepted_s: float
    expires_s: float
    """The invocation expires if it has not started by then."""
    timeout_s: float
    """Longest time that the model may take."""
    trace: TraceContext = field(default_factory=TraceContext)
    """Ids of the accepted request."""


MAX_NOTIFIED_BYTES = 128 * 1024
"""Longest response that a notification includes. Source: SageMaker developer guide, asynchronous inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEnd:
    """The end of an asynchronous invocation, for those who are notified of it."""

    pending: PendingInvocation
    failure: str | None = None
    content_type: str = ""
    body: bytes | None = None
    """The response; None: there is none, or it is longer than `MAX_NOTIFIED_BYTES`."""
    ended_s: float = 0.0


_T = TypeVar("_T")

PENDING: Final = "invocations"
"""The space of pending invocations among the blobs: the description of each, and its body, if it has one."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PendingInvocation).decode


class PendingStore:
    """The pending invocations of a platform, of all of its processes."""

    def __init__(self, blobs: Blobs, folder: Path) -> None:
        """Use the blobs; `folder` is for long responses, and has the invocations that earlier versions accepted."""
        self.blobs = blobs
        self.folder = folder
        self._unreadable: set[str] = set()

    async def run(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Call a method in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.blobs.threads, call, *arguments)

    async def attempt(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Call a method in a thread; raise `ObjectsUnavailable` while the database or the disk fails."""
        try:
            return await self.run(call, *arguments)
        except (Unavailable, OSError) as error:  # such as too many open files
            raise ObjectsUnavailable(f"The stored invocations cannot be used: {error}") from error

    def save(self, pending: PendingInvocation) -> None:
        """Store an invocation durably. Raises `Unavailable`, for example on a full disk."""
        bodies = () if pending.body is None else (pending.body,)
        self.blobs.put(PENDING, pending.id, _encode(replace(pending, body=None)), *bodies)

    def remove(self, *ids: str) -> None:
        self.blobs.delete(PENDING, *ids)

    def has(self, pending_id: str) -> bool:
        return self.blobs.read(PENDING, pending_id) is not None

    def ids(self) -> list[str]:
        """Return the ids of all stored invocations, oldest first. Raises `Unavailable`."""
        return self.blobs.keys(PENDING)

    def count(self) -> int:
        return self.blobs.count(PENDING)

    def unknown(self, known: frozenset[str]) -> tuple[set[str], list[PendingInvocation]]:
        """Return all ids, and the invocations that are not `known`, without bodies. Raises `Unavailable`, `OSError`."""
        self._adopt_files()
        ids = self.ids()
        new = [name for name in ids if name not in known and name not in self._unreadable]
        contents = self.blobs.read_many(PENDING, new)
        found = [self._decoded(name, contents[name]) for name in new if name in contents]
        return set(ids), [pending for pending in found if pending is not None]

    def body(self, pending_id: str) -> bytes:
        """Return the inline body of an invocation. Raises `Unavailable`; `KeyError`: it was removed."""
        body = self.blobs.read(PENDING, pending_id, part=1)
        if body is None:
            raise KeyError(pending_id)
        return body

    def _decoded(self, pending_id: str, content: bytes) -> PendingInvocation | None:
        """Decode an invocation; one that is not readable stays, and is reported once."""
        try:
            return _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._unreadable.add(pending_id)
            get_logger().error("async.unreadable", id=pending_id, reason=str(error))
            return None

    def _adopt_files(self) -> None:
        """Move invocations here that an earlier version accepted, or a backup has; a kill between leaves both."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                self.save(_decode(path.read_bytes()))
            except FileNotFoundError:  # another process has moved it
                continue
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                path.rename(path.with_suffix(".unreadable"))
                get_logger().error("async.unreadable", file=path.name, reason=str(error))
            path.unlink(missing_ok=True)


MAX_INLINE_BYTES = 128_000
DEFAULT_TTL_S = 21_600.0
DEFAULT_TIMEOUT_S = 900.0


def pending_of(route: Route, invocation: Invocation, body: bytes, *, now_s: float) -> PendingInvocation:
    """
    Build the stored form of a request.

    Raises `AwsError` if the endpoint is not asynchronous, its models are inference components, or the request does not
    have exactly one input.
    """
    output = route.async_output
    if output is None:
        raise AwsError(
            "ValidationError",
            f"Endpoint {route.endpoint} does not take asynchronous invocations: its configuration has no "
            "AsyncInferenceConfig.",
        )
    if is_for_components(route):  # it would wait for a replica until it expires
        raise AwsError(
            "ValidationError",
            f"Endpoint {route.endpoint} does not take asynchronous invocations: its models are inference components, "
            "and InvokeEndpointAsync cannot name one. Use InvokeEndpoint, or an endpoint whose variants have models.",
        )
    members = invocation.members
    input_uri = members.get("InputLocation")
    if (input_uri is None) == (not body):
        raise AwsError("ValidationError", "Provide exactly one of Body and InputLocation.")
    unique = uuid4().hex
    inference_id = invocation.trace.inference_id or unique
    name = members.get("Filename", f"{inference_id}.out")
    folders = [output.output_path, members.get("S3OutputPathExtension", "")]
    failure_uri = None
    if output.failure_path is not None:
        failure_uri = f"{output.failure_path.rstrip('/')}/{name.rpartition('.')[0] or name}-error.out"
    return PendingInvocation(
        id=f"{int(now_s * 1e6):017d}-{unique}",
        endpoint=route.endpoint,
        endpoint_uid=route.endpoint_uid,
        inference_id=inference_id,
        members=members,
        body=body if input_uri is None else None,
        input_uri=input_uri,
        output_uri="/".join([*(folder.strip("/") for folder in folders if folder.strip("/")), name]),
        failure_uri=failure_uri,
        accepted_s=now_s,
        expires_s=now_s + float(members.get("RequestTTLSeconds", DEFAULT_TTL_S)),
        timeout_s=float(members.get("InvocationTimeoutSeconds", DEFAULT_TIMEOUT_S)),
        trace=replace(invocation.trace, inference_id=inference_id),
    )


def location_headers(pending: PendingInvocation) -> list[tuple[str, str]]:
    headers = [("X-Amzn-SageMaker-OutputLocation", _in_header(pending.output_uri))]
    if pending.failure_uri is not None:
        headers.append(("X-Amzn-SageMaker-FailureLocation", _in_header(pending.failure_uri)))
    return headers


def _in_header(uri: str) -> str:
    """
    Return a location in a form that a header can hold.

    SDKs read a header as Latin-1 and do not decode it further, so a location of these characters is sent unchanged. Any
    other one is percent-encoded: `urllib.parse.unquote` restores it.
    """
    is_latin = uri.isprintable() and max(uri, default="") <= "\xff"
    return uri if is_latin else quote(uri, safe=":/")


IN_MEMORY_BYTES = 256 * 1024
"""Bytes of a response that are held in memory."""


class InputRoom:
    """
    The part of the budget of all request bodies that the inputs of asynchronous invocations may fill.

    No client waits for an asynchronous invocation, so it waits for room in place of failing: before its input is read,
    when it holds nothing that others wait for.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        self._num_held = 0
        self.num_waiting = 0
        """Inputs that wait for room."""
        budget.on_release = self._check

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        """Count an input until the block ends; first wait, first come, first served, until there is room for it."""
        if num_bytes <= FREE_BYTES:
            yield
            return
        with self._budget.share() as share:
            await self._take(share, num_bytes)
            try:
                yield
            finally:
                self._num_held -= 1

    async def _take(self, share: BodyShare, num_bytes: int) -> None:
        self.num_waiting += 1
        try:
            async with self._turn:
                while not self._has_room(num_bytes - FREE_BYTES):
                    await self._released.wait()
                self._num_held += 1
                with suppress(BudgetSpent):  # the only input may exceed the budget
                    share.add(num_bytes)
        finally:
            self.num_waiting -= 1

    def _has_room(self, num_bytes: int) -> bool:
        """
        Return whether an input fits into half of the budget, or is the only one.

        The other half is left to requests whose clients wait: those are refused when there is no room.
        """
        return self._num_held == 0 or self._budget.held_bytes + num_bytes <= self._budget.max_bytes // 2

    def _check(self) -> None:
        self._released.set()
        self._released.clear()


class ReceivedBody:
    """The body of a response: in memory if it is short, else in a file without a name."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Create an empty body; the file system of `folder` holds long ones."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._num_bytes_in_memory = 0
        self._file: BinaryIO | None = None
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a full disk, which the write has reported
                self._file.close()

    async def read(self, response: ClientResponse) -> None:
        """
        Read a response.

        Raises `ResponseBroken`, `ResponseTooLarge`, and `OSError` if it cannot be stored on disk.
        """
        await response.relay(self._put, self._drain)
        if self._file is not None:
            await self._write(self._file)

    def content(self) -> bytes | BinaryIO:
        return b"".join(self._parts) if self._file is None else self._file

    def start(self) -> bytes | None:
        """Return the whole body if a notification may include it."""
        if self._file is not None or self.num_bytes > MAX_NOTIFIED_BYTES:
            return None
        return b"".join(self._parts)

    def _put(self, part: bytes) -> bool:
        self._parts.append(part)
        self.num_bytes += len(part)
        self._num_bytes_in_memory += len(part)
        return self._num_bytes_in_memory <= IN_MEMORY_BYTES and self.num_bytes <= self._max_bytes

    async def _drain(self) -> None:
        if self.num_bytes > self._max_bytes:
            raise ResponseTooLarge(f"The response has more than {self._max_bytes} bytes.")
        if self._file is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 -- `__exit__` closes it
        await self._write(self._file)

    async def _write(self, file: BinaryIO) -> None:
        parts, self._parts, self._num_bytes_in_memory = self._parts, [], 0

        def append() -> None:
            file.writelines(parts)
            file.flush()

        await asyncio.to_thread(append)
