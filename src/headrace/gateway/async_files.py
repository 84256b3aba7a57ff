"""
Accepted asynchronous invocations on disk, one file each: what was accepted is done, also after a kill -9.

A file appears whole (written aside, flushed, renamed) and goes when its outcome is in the object storage; one that was
under way when the platform died runs once more. Blocking calls; use a thread.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.core.telemetry import get_logger
from headrace.core.tracing import TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInvocation:
    """One accepted request. Times are seconds since 1970."""

    id: str
    """Ours: of the file. Sorts by time."""
    endpoint: str
    endpoint_uid: str
    inference_id: str
    members: dict[str, str] = field(default_factory=dict)
    """`gateway.request.Invocation.members`"""
    body: bytes | None = None
    input_uri: str | None = None
    """Where the body is, if it did not come with the request."""
    output_uri: str
    failure_uri: str | None = None
    accepted_s: float
    expires_s: float
    """If it has not begun by then, it never does."""
    timeout_s: float
    """Of the invocation itself."""
    trace: TraceContext = field(default_factory=TraceContext)
    """Ids of the request that was accepted."""


_SUFFIX = ".json"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PendingInvocation).decode


class PendingFolder:
    """The files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, pending: PendingInvocation) -> None:
        """Keep it, durably. Raises `OSError` (a full disk)."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = self._path(pending.id)
        aside = target.with_suffix(".partial")
        try:
            with aside.open("wb") as file:
                file.write(_encode(pending))
                file.flush()
                os.fsync(file.fileno())
            aside.rename(target)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self._flush_names()

    def remove(self, pending_id: str) -> None:
        """Forget it."""
        self._path(pending_id).unlink(missing_ok=True)

    def load(self) -> Iterator[PendingInvocation]:
        """All that are kept, the oldest first; a file that cannot be read is renamed and told in the log."""
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                yield _decode(path.read_bytes())
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                aside = path.with_suffix(".unreadable")
                path.rename(aside)
                get_logger().error("async.unreadable", file=aside.name, reason=str(error))

    def _path(self, pending_id: str) -> Path:
        return self._folder / f"{pending_id}{_SUFFIX}"

    def _flush_names(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
