"""
Outcomes that a process has stored, and could not record: it died, or lost its lease, between the two.

An outcome has the id of its invocation as metadata, so that the process which takes over runs no invocation again that
has an answer or a failure. The names of objects tell nothing: clients choose them, and may choose one twice.
"""

from functools import partial
from typing import Any, BinaryIO, Final

from headrace.platform.gateway.async_files import AsyncEnd, PendingInvocation
from headrace.platform.gateway.objects import ObjectFailed, S3Objects, retry_unavailable

_INVOCATION: Final = "headrace-invocation"
_MAX_FAILURE_BYTES: Final = 1 << 20


async def store_outcome(
    pending: PendingInvocation, objects: S3Objects, uri: str, content: bytes | BinaryIO, content_type: str
) -> None:
    """Write the answer or the failure of an invocation. Raises `ObjectFailed`."""
    facts: dict[str, Any] = {"content_type": content_type, "metadata": {_INVOCATION: pending.id}}
    await retry_unavailable(partial(objects.put, uri, content, **facts))


async def find_end(pending: PendingInvocation, objects: S3Objects) -> AsyncEnd | None:
    """Return the end whose outcome is in the object storage; None if there is none, or it cannot be read."""
    try:
        if await _is_outcome(pending, pending.output_uri, objects):
            _, content_type = await retry_unavailable(partial(objects.describe, pending.output_uri))
            return AsyncEnd(pending=pending, content_type=content_type)
        if pending.failure_uri is not None and await _is_outcome(pending, pending.failure_uri, objects):
            read = partial(objects.get, pending.failure_uri, max_bytes=_MAX_FAILURE_BYTES)
            failure = await retry_unavailable(read)
            return AsyncEnd(pending=pending, failure=failure.decode(errors="replace"))
    except ObjectFailed:  # it has just been removed
        pass
    return None


async def _is_outcome(pending: PendingInvocation, uri: str, objects: S3Objects) -> bool:
    try:
        metadata = await retry_unavailable(partial(objects.metadata, uri))
    except ObjectFailed:  # there is no object, or it must not be read
        return False
    return metadata.get(_INVOCATION) == pending.id
