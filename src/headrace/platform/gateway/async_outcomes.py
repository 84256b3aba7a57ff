"""
Outcomes of asynchronous invocations in the object storage: each invocation has one, whichever process stores it.

A process may die, or lose its lease, after it has stored an outcome and before it has recorded that. An outcome has the
id of its invocation as metadata, so that the next process finds it. The names of objects tell nothing: clients choose
them, and may choose one twice. A process that was stopped for longer than its lease stores nothing when it continues.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final

from headrace.platform.gateway.async_files import AsyncEnd, PendingInvocation
from headrace.platform.gateway.objects import ObjectFailed, S3Objects, retry_unavailable

_INVOCATION: Final = "headrace-invocation"
_MAX_FAILURE_BYTES: Final = 1 << 20


class EndedElsewhere(Exception):
    """Another process has ended the invocation, or will."""


@dataclass(slots=True)
class Outcomes:
    """The outcomes that this process stores and finds."""

    objects: S3Objects
    has_lease: Callable[[], bool] = lambda: True
    """Returns whether this process is still the one that runs the invocations."""

    async def store(self, pending: PendingInvocation, uri: str, content: bytes | BinaryIO, content_type: str) -> None:
        """Write the answer or the failure of an invocation. Raises `ObjectFailed`, `EndedElsewhere`."""
        facts: dict[str, Any] = {"content_type": content_type, "metadata": {_INVOCATION: pending.id}}

        async def put() -> None:
            if not self.has_lease():
                raise EndedElsewhere
            await self.objects.put(uri, content, **facts)

        await retry_unavailable(put)

    async def find_end(self, pending: PendingInvocation) -> AsyncEnd | None:
        """Return the end whose outcome is in the object storage; None if there is none, or it cannot be read."""
        try:
            if await self._is_outcome(pending, pending.output_uri):
                _, content_type = await retry_unavailable(partial(self.objects.describe, pending.output_uri))
                return AsyncEnd(pending=pending, content_type=content_type)
            if pending.failure_uri is not None and await self._is_outcome(pending, pending.failure_uri):
                read = partial(self.objects.get, pending.failure_uri, max_bytes=_MAX_FAILURE_BYTES)
                failure = await retry_unavailable(read)
                return AsyncEnd(pending=pending, failure=failure.decode(errors="replace"))
        except ObjectFailed:  # it has just been removed
            pass
        return None

    async def _is_outcome(self, pending: PendingInvocation, uri: str) -> bool:
        try:
            metadata = await retry_unavailable(partial(self.objects.metadata, uri))
        except ObjectFailed:  # there is no object, or it must not be read
            return False
        return metadata.get(_INVOCATION) == pending.id
