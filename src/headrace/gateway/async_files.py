"""
Accepted asynchronous invocations on disk, one file each, so that they survive a kill -9.

A file is written under a temporary name, synced and renamed, and removed when the outcome is in the object storage. An
invocation that was running when the platform died runs again. The methods block: call them in a thread.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from headrace.core.telemetry import get_logger
from headrace.core.tracing import TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInvocation:
    """An accepted asynchronous invocation. Times are seconds since 1970."""

    id: str
    """Name of the file; sorts by the time of acceptance."""
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


_SUFFIX = ".json"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PendingInvocation).decode


class PendingFolder:
    """The folder of accepted invocations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, pending: PendingInvocation) -> None:
        """Store an invocation durably. Raises `OSError`, for example on a full disk."""
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
        """Remove an invocation, if it is there."""
        self._path(pending_id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Return the ids of all stored invocations, oldest first. Raises `OSError`."""
        return sorted(path.stem for path in self._folder.glob(f"*{_SUFFIX}"))

    def unknown(self, known: frozenset[str]) -> tuple[set[str], list[PendingInvocation]]:
        """
        Return the ids of all stored invocations, and those that are not `known`, without bodies.

        Raises:
            OSError: the folder cannot be read.
        """
        ids = self.ids()
        found = (self.read(name) for name in ids if name not in known)
        return set(ids), [replace(pending, body=None) for pending in found if pending is not None]

    def read(self, pending_id: str) -> PendingInvocation | None:
        """
        Read a stored invocation; None if it was removed meanwhile, or cannot be read.

        A file that is not an invocation is renamed, so that it is reported only once.
        """
        path = self._path(pending_id)
        try:
            return _decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            aside = path.with_suffix(".unreadable")
            path.rename(aside)
            get_logger().error("async.unreadable", file=aside.name, reason=str(error))
        except OSError as error:
            get_logger().error("async.unreadable", file=path.name, reason=error.strerror)
        return None

    def body(self, pending_id: str) -> bytes:
        """Return the inline body of an invocation. Raises `OSError`: `FileNotFoundError` if it was removed."""
        return _decode(self._path(pending_id).read_bytes()).body or b""

    def _path(self, pending_id: str) -> Path:
        return self._folder / f"{pending_id}{_SUFFIX}"

    def _flush_names(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
